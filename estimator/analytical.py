"""Profiles of decoder transformers from published constants, for devices nobody measured yet.

Times are FLOPs / (peak * utilisation) where matrix products dominate and bytes / (bandwidth * efficiency) where memory
does. A matrix product of n weights costs 2n FLOPs per token in the forward pass and as much for each half of the
backward pass; attention scores and values cost 4 * sequence * hidden FLOPs per token forward and twice that backward,
all of it in the input part, since they have no weights (Qi et al., Zero bubble pipeline parallelism, table 1). Causality
is not deducted, as is the custom of the utilisations that are published.

Bytes follow mixed-precision Adam (Rajbhandari et al., ZeRO, section 3.1): per parameter 2 for the bf16 weight, 2 for its
bf16 gradient and 12 for the fp32 master copy and both moments.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kintsugi.core.profile import LayerProfile

WEIGHT_BYTES = 2
GRADIENT_BYTES = 2
OPTIMIZER_BYTES = 12
UPDATE_TRAFFIC_BYTES = 2 * OPTIMIZER_BYTES + GRADIENT_BYTES + WEIGHT_BYTES
"""Read and write the optimizer state, read the gradient, write the weight."""
ACTIVATION_BYTES = 2
"""One bf16 number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """What a device reaches in practice."""

    flops_per_second: float
    """Peak times the utilisation that was published for a model of this size."""
    memory_bytes_per_second: float
    """Peak times efficiency."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """Dimensions of a decoder transformer without dropout, with fused attention and no activation checkpointing."""

    num_blocks: int
    hidden: int
    heads: int
    feed_forward: int
    gated: bool
    """SwiGLU: three matrices of hidden x feed_forward instead of two, and no biases (Llama)."""
    vocabulary: int
    positions: int
    """Learned position embeddings; 0 for rotary ones."""
    tied_head: bool
    """The head shares the token embedding."""
    sequence: int
    """Tokens of one sample."""
    key_value_heads: int | None = None
    """Heads that keys and values have; null: as many as queries (grouped-query attention has fewer)."""

    @property
    def embedding_parameters(self) -> int:
        """Token and position embedding."""
        return (self.vocabulary + self.positions) * self.hidden

    @property
    def block_matrix_parameters(self) -> int:
        """Weights of a block that are multiplied with: 4 attention matrices, 2 or 3 of the feed-forward part."""
        keys_and_values = 2 * self.hidden * (self.key_value_heads or self.heads) // self.heads
        return self.hidden * (2 * self.hidden + keys_and_values + (3 if self.gated else 2) * self.feed_forward)

    @property
    def block_parameters(self) -> int:
        """Weights of a block: matrices and norms, in models that are not gated biases too."""
        biases = 0 if self.gated else 5 * self.hidden + self.feed_forward
        return self.block_matrix_parameters + biases + 2 * self.norm_parameters

    @property
    def norm_parameters(self) -> int:
        """Weights of a norm: a scale, in models that are not gated a shift too."""
        return self.hidden if self.gated else 2 * self.hidden

    @property
    def head_parameters(self) -> int:
        """Final norm and output matrix, be it shared or not."""
        return self.norm_parameters + self.vocabulary * self.hidden

    @property
    def num_parameters(self) -> int:
        """All parameters, shared ones once."""
        shared = self.vocabulary * self.hidden if self.tied_head else 0
        return self.embedding_parameters + self.num_blocks * self.block_parameters + self.head_parameters - shared


def decoder_layers(model: Decoder, device: Accelerator, *, microbatch_size: int) -> tuple[LayerProfile, ...]:
    """Embedding, blocks, and final norm with head as layers of a profile. Shape [num_blocks + 2].

    Args:
        model: dimensions.
        device: what it reaches.
        microbatch_size: samples in one micro-batch.
    """
    tokens = microbatch_size * model.sequence
    blocks = (_block(model, device, tokens, index) for index in range(model.num_blocks))
    return (_embedding(model, device, tokens), *blocks, _head(model, device, tokens))


def tensor_parallel(layers: Sequence[LayerProfile], degree: int) -> tuple[LayerProfile, ...]:
    """The layers as one of `degree` tensor-parallel devices sees them: all times, weights and activations divided evenly.

    What tensor parallelism itself communicates is left to the utilisation. The activation between stages is sent by all
    devices side by side, each its part (sequence parallelism; Korthikanti et al., section 4.2.2).
    """
    return tuple(
        replace(
            layer,
            forward_seconds=_rounded(layer.forward_seconds / degree),
            backward_input_seconds=_rounded(layer.backward_input_seconds / degree),
            backward_weight_seconds=_rounded(layer.backward_weight_seconds / degree),
            optimizer_seconds=_rounded(layer.optimizer_seconds / degree),
            accumulation_seconds=_rounded(layer.accumulation_seconds / degree),
            parameter_bytes=-(-layer.parameter_bytes // degree),
            gradient_bytes=-(-layer.gradient_bytes // degree),
            optimizer_bytes=-(-layer.optimizer_bytes // degree),
            activation_bytes=-(-layer.activation_bytes // degree),
            deferred_bytes=-(-layer.deferred_bytes // degree),
            output_bytes=-(-layer.output_bytes // degree),
        )
        for layer in layers
    )


def _embedding(model: Decoder, device: Accelerator, tokens: int) -> LayerProfile:
    """A gather forward (one row read, one written) and a scatter-add backward (gradient read, row read and written)."""
    row_bytes = model.hidden * ACTIVATION_BYTES
    return LayerProfile(
        name="embedding",
        forward_seconds=_rounded(2 * tokens * row_bytes / device.memory_bytes_per_second),
        backward_input_seconds=0.0,
        backward_weight_seconds=_rounded(3 * tokens * row_bytes / device.memory_bytes_per_second),
        optimizer_seconds=_update_seconds(model.embedding_parameters, device),
        parameter_bytes=model.embedding_parameters * WEIGHT_BYTES,
        gradient_bytes=model.embedding_parameters * GRADIENT_BYTES,
        optimizer_bytes=model.embedding_parameters * OPTIMIZER_BYTES,
        activation_bytes=8 * tokens,  # token ids
        output_bytes=tokens * row_bytes,
    )


def _block(model: Decoder, device: Accelerator, tokens: int, index: int) -> LayerProfile:
    matrix_flops = 2 * tokens * model.block_matrix_parameters
    attention_flops = 4 * tokens * model.sequence * model.hidden
    return LayerProfile(
        name=f"block{index:02d}",
        forward_seconds=_rounded((matrix_flops + attention_flops) / device.flops_per_second),
        backward_input_seconds=_rounded((matrix_flops + 2 * attention_flops) / device.flops_per_second),
        backward_weight_seconds=_rounded(matrix_flops / device.flops_per_second),
        optimizer_seconds=_update_seconds(model.block_parameters, device),
        parameter_bytes=model.block_parameters * WEIGHT_BYTES,
        gradient_bytes=model.block_parameters * GRADIENT_BYTES,
        optimizer_bytes=model.block_parameters * OPTIMIZER_BYTES,
        activation_bytes=tokens * _block_activation_bytes_per_token(model),
        deferred_bytes=tokens * _block_deferred_bytes_per_token(model),
        output_bytes=tokens * model.hidden * ACTIVATION_BYTES,
    )


def _head(model: Decoder, device: Accelerator, tokens: int) -> LayerProfile:
    """Final norm, output matrix and the loss over fp32 logits; what is shared is reduced and updated by its owner."""
    half_seconds = _rounded(2 * tokens * model.vocabulary * model.hidden / device.flops_per_second)
    own_parameters = model.norm_parameters if model.tied_head else model.head_parameters
    return LayerProfile(
        name="head",
        forward_seconds=half_seconds,
        backward_input_seconds=half_seconds,
        backward_weight_seconds=half_seconds,
        optimizer_seconds=_update_seconds(model.head_parameters, device),
        parameter_bytes=model.head_parameters * WEIGHT_BYTES,
        gradient_bytes=own_parameters * GRADIENT_BYTES,
        optimizer_bytes=model.head_parameters * OPTIMIZER_BYTES,
        activation_bytes=tokens * (2 * model.hidden * ACTIVATION_BYTES + 4 * model.vocabulary),
        deferred_bytes=tokens * (3 * model.hidden + model.vocabulary) * ACTIVATION_BYTES,
        output_bytes=0,
        tied_to="embedding" if model.tied_head else None,
    )


def _block_activation_bytes_per_token(model: Decoder) -> int:
    """Inputs that the backward pass of a block needs, after Korthikanti et al., Reducing activation recomputation, 4.1.

    Of hidden size: the inputs of two norms and what they yield, queries, keys, values, and what attention yields. Of
    feed-forward size: gate, its activation, up and their product, or the activation's input and output. Fused attention
    keeps one fp32 number per head in the place of the scores.
    """
    feed_forward = (4 if model.gated else 2) * model.feed_forward
    return ACTIVATION_BYTES * (8 * model.hidden + feed_forward) + 4 * model.heads


def _block_deferred_bytes_per_token(model: Decoder) -> int:
    """What a block's weight part needs: the inputs of its weights, and the gradients of what was computed from them.

    Of hidden size: of each norm its input, what it yields and that one's gradient; what attention yields; gradients of queries,
    keys, values and of both outputs that are added to the residual stream. Of feed-forward size: the input of the last matrix,
    and gradients of what the first one or two yield.
    """
    feed_forward = (3 if model.gated else 2) * model.feed_forward
    return ACTIVATION_BYTES * (12 * model.hidden + feed_forward)


def _update_seconds(num_parameters: int, device: Accelerator) -> float:
    return _rounded(num_parameters * UPDATE_TRAFFIC_BYTES / device.memory_bytes_per_second)


def _rounded(value: float) -> float:
    """To whole nanoseconds, so that files compare equal everywhere."""
    return round(value, 9)
