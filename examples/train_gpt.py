"""Train your own model with Kintsugi: a small decoder that loses a worker in the middle of a step and goes on.

    python examples/train_gpt.py

Four things are yours: the model as an ordered list of layers, the optimizer, the loss and the data set.
Everything else (who holds which layers, who computes what, what happens after a failure) is planned for you.
"""

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

import kintsugi

WIDTH, NUM_HEADS, NUM_BLOCKS, SEQUENCE_LENGTH = 32, 4, 6, 32


# 1. The model. A layer's forward takes what the layer before it returned (a tensor or a tuple of them) and, by
#    keyword, the fields of the micro-batch that it asked for in `inputs`.


class Embedding(nn.Module):
    """Tokens [B, T] to activations [B, T, width]."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(256, WIDTH)
        self.positions = nn.Embedding(SEQUENCE_LENGTH, WIDTH)
        nn.init.normal_(self.tokens.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """Embed a micro-batch."""
        return self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))


class Block(nn.Module):
    """torch's own encoder layer; the causal mask comes with the data and skips all stages in between."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(WIDTH, NUM_HEADS, 4 * WIDTH, dropout=0.1, batch_first=True, norm_first=True)

    def forward(self, hidden: Tensor, *, mask: Tensor) -> Tensor:
        """Activations [B, T, width] to the same, under the mask [B, T, T] of which all samples have the same."""
        return self.layer(hidden, src_mask=mask[0])


class Head(nn.Module):
    """Activations [B, T, width] to logits [B, T, 256]; its weight is the embedding's."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.weight = nn.Parameter(torch.empty(256, WIDTH))

    def forward(self, hidden: Tensor) -> Tensor:
        """Project back to bytes."""
        return functional.linear(self.norm(hidden), self.weight)


def layers() -> list[kintsugi.Layer]:
    """The model, in order. Stages are cut between layers; a tied parameter names the one it shares."""
    return [
        kintsugi.Layer(name="embedding", build=Embedding, inputs=("tokens",)),
        *(kintsugi.Layer(name=f"block{index}", build=Block, inputs=("mask",)) for index in range(NUM_BLOCKS)),
        kintsugi.Layer(name="head", build=Head, tied={"weight": "embedding.tokens.weight"}),
    ]


# 2. The data: any map-style data set whose samples are dictionaries of tensors. Which samples a step trains on depends
#    on the seed and the step alone, so a step that is run again after a failure is the same step.


class Sources:
    """Windows of Python source text, byte by byte: this file and its neighbours in the library."""

    def __init__(self) -> None:
        text = b"".join(path.read_bytes() for path in sorted(Path(torch.__file__).parent.glob("nn/modules/*.py")))
        self.bytes = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
        self.mask = torch.triu(torch.full((SEQUENCE_LENGTH, SEQUENCE_LENGTH), float("-inf"), dtype=torch.float64), diagonal=1)

    def __len__(self) -> int:
        return (len(self.bytes) - 1) // SEQUENCE_LENGTH

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        window = self.bytes[index * SEQUENCE_LENGTH :][: SEQUENCE_LENGTH + 1]
        return {"tokens": window[:-1], "targets": window[1:], "mask": self.mask}


# 3. Loss and optimizer.


def loss(outputs: tuple[Tensor, ...], batch: dict[str, Tensor]) -> Tensor:
    """Mean cross entropy of one micro-batch; Kintsugi scales it by the number of micro-batches."""
    return functional.cross_entropy(outputs[0].flatten(0, 1), batch["targets"].flatten())


def optimizer(parameters: list[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
    """Called by every worker with the parameters that it holds."""
    return torch.optim.AdamW([parameter for _, parameter in parameters], lr=3e-3)


def make_job() -> kintsugi.TrainingJob:
    """The job. Every worker calls this, so it stands at the top level of a module."""
    return kintsugi.TrainingJob(
        layers=layers(),
        optimizer=optimizer,
        loss=loss,
        dataset=Sources(),
        microbatch_size=2,
        num_microbatches=8,
        num_steps=12,
        max_grad_norm=1.0,
        learning_rate_factor=lambda step: min(1.0, (step + 1) / 4),
        dtype=torch.float64,
    )


# 4. Train, on six workers as two pipelines of three stages. Worker w04 kills itself in the backward pass of step 5;
#    give service="http://..." to have a running `kintsugi serve` decide and remember.

if __name__ == "__main__":
    result = kintsugi.train(make_job, workers=6, dp=2, pp=3, faults=[kintsugi.fail_at(5, "w04", "backward")])
    for step, value in enumerate(result.losses):
        print(f"step {step:2d}  loss {value:.6f}")
    for recovery in result.recoveries:
        seconds = recovery.phase_seconds()["resumed"]
        print(f"lost {', '.join(recovery.lost)}: {recovery.policy}, training again after {seconds:.3f} s")
