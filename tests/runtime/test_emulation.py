"""Emulated layers sleep when and as long as they are told, and compute what a layer computes."""

import pytest
import torch

from kintsugi.runtime import emulation
from kintsugi.runtime.emulation import EmulatedLayer, EmulatedTimes, emulated_job
from kintsugi.runtime.models import build_layer, model_shape

TIMES = EmulatedTimes(forward_seconds=1.0, backward_input_seconds=2.0, backward_weight_seconds=4.0)


@pytest.fixture
def slept(monkeypatch):
    """Every sleep that was asked for and is longer than nothing, instead of sleeping."""
    seconds = []
    monkeypatch.setattr(emulation.time, "sleep", lambda value: seconds.append(value) if value else None)
    return seconds


@pytest.fixture
def layer():
    return EmulatedLayer(TIMES, 3)


def test_forward_sleeps_its_time(layer, slept):
    hidden = torch.ones(2, 3)
    assert torch.equal(layer(hidden), hidden * layer.weight)
    assert slept == [1.0]


def test_whole_backward_sleeps_both_parts(layer, slept):
    layer(torch.ones(2, 3, requires_grad=True)).sum().backward()
    assert sorted(slept) == [1.0, 2.0, 4.0]


def test_gradient_of_the_input_alone_sleeps_the_input_part(layer, slept):
    hidden = torch.ones(2, 3, requires_grad=True)
    torch.autograd.grad(layer(hidden).sum(), [hidden])
    assert slept == [1.0, 2.0]


def test_first_layer_has_no_input_part(layer, slept):
    layer(values=torch.ones(2, 1)).sum().backward()
    assert slept == [1.0, 4.0]


def test_gradients_are_those_of_the_product(layer, slept):
    hidden = torch.randn(2, 3, requires_grad=True)
    layer(hidden).sum().backward()
    assert torch.allclose(hidden.grad, layer.weight.detach().expand(2, 3))
    assert torch.allclose(layer.weight.grad, hidden.detach().sum(0))


def test_tracing_shapes_does_not_sleep(slept):
    shape = model_shape(emulated_job([TIMES] * 3, num_microbatches=4, num_steps=1, width=8, microbatch_size=2))
    assert slept == []
    assert [spec.shape for boundary in shape.boundaries[1:] for spec in boundary] == [(2, 8)] * 3


def test_layers_are_the_same_in_every_process():
    job = emulated_job([TIMES] * 2, num_microbatches=4, num_steps=1)
    assert torch.equal(build_layer(job, 1).weight, build_layer(job, 1).weight)
    assert not torch.equal(build_layer(job, 0).weight, build_layer(job, 1).weight)


def test_samples_depend_on_their_index_alone():
    first, second = (emulated_job([TIMES], num_microbatches=4, num_steps=1).dataset for _ in range(2))
    assert torch.equal(first[3]["values"], second[3]["values"])
    assert not torch.equal(first[3]["values"], first[2]["values"])
