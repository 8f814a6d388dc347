"""Llama decoders as lists of layers, trained on synthetic tokens: what `kintsugi profile` measures of models of that size.

After Touvron et al., Llama 2, and Grattafiori et al., The Llama 3 Herd of Models (table 3): RMSNorm before each part, rotary
position embeddings, attention whose heads share keys and values in groups, SwiGLU, no biases, a head of its own.
"""

from dataclasses import dataclass
from functools import lru_cache, partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from kintsugi.runtime.layer import Layer
from kintsugi.runtime.mixed_precision import mixed_precision_adamw
from kintsugi.runtime.models import TrainingJob
from kintsugi.runtime.tokens import RandomTokens, token_loss

INITIAL_DEVIATION = 0.02
NORM_EPSILON = 1e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaShape:
    """Size of the decoder."""

    num_blocks: int
    width: int
    num_heads: int
    num_key_value_heads: int
    """Groups of heads that share keys and values."""
    feed_forward_width: int
    vocabulary: int
    rope_base: float
    """Of the wavelengths of the rotary position embedding."""
    sequence_length: int = 4096

    @property
    def head_width(self) -> int:
        """Numbers of one head's query."""
        return self.width // self.num_heads


LLAMA2_7B = LlamaShape(
    num_blocks=32, width=4096, num_heads=32, num_key_value_heads=32, feed_forward_width=11008, vocabulary=32000, rope_base=1e4
)
LLAMA3_8B = LlamaShape(
    num_blocks=32, width=4096, num_heads=32, num_key_value_heads=8, feed_forward_width=14336, vocabulary=128256, rope_base=5e5
)


class Embedding(nn.Module):
    """Tokens [B, T] to activations [B, T, width]."""

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.weight = _matrix(shape.vocabulary, shape.width)

    def forward(self, tokens: Tensor) -> Tensor:
        """Embed a micro-batch."""
        return functional.embedding(tokens, self.weight)


class Attention(nn.Module):
    """Causal self-attention with rotary positions. [B, T, width] to the same."""

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self._shape = shape
        shared_width = shape.num_key_value_heads * shape.head_width
        self.query = _linear(shape.width, shape.width)
        self.key = _linear(shape.width, shared_width)
        self.value = _linear(shape.width, shared_width)
        self.project = _linear(shape.width, shape.width)

    def forward(self, hidden: Tensor) -> Tensor:
        """What every token takes from those up to itself."""
        turn = rotation(hidden.shape[1], self._shape.head_width, self._shape.rope_base, hidden.device, hidden.dtype)
        query, key = (rotated(self._heads(part(hidden)), *turn) for part in (self.query, self.key))
        shares = self._shape.num_key_value_heads != self._shape.num_heads
        mixed = functional.scaled_dot_product_attention(
            query, key, self._heads(self.value(hidden)), is_causal=True, enable_gqa=shares
        )
        result: Tensor = self.project(mixed.transpose(1, 2).reshape(hidden.shape))
        return result

    def _heads(self, values: Tensor) -> Tensor:
        """[B, T, heads * head_width] to [B, heads, T, head_width]."""
        batch, length, _ = values.shape
        return values.view(batch, length, -1, self._shape.head_width).transpose(1, 2)


class Block(nn.Module):
    """Attention and a gated feed-forward part, each normalised before and added after. [B, T, width] to the same."""

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(shape.width, eps=NORM_EPSILON)
        self.attention = Attention(shape)
        self.feed_forward_norm = nn.RMSNorm(shape.width, eps=NORM_EPSILON)
        self.gate = _linear(shape.width, shape.feed_forward_width)
        self.up = _linear(shape.width, shape.feed_forward_width)
        self.down = _linear(shape.feed_forward_width, shape.width)

    def forward(self, hidden: Tensor) -> Tensor:
        """One block."""
        hidden = hidden + self.attention(self.attention_norm(hidden))
        normal = self.feed_forward_norm(hidden)
        result: Tensor = hidden + self.down(functional.silu(self.gate(normal)) * self.up(normal))
        return result


class Head(nn.Module):
    """Final norm and projection to the vocabulary. [B, T, width] to logits [B, T, vocabulary]."""

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(shape.width, eps=NORM_EPSILON)
        self.weight = _matrix(shape.vocabulary, shape.width)

    def forward(self, hidden: Tensor) -> Tensor:
        """Logits."""
        return functional.linear(self.norm(hidden), self.weight)


@lru_cache(maxsize=16)
def rotation(length: int, width: int, base: float, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the angles by which positions are told. Shape [length, width] each, the halves alike.

    All blocks of a device share them; they are computed in fp64 (Su et al., RoFormer, equation 15).
    """
    frequencies = base ** -(torch.arange(0, width, 2, device=device, dtype=torch.float64) / width)
    angles = torch.outer(torch.arange(length, device=device, dtype=torch.float64), frequencies).repeat(1, 2)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotated(heads: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Queries or keys [B, heads, T, width], number n of the first half turned with number n of the second one."""
    first, second = heads.chunk(2, dim=-1)
    return heads * cosines + torch.cat((-second, first), dim=-1) * sines


def llama_layers(shape: LlamaShape) -> list[Layer]:
    """Embedding, blocks and head."""
    block = partial(Block, shape)
    return [
        Layer(name="embedding", build=partial(Embedding, shape), inputs=("tokens",)),
        *(Layer(name=f"block{index:02d}", build=block) for index in range(shape.num_blocks)),
        Layer(name="head", build=partial(Head, shape)),
    ]


def llama_job(
    shape: LlamaShape,
    *,
    microbatch_size: int = 1,
    num_microbatches: int = 8,
    num_steps: int = 1,
    dtype: torch.dtype = torch.bfloat16,
) -> TrainingJob:
    """A decoder on synthetic tokens, under AdamW in mixed precision: 16 bytes of state per parameter where they are bf16."""
    return TrainingJob(
        layers=llama_layers(shape),
        optimizer=mixed_precision_adamw,
        loss=token_loss,
        dataset=RandomTokens(num_steps * num_microbatches * microbatch_size, shape.vocabulary, shape.sequence_length),
        microbatch_size=microbatch_size,
        num_microbatches=num_microbatches,
        num_steps=num_steps,
        dtype=dtype,
    )


def llama2_7b_job() -> TrainingJob:
    """Llama-2-7B, micro-batches of one sequence of 4096 tokens."""
    return llama_job(LLAMA2_7B)


def llama3_8b_job() -> TrainingJob:
    """Llama-3-8B, micro-batches of one sequence of 4096 tokens."""
    return llama_job(LLAMA3_8B)


def _linear(width: int, out_width: int) -> nn.Linear:
    linear = nn.Linear(width, out_width, bias=False)
    nn.init.normal_(linear.weight, std=INITIAL_DEVIATION)
    return linear


def _matrix(*shape: int) -> nn.Parameter:
    return nn.Parameter(nn.init.normal_(torch.empty(shape), std=INITIAL_DEVIATION))
