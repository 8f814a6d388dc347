"""What a plain script does between its steps, and what of it a checkpoint has."""

import os
from pathlib import Path

import pytest
import structlog
import torch
from torch import nn

from kintsugi.runtime.checkpoints.recording import CheckpointOptions
from kintsugi.runtime.layout import LIFE_LOCK
from kintsugi.runtime.plain import PlainRun
from tests.core.refusals import refuses


def rates(folder: Path, stop: int, when: str) -> tuple[list[float], list[str]]:
    """Learning rates of the steps of one life, and what was warned of."""
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
    options = CheckpointOptions(every_steps=3)
    trained = []
    with structlog.testing.capture_logs() as log:
        run = PlainRun(folder, num_samples=8, global_batch_size=2, num_steps=8, checkpoints=options)
        for step in range(run.restore(model, optimizer, scheduler), stop):
            if when == "first":
                scheduler.step()
            run.samples(step)
            optimizer.step()
            trained.append(optimizer.param_groups[0]["lr"])
            if when == "before":
                scheduler.step()
            run.commit(step, 1.0)
            if when == "after":
                scheduler.step()
        run.close()
    return trained, [line["event"] for line in log if line["log_level"] == "warning"]


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
@pytest.mark.parametrize("when", ["first", "before"])
def test_a_scheduler_goes_on_whether_it_is_stepped_first_or_before_the_commit(tmp_path, when):
    whole, told = rates(tmp_path / "whole", 8, when)
    before, _ = rates(tmp_path / "parts", 6, when)
    after, told_again = rates(tmp_path / "parts", 8, when)
    assert (before[:3], after) == (whole[:3], whole[6:])
    assert told + told_again == []


def test_a_scheduler_that_is_stepped_after_the_commit_is_told_of_once(tmp_path):
    _, told = rates(tmp_path, 6, "after")
    assert len(told) == 1
    assert told[0].startswith("the scheduler is stepped after commit, so checkpoints lack it: step it before")


@pytest.mark.parametrize("loss", [0.1, 1e39, torch.tensor(0.1, dtype=torch.float64)])
def test_a_loss_is_told_as_exactly_as_it_was_given(tmp_path, loss):
    model = nn.Linear(2, 1)
    run = PlainRun(tmp_path, num_samples=8, global_batch_size=2, num_steps=8)
    run.restore(model, torch.optim.SGD(model.parameters(), lr=1.0))
    assert run.mean(loss) == float(loss)
    assert run.commit(0, loss) == float(loss)
    run.close()


def test_a_run_whose_end_is_interrupted_leaves_its_folder(tmp_path, monkeypatch):
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    run = PlainRun(tmp_path, num_samples=8, global_batch_size=2, num_steps=8)
    assert has_open(tmp_path / LIFE_LOCK)
    monkeypatch.setattr(run._writer, "drain", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run.close()
    assert not has_open(tmp_path / LIFE_LOCK)


def has_open(path: Path) -> bool:
    """Whether this process holds the file open."""
    held = (Path("/proc/self/fd") / number for number in os.listdir("/proc/self/fd"))
    return any(os.path.realpath(descriptor) == str(path) for descriptor in held)


class Keeping(nn.Linear):
    """With one more buffer."""

    def __init__(self, kept: torch.Tensor) -> None:
        super().__init__(2, 1)
        self.register_buffer("kept", kept)


def restored(folder: Path, kept: torch.Tensor, stop: int = 0) -> None:
    model = Keeping(kept)
    run = PlainRun(folder, num_samples=8, global_batch_size=2, num_steps=8, checkpoints=CheckpointOptions(every_steps=1))
    try:
        for step in range(run.restore(model, torch.optim.SGD(model.parameters(), lr=1.0)), stop):
            run.samples(step)
            run.commit(step, 1.0)
    finally:
        run.close()


@pytest.mark.parametrize(
    ("kept", "told"), [(torch.eye(3).to_sparse(), "'kept' is sparse"), (torch.ones(1).expand(3), "'kept' is expanded")]
)
def test_tensors_that_no_checkpoint_is_loaded_into_are_refused_before_anything_is_trained(tmp_path, kept, told):
    with refuses("model", "kept", told):
        restored(tmp_path, kept)


@pytest.mark.parametrize(
    ("was", "now"), [(torch.complex64, torch.float32), (torch.float32, torch.int64), (torch.int64, torch.bool)], ids=str
)
def test_numbers_are_not_taken_for_those_of_another_type(tmp_path, was, now):
    restored(tmp_path, torch.ones(3, dtype=was), stop=2)
    restored(tmp_path, torch.ones(3, dtype=was), stop=3)
    with refuses("model", "kept", "in the checkpoint"):
        restored(tmp_path, torch.ones(3, dtype=now))
