"""Layers that differ from worker to worker before the first step are told, not trained apart."""

import os
import random
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Subset

from kintsugi.core.errors import InvalidInputError
from kintsugi.runtime.control.agent import Agent
from kintsugi.runtime.control.decisions import LocalDecisions
from kintsugi.runtime.layer import Layer
from kintsugi.runtime.models import TrainingJob
from kintsugi.runtime.options import AgentOptions, Governance
from tests.runtime.jobs import WIDTH, odd_job
from tests.runtime.runs import assert_same, leaves_nothing, request_for, run


class Drawn(nn.Module):
    """Scales by what the system's own source of randomness gives."""

    def __init__(self, kept: str) -> None:
        super().__init__()
        scale = torch.tensor(list(os.urandom(WIDTH)), dtype=torch.float64) / 255
        if kept == "parameter":
            self.scale = nn.Parameter(scale)
        else:
            self.register_buffer("scale", scale)

    def forward(self, hidden: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        return hidden * self.scale, residual


def drawing_parameters() -> TrainingJob:
    return drawing("parameter")


def drawing_buffers() -> TrainingJob:
    return drawing("buffer")


def drawing(kept: str) -> TrainingJob:
    job = odd_job()
    return replace(job, layers=[*job.layers[:-1], Layer(name="drawn", build=lambda: Drawn(kept)), job.layers[-1]])


@pytest.mark.processes
@pytest.mark.parametrize(("make_job", "governance"), [(drawing_parameters, Governance.AGENT), (drawing_buffers, Governance.RING)])
def test_a_layer_that_begins_apart_on_its_workers_is_refused_with_its_name(make_job, governance):
    options = AgentOptions(governance=governance)
    with (
        leaves_nothing(),
        pytest.raises(InvalidInputError, match="layer 'drawn' does not begin with the same values on all of its workers"),
        Agent(make_job, request_for(make_job(), 2, 3), LocalDecisions(), options=options) as agent,
    ):
        agent.run()


@pytest.mark.processes
def test_a_layer_with_one_holder_may_begin_as_it_likes():
    with leaves_nothing(), Agent(drawing_buffers, request_for(drawing_buffers(), 1, 3), LocalDecisions()) as agent:
        assert len(agent.run().losses) == drawing_buffers().num_steps


def held_out() -> TrainingJob:
    job = odd_job()
    kept = random.sample(range(len(job.dataset)), 80)
    return replace(job, dataset=Subset(job.dataset, kept))  # type: ignore[arg-type]


@pytest.mark.processes
def test_samples_that_are_chosen_while_the_job_is_made_are_the_same_in_every_process():
    alone, among_six = (run(held_out, request_for(held_out(), *grid)) for grid in ((1, 1), (2, 3)))
    assert_same(among_six, alone)
