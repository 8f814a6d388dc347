"""Slips of a plain script that would be found by nobody: refused by name, with the way out."""

from contextlib import closing

import pytest
import torch
from torch import nn

from kintsugi.runtime.checkpoints.recording import CheckpointOptions
from kintsugi.runtime.plain import PlainRun
from tests.core.refusals import refuses


@pytest.fixture
def run(tmp_path):
    options = CheckpointOptions(every_steps=1)
    with closing(PlainRun(tmp_path, num_samples=4, global_batch_size=2, num_steps=5, checkpoints=options)) as run:
        yield run


def sgd(*modules: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([parameter for module in modules for parameter in module.parameters()], lr=0.1)


def test_a_parameter_that_the_model_has_not_is_refused_as_nothing_would_restore_it(run):
    model, loss = nn.Linear(3, 1), nn.PReLU(7)
    with refuses("optimizer.param_groups.0.params.2", None, "a tensor of shape (7,) that would stay behind"):
        run.restore(model, sgd(model, loss))


def test_a_buffer_may_be_trained(run):
    model = nn.Linear(3, 1)
    model.register_buffer("scale", torch.ones(1, requires_grad=True))
    assert run.restore(model, torch.optim.SGD([*model.parameters(), model.scale], lr=0.1)) == 0


@pytest.mark.parametrize("step", [-1, 0, 2, 99])
def test_a_step_that_is_not_the_next_is_not_committed(tmp_path, run, step):
    model = nn.Linear(3, 1)
    assert run.restore(model, sgd(model)) == 0
    run.commit(0, 1.0)
    with refuses("step", step, "is not the one that comes next, 1: commit every step once, in order"):
        run.commit(step, 1.0)
    run.close()
    with closing(PlainRun(tmp_path, num_samples=4, global_batch_size=2, num_steps=5)) as later:
        assert later.restore(model, sgd(model)) == 1


def test_what_comes_before_restore_is_told_to_come_after(run):
    for call in (lambda: run.samples(0), lambda: run.commit(0, 1.0)):
        with refuses("restore", None, "is to be called first"):
            call()
