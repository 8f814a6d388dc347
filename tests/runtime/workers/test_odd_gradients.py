"""Layers whose gradients are not the same in every micro-batch, or cannot be had in two parts, train and are profiled as others."""

import random
from dataclasses import replace
from functools import cache, partial

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from kintsugi.core.plan import Policy
from kintsugi.runtime.faults import fail_at
from kintsugi.runtime.layer import Layer
from kintsugi.runtime.measuring.profiler import profile_layers
from kintsugi.runtime.models import TrainingJob, model_shape
from kintsugi.runtime.result import RunResult
from tests.combinations import combined
from tests.runtime.jobs import WIDTH, odd_job
from tests.runtime.runs import assert_same, request_for, run

pytestmark = pytest.mark.processes


class First(nn.Linear):
    """Takes a field; trained or not."""

    def __init__(self, is_trained: bool) -> None:
        super().__init__(WIDTH, WIDTH)
        self.requires_grad_(is_trained)

    def forward(self, *, values: Tensor) -> Tensor:
        return super().forward(values)


class Dropped(nn.Linear):
    """Left out in one micro-batch of four (layer drop), where what it returns needs no gradient if what it takes does not."""

    def __init__(self) -> None:
        super().__init__(WIDTH, WIDTH)

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden if random.random() < 0.25 else hidden + super().forward(hidden).tanh()


class Reentrant(nn.Linear):
    """Computes again in a backward pass of its own."""

    def __init__(self) -> None:
        super().__init__(WIDTH, WIDTH)

    def forward(self, hidden: Tensor) -> Tensor:
        computed = checkpoint(lambda own: super(Reentrant, self).forward(own).tanh(), hidden, use_reentrant=True)
        assert isinstance(computed, Tensor)
        return hidden + computed


def job_of(kind: type[nn.Module]) -> TrainingJob:
    job = odd_job()
    layers = [Layer(name=f"layer{number}", build=kind) for number in range(5)]
    first = Layer(name="first", build=partial(First, is_trained=kind is Reentrant), inputs=("values",))
    return replace(job, layers=[first, *layers], seed=_SEED)


_SEED = 1
"""Of which the first layer is not left out of the first micro-batch."""
JOBS = {kind.__name__: partial(job_of, kind) for kind in (Dropped, Reentrant)}


@cache
def reference(name: str) -> RunResult:
    return run(JOBS[name], request_for(JOBS[name](), 2, 3))


def test_what_is_announced_is_a_gradient():
    assert [spec.requires_grad for (spec,) in model_shape(JOBS["Dropped"]()).boundaries[1:]] == [False, *[True] * 5]


@combined("name, policy", tuple(JOBS), [Policy.DATA_REROUTING, Policy.DYNAMIC_PARALLELISM])
def test_a_worker_is_killed(name, policy):
    assert_same(run(JOBS[name], request_for(JOBS[name](), 2, 3, policy), fail_at(1, "w04", "backward")), reference(name))


@pytest.mark.parametrize("name", JOBS)
def test_they_are_profiled(name):
    measured = profile_layers(JOBS[name](), repeats=3)
    assert all(layer.forward_seconds > 0 for layer in measured.profiles)
    if name == "Reentrant":
        assert all(layer.backward_weight_seconds < layer.backward_input_seconds for layer in measured.profiles[2:])


def test_a_stage_alone_trains_the_same():
    job = JOBS["Dropped"]()
    assert torch.tensor(run(JOBS["Dropped"], request_for(job, 1, 1)).losses).allclose(torch.tensor(reference("Dropped").losses))
