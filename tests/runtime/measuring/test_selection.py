"""Layers that are alike are measured once, and what is measured comes back for all of them."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from kintsugi.runtime.gpt import gpt2_medium_job
from kintsugi.runtime.layer import Layer
from kintsugi.runtime.llama import llama2_7b_job
from kintsugi.runtime.measuring.selection import distinct_job, distinct_layers, whole
from kintsugi.runtime.measuring.sweeper import Sweeper
from kintsugi.runtime.models import TrainingJob, model_shape
from tests.runtime.jobs import odd_job, stateless, tiny_gpt


@pytest.mark.parametrize("make_job", [llama2_7b_job, gpt2_medium_job])
def test_of_equal_blocks_one_is_measured(make_job):
    job = make_job()
    selection = distinct_layers(job)
    assert len(selection.job.layers) == 3
    assert selection.stands_for == (0, *[1] * (len(job.layers) - 2), 2)
    assert selection.expanded("abc") == ["a", *"b" * (len(job.layers) - 2), "c"]
    assert [layer.name for layer in distinct_job(make_job).layers] == [layer.name for layer in selection.job.layers]


def test_layers_that_share_parameters_stay_with_those_they_share_them_with():
    job = odd_job()
    selection = distinct_layers(job)
    assert [layer.name for layer in selection.job.layers] == ["entry", "mixer1", "mixer3", "mixer5", "exit"]
    assert selection.stands_for == (0, 3, 1, 3, 2, 3, 3, 4)


def test_the_whole_stands_for_itself():
    job = tiny_gpt()
    assert whole(job).job is job
    assert whole(job).expanded(range(8)) == list(range(8))


def test_bytes_of_the_selection_are_those_of_the_whole():
    job = tiny_gpt()
    selection = distinct_layers(job)

    def seen(samples):
        return [(s.parameter_bytes, s.gradient_bytes, s.optimizer_bytes, s.footprint) for s in samples]

    assert seen(selection.expanded(Sweeper(selection.job).warmed_up())) == seen(Sweeper(job).warmed_up())


class Start(nn.Module):
    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values


class Resize(nn.Module):
    """[B, n] to [B, size]."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self._size = size

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values[:, :1].expand(-1, self._size)


def chain(sizes: list[int]) -> TrainingJob:
    """Layers that make so many numbers of what they are given; of one kind where both sizes are the same."""
    layers = [Layer(name=f"layer{n}", build=partial(Resize, size)) for n, size in enumerate(sizes)]
    return TrainingJob(
        layers=[Layer(name="start", build=Start, inputs=("values",)), *layers],
        optimizer=stateless,
        loss=lambda outputs, _: outputs[0].sum(),
        dataset=[{"values": torch.zeros(2)}],
        microbatch_size=1,
        num_microbatches=1,
        num_steps=1,
    )


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 3), min_size=1, max_size=14))
def test_every_kind_is_there_in_a_chain_that_fits_together(sizes):
    job = chain(sizes)
    selection = distinct_layers(job)
    before, after = model_shape(job).boundaries, model_shape(selection.job).boundaries
    assert list(selection.job.layers) == [layer for layer in job.layers if layer in selection.job.layers]
    for index, place in enumerate(selection.stands_for):
        assert before[index : index + 2] == after[place : place + 2]
        assert index == 0 or job.layers[index].build.args == selection.job.layers[place].build.args


def resized(sizes: list[int]) -> Resize:
    return Resize(*sizes)


def test_arguments_that_cannot_be_compared_are_told_apart_by_the_callable():
    job = chain([2, 2, 2])
    start, *others = job.layers
    one = partial(resized, [2])
    for builds, kept in (([one, one, one], 3), ([partial(resized, [2]) for _ in others], 4)):
        layers = [start, *(replace(layer, build=build) for layer, build in zip(others, builds, strict=True))]
        assert len(distinct_layers(replace(job, layers=layers)).job.layers) == kept
