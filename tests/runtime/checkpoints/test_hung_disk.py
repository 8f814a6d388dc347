"""The agent waits for a disk that hangs only where it needs its answer, and says so."""

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from kintsugi.core.errors import UnavailableError
from kintsugi.runtime.checkpoints import bookkeeper
from kintsugi.runtime.checkpoints.bookkeeper import Bookkeeper
from kintsugi.runtime.checkpoints.recording import CheckpointOptions, RunOptions
from kintsugi.runtime.faults import FaultScript
from kintsugi.runtime.layout import CHECKPOINTS, LATEST
from kintsugi.runtime.messages import PartFailed, PartWritten, Restore
from tests.patience import PATIENCE_SECONDS, eventually
from tests.runtime.checkpoints.test_keeper import ATTEMPT, SECONDS, STEP, Run
from tests.runtime.hung_disk import await_threads, hung
from tests.runtime.jobs import odd_job


@contextmanager
def hanging(run: Run, path: Path) -> Iterator[None]:
    """What `hung` says; a second is enough to find it out, and a disk that answers has more."""
    patient = run.keeper._options
    run.keeper._options = replace(patient, checkpoints=replace(patient.checkpoints, disk_timeout_seconds=1.0))
    try:
        with hung(path):
            yield
    finally:
        run.keeper._options = patient


@pytest.fixture
def begun(tmp_path):
    made = Run(tmp_path, every_steps=1)
    made.begin()
    made.write_all(step=STEP - 1)
    assert made.keeper.newest().step == STEP - 1
    return made


def test_a_disk_that_hangs_keeps_the_agent_from_nothing_but_what_it_has_to_read(begun):
    """What it needs and does not get is an error that names the folder; it goes on with everything else, and ends."""
    keeper = begun.keeper
    with hanging(begun, begun.options.folder / CHECKPOINTS / f".{LATEST}.new"):
        begun.write_all()
        keeper.written("w00", PartWritten(attempt=ATTEMPT, step=STEP + 1, files={}, **SECONDS))
        keeper.failed("w01", PartFailed(ATTEMPT, STEP + 1, "no space"))
        assert keeper.look() is None
        with pytest.raises(UnavailableError, match=r"run: has not answered for 1 s: mend what its disk is on") as caught:
            keeper.newest()
        assert caught.value.value == str(begun.options.folder)
        with capture_logs() as logs:
            assert eventually(lambda: keeper.look() or logs)
            keeper.look()
            keeper.close()
            keeper.close()
        assert [log["event"].partition("; ")[2] for log in logs] == [
            "until it does none is committed",
            "the last ones may be missing",
        ], "each is told once"
        assert [record.step for record in keeper.costs.records] == [STEP - 1]
    await_threads("keeper")


def test_a_disk_that_answers_again_is_gone_on_with(begun):
    with hanging(begun, begun.options.folder / CHECKPOINTS / f".{LATEST}.new"):
        begun.write_all()
        with pytest.raises(UnavailableError):
            begun.keeper.newest()
    begun.settle()
    begun.write_all(step=STEP + 1)
    assert begun.keeper.newest().step == STEP + 1
    begun.keeper.close()


def test_a_disk_that_hangs_at_the_beginning_is_named(tmp_path):
    run = Run(tmp_path)
    with hanging(run, tmp_path / CHECKPOINTS / LATEST):
        with pytest.raises(UnavailableError, match="run: has not answered"):
            run.keeper.begin()
        run.keeper.close()


def test_a_worker_whose_layers_the_disk_does_not_give_says_so(tmp_path, monkeypatch):
    """It was lost for its silence, or ended the job as the user's own code does."""
    impatient = CheckpointOptions(disk_timeout_seconds=0.1)
    options = RunOptions.of(odd_job(), tmp_path, mtbf_seconds=1.0, checkpoints=impatient)
    books = Bookkeeper("w00", options, FaultScript("w00", (), lambda _: None), lambda _: None)
    answers = threading.Event()

    def read(given, expected, match):
        monkeypatch.setattr(bookkeeper, "read_layers", given)
        with pytest.raises(expected, match=match):
            books.read(Restore(tmp_path / "step-00000004", (0,), is_whole=False), [0], None, lambda: None)

    def broken(number):
        raise OSError(number, os.strerror(number))

    read(lambda *_: broken(errno.EIO), UnavailableError, "run: step-00000004 cannot be read: Input/output error; mend what its")
    read(lambda *_: broken(errno.EMFILE), OSError, "Too many open files")
    read(lambda *_: answers.wait(PATIENCE_SECONDS), UnavailableError, r"run: has not answered for 0.1 s: mend what its disk is on")
    answers.set()
    assert books._disk.close(PATIENCE_SECONDS)
