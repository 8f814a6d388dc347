"""Analytical layers follow the formulas they state."""

from dataclasses import replace

import pytest

from estimator.analytical import Accelerator, Decoder, decoder_layers

DEVICE = Accelerator(flops_per_second=1e12, memory_bytes_per_second=1e11)
TINY = Decoder(
    num_blocks=3,
    hidden=8,
    heads=2,
    feed_forward=32,
    gated=False,
    vocabulary=100,
    positions=16,
    tied_head=True,
    sequence=16,
)
LARGE = replace(TINY, hidden=1024, feed_forward=4096, sequence=1024)


def test_one_layer_each_for_embedding_and_head():
    layers = decoder_layers(TINY, DEVICE, microbatch_size=2)
    assert [layer.name for layer in layers] == ["embedding", "block00", "block01", "block02", "head"]
    assert layers[-1].tied_to == "embedding"


def test_bytes_of_a_block_by_hand():
    block = decoder_layers(TINY, DEVICE, microbatch_size=2)[1]
    parameters = (4 * 8 * 8 + 4 * 8) + (2 * 8 * 32 + 32 + 8) + 2 * 2 * 8
    assert (block.parameter_bytes, block.gradient_bytes, block.optimizer_bytes) == (2 * parameters, 2 * parameters, 12 * parameters)
    assert block.output_bytes == 2 * 16 * 8 * 2
    assert block.activation_bytes == 2 * 16 * (2 * 8 * 8 + 2 * 2 * 32 + 4 * 2)
    assert block.deferred_bytes == 2 * 16 * (2 * 12 * 8 + 2 * 2 * 32)


def test_seconds_of_a_block_by_hand():
    block = decoder_layers(LARGE, DEVICE, microbatch_size=1)[1]
    matrices = 2 * 1024 * 12 * 1024**2
    attention = 4 * 1024 * 1024 * 1024
    assert block.forward_seconds == pytest.approx((matrices + attention) / 1e12, abs=1e-9)
    assert block.backward_seconds == pytest.approx(2 * (matrices + attention) / 1e12, abs=2e-9)
    assert block.backward_weight_seconds == pytest.approx(matrices / 1e12, abs=1e-9)


def test_tied_head_holds_the_matrix_but_does_not_reduce_it():
    tied = decoder_layers(TINY, DEVICE, microbatch_size=1)[-1]
    own = decoder_layers(replace(TINY, tied_head=False), DEVICE, microbatch_size=1)[-1]
    assert tied.parameter_bytes == own.parameter_bytes
    assert own.gradient_bytes - tied.gradient_bytes == 2 * 100 * 8
    assert own.tied_to is None


def test_a_twice_as_fast_device_takes_half_the_time():
    fast = Accelerator(flops_per_second=2e12, memory_bytes_per_second=2e11)
    for slow, quick in zip(
        decoder_layers(LARGE, DEVICE, microbatch_size=1), decoder_layers(LARGE, fast, microbatch_size=1), strict=True
    ):
        assert quick.forward_seconds == pytest.approx(slow.forward_seconds / 2, abs=1e-9)
        assert quick.optimizer_seconds == pytest.approx(slow.optimizer_seconds / 2, abs=1e-9)


def test_time_and_activations_grow_with_the_microbatch_but_parameters_do_not():
    one, two = (decoder_layers(LARGE, DEVICE, microbatch_size=size)[1] for size in (1, 2))
    assert two.forward_seconds == pytest.approx(2 * one.forward_seconds, abs=2e-9)
    assert two.activation_bytes == 2 * one.activation_bytes
    assert two.parameter_bytes == one.parameter_bytes
