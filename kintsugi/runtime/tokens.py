"""What decoders of any vocabulary are trained on: a synthetic data set of tokens, and their loss."""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

from kintsugi.runtime.models import Activations, Batch


class RandomTokens:
    """Uniform tokens that depend on the sample's index alone: `tokens` and the `targets` that follow them, each [sequence_length].

    They are for measuring: there is nothing to learn in them.
    """

    def __init__(self, num_samples: int, vocabulary: int, sequence_length: int) -> None:
        self._num_samples = num_samples
        self._vocabulary = vocabulary
        self._length = sequence_length

    def __len__(self) -> int:
        return self._num_samples

    def __getitem__(self, index: int) -> Mapping[str, Tensor]:
        generator = torch.Generator().manual_seed(index)
        window = torch.randint(self._vocabulary, (self._length + 1,), generator=generator)
        return {"tokens": window[:-1], "targets": window[1:]}


def token_loss(outputs: Activations, batch: Batch) -> Tensor:
    """Mean cross entropy over all tokens of a micro-batch; logits [B, T, vocabulary] of half precision are widened to fp32."""
    (logits,) = outputs
    wide = logits.float() if logits.dtype.itemsize < torch.float32.itemsize else logits
    return functional.cross_entropy(wide.flatten(0, 1), batch["targets"].flatten())
