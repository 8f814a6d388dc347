"""A GPT-style decoder as a list of layers: a small one trained byte by byte on Python's own sources, and GPT-2 medium."""

import os
import sysconfig
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from kintsugi.runtime.layer import Layer
from kintsugi.runtime.mixed_precision import mixed_precision_adamw
from kintsugi.runtime.models import NamedParameters, TrainingJob
from kintsugi.runtime.tokens import RandomTokens, token_loss

NUM_BYTES = 256
"""Vocabulary: one token per byte."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GptShape:
    """Size of the decoder."""

    num_blocks: int = 8
    width: int = 32
    num_heads: int = 4
    sequence_length: int = 32
    dropout: float = 0.1
    vocabulary: int = NUM_BYTES


GPT2_MEDIUM = GptShape(num_blocks=24, width=1024, num_heads=16, sequence_length=1024, dropout=0.0, vocabulary=50257)
"""Radford et al., Language models are unsupervised multitask learners; without dropout, as models are profiled."""


class Embedding(nn.Module):
    """Token and position embedding. Tokens [B, T] to activations [B, T, width]."""

    def __init__(self, shape: GptShape) -> None:
        super().__init__()
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.positions = nn.Embedding(shape.sequence_length, shape.width)
        self.dropout = nn.Dropout(shape.dropout)
        nn.init.normal_(self.tokens.weight, std=0.02)
        nn.init.normal_(self.positions.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """Embed a micro-batch."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        hidden: Tensor = self.dropout(self.tokens(tokens) + self.positions(places))
        return hidden


class Block(nn.Module):
    """Causal self-attention and a feed-forward part, each normalised before and added after. [B, T, width] to the same."""

    def __init__(self, shape: GptShape) -> None:
        super().__init__()
        self.num_heads = shape.num_heads
        self.attention_dropout = shape.dropout
        self.attention_norm = nn.LayerNorm(shape.width)
        self.query_key_value = nn.Linear(shape.width, 3 * shape.width)
        self.project = nn.Linear(shape.width, shape.width)
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(shape.width),
            nn.Linear(shape.width, 4 * shape.width),
            nn.GELU(),
            nn.Linear(4 * shape.width, shape.width),
            nn.Dropout(shape.dropout),
        )

    def forward(self, hidden: Tensor) -> Tensor:
        """One block."""
        batch, length, width = hidden.shape
        heads = self.query_key_value(self.attention_norm(hidden)).view(batch, length, 3, self.num_heads, width // self.num_heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        dropout = self.attention_dropout if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)
        hidden = hidden + self.project(mixed.transpose(1, 2).reshape(batch, length, width))
        result: Tensor = hidden + self.feed_forward(hidden)
        return result


class Head(nn.Module):
    """Final norm and projection to tokens; its weight is the embedding's. [B, T, width] to logits [B, T, vocabulary]."""

    def __init__(self, shape: GptShape) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(shape.width)
        self.weight = nn.Parameter(torch.empty(shape.vocabulary, shape.width))

    def forward(self, hidden: Tensor) -> Tensor:
        """Logits."""
        return functional.linear(self.norm(hidden), self.weight)


class ByteText:
    """Windows of a text, byte by byte: `tokens` and the `targets` that follow them, each [sequence_length]."""

    def __init__(self, text: bytes, sequence_length: int) -> None:
        self._bytes = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
        self._length = sequence_length

    def __len__(self) -> int:
        return (len(self._bytes) - 1) // self._length

    def __getitem__(self, index: int) -> Mapping[str, Tensor]:
        window = self._bytes[index * self._length : (index + 1) * self._length + 1]
        return {"tokens": window[:-1], "targets": window[1:]}


def standard_library_text(num_bytes: int) -> bytes:
    """The first `num_bytes` bytes of Python's standard-library sources, modules in alphabetical order."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    text = b""
    for name in sorted(name for name in os.listdir(folder) if name.endswith(".py")):
        text += (folder / name).read_bytes()
        if len(text) >= num_bytes:
            break
    return text[:num_bytes]


def gpt_layers(shape: GptShape) -> list[Layer]:
    """Embedding, blocks, and a head that is tied to the embedding."""
    block = partial(Block, shape)
    return [
        Layer(name="embedding", build=partial(Embedding, shape), inputs=("tokens",)),
        *(Layer(name=f"block{index}", build=block) for index in range(shape.num_blocks)),
        Layer(name="head", build=partial(Head, shape), tied={"weight": "embedding.tokens.weight"}),
    ]


def adamw(parameters: NamedParameters, *, learning_rate: float = 3e-3) -> torch.optim.Optimizer:
    """AdamW with weight decay on matrices only."""
    matrices = [parameter for _, parameter in parameters if parameter.ndim >= 2]
    others = [parameter for _, parameter in parameters if parameter.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW([group for group in groups if group["params"]], lr=learning_rate)


def gpt_job(
    *,
    num_microbatches: int,
    num_steps: int,
    shape: GptShape | None = None,
    microbatch_size: int = 2,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
    text_bytes: int = 100_000,
    optimizer: Callable[[NamedParameters], torch.optim.Optimizer] = adamw,
) -> TrainingJob:
    """The whole job: decoder, AdamW, clipping, byte-level text."""
    shape = shape or GptShape()
    return TrainingJob(
        layers=gpt_layers(shape),
        optimizer=optimizer,
        loss=token_loss,
        dataset=ByteText(standard_library_text(text_bytes), shape.sequence_length),
        microbatch_size=microbatch_size,
        num_microbatches=num_microbatches,
        num_steps=num_steps,
        seed=seed,
        max_grad_norm=1.0,
        dtype=dtype,
    )


def demo_job() -> TrainingJob:
    """The job with its defaults, as `kintsugi profile` measures it."""
    return gpt_job(num_microbatches=8, num_steps=50)


def gpt2_medium_job() -> TrainingJob:
    """GPT-2 medium on synthetic tokens under AdamW in mixed precision, micro-batches of 8 sequences of 1024 tokens."""
    job = gpt_job(
        num_microbatches=8, num_steps=1, shape=GPT2_MEDIUM, microbatch_size=8, dtype=torch.bfloat16, optimizer=mixed_precision_adamw
    )
    return replace(job, dataset=RandomTokens(job.global_batch_size, GPT2_MEDIUM.vocabulary, GPT2_MEDIUM.sequence_length))
