"""What a plain script is told of a disk that hangs in the middle of something."""

import threading
from contextlib import closing

import pytest
import structlog
from torch import nn, optim

from kintsugi.core.errors import UnavailableError
from kintsugi.runtime import plain
from kintsugi.runtime.checkpoints.checkpoint import CheckpointStore
from kintsugi.runtime.checkpoints.recording import CheckpointOptions
from kintsugi.runtime.layout import RECORDS
from kintsugi.runtime.plain import PlainRun
from kintsugi.runtime.supervising.supervisor import latest_step
from tests.patience import PATIENCE_SECONDS
from tests.runtime.hung_disk import await_threads, hung

NUM_STEPS = 4


def begun(folder, seconds=120.0):
    options = CheckpointOptions(every_steps=2, strategy="blocking", disk_timeout_seconds=seconds)
    return PlainRun(folder, num_samples=8, global_batch_size=2, num_steps=NUM_STEPS, checkpoints=options)


def trained(run, stop):
    model = nn.Linear(3, 1)
    for step in range(run.restore(model, optim.SGD(model.parameters(), lr=0.1)), stop):
        run.commit(step, 1.0)


def test_a_state_that_the_disk_does_not_give_is_told(tmp_path, monkeypatch):
    """Its files were read once already, to compare them."""
    with closing(begun(tmp_path)) as run:
        trained(run, 3)
    answers, read = threading.Event(), plain.read_part
    monkeypatch.setattr(plain, "read_part", lambda *told: answers.wait(PATIENCE_SECONDS) and read(*told))
    with closing(begun(tmp_path, 2.0)) as run:
        with pytest.raises(
            UnavailableError, match=r"run: has not answered for 2 s: mend what its disk is on, and train again in it"
        ):
            trained(run, NUM_STEPS)
        answers.set()
        await_threads("run")


def test_a_checkpoint_that_is_whole_is_told_so_though_its_line_is_held_up(tmp_path):
    """That it could not be written was false."""
    with hung(tmp_path / RECORDS), structlog.testing.capture_logs() as logs, closing(begun(tmp_path, 0.5)) as run:
        trained(run, NUM_STEPS)
        assert latest_step(tmp_path) == 2
    told = [(log["step"], log["event"].partition(";")[0].partition(",")[0]) for log in logs if log["log_level"] == "warning"]
    assert told == [(2, "a checkpoint is whole"), (4, "a checkpoint could not be written")]
    await_threads("checkpoint")


def test_a_state_that_the_disk_gives_no_more_is_told(tmp_path, monkeypatch):
    """It was an error of the system's, without a way out."""
    with closing(begun(tmp_path)) as run:
        trained(run, 3)
    newest = CheckpointStore.newest

    def compared(store, moved):
        found = newest(store, moved)
        (found.folder / "state" / ".metadata").unlink()
        return found

    monkeypatch.setattr(CheckpointStore, "newest", compared)
    with closing(begun(tmp_path)) as run, pytest.raises(UnavailableError, match=r"step-00000002 cannot be read: .*; mend what its"):
        trained(run, NUM_STEPS)
