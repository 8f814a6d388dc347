"""What the agent makes of the parts of checkpoints that its workers write: whole ones, and nothing that stays of others."""

import os
from pathlib import Path

import pytest

from kintsugi.runtime.checkpoints.keeper import Keeper
from kintsugi.runtime.checkpoints.recording import CheckpointOptions, RunOptions
from kintsugi.runtime.checkpoints.snapshots import worker_part, write_part
from kintsugi.runtime.control.progress import Progress
from kintsugi.runtime.layout import CHECKPOINTS
from kintsugi.runtime.messages import PartFailed, PartWritten
from tests.runtime.jobs import odd_job

ATTEMPT, STEP = 1, 4
WORKERS = ("w00", "w01", "w02")


class Run:
    """A folder, the agent's keeper of it, and workers that write there."""

    def __init__(self, folder: Path) -> None:
        self.options = RunOptions.of(odd_job(), folder, mtbf_seconds=1.0, checkpoints=CheckpointOptions())
        self.keeper = Keeper(self.options, Progress())
        self.keeper.begin()
        self.keeper.expect(ATTEMPT, WORKERS)

    def write(self, worker: str, *, is_told: bool = True) -> None:
        """A worker writes its part, and tells so unless it is lost in between."""
        temporary = self.options.store.temporary(STEP, self.options.tag(ATTEMPT))
        files = write_part(temporary, worker_part(worker), {"worker": worker})
        if is_told:
            self.keeper.written(
                worker,
                PartWritten(
                    attempt=ATTEMPT,
                    step=STEP,
                    files=files,
                    snapshot_seconds=0.0,
                    backpressure_seconds=0.0,
                    write_seconds=0.0,
                    stall_seconds=0.0,
                ),
            )

    def on_disk(self) -> list[str]:
        folder = self.options.folder / CHECKPOINTS
        return sorted(os.listdir(folder)) if folder.exists() else []


@pytest.fixture
def run(tmp_path):
    made = Run(tmp_path)
    yield made
    made.keeper.close()


def test_all_parts_are_a_checkpoint(run):
    for worker in WORKERS:
        assert run.keeper.newest() is None
        run.write(worker)
    assert run.keeper.newest().step == STEP
    assert run.on_disk() == ["latest.json", f"step-{STEP:08d}"]


def test_who_is_lost_once_its_part_is_written_is_not_missed(run):
    run.write("w02")
    run.keeper.lost("w02")
    run.write("w00")
    run.write("w01")
    assert run.keeper.newest().step == STEP


def test_parts_of_a_checkpoint_whose_writer_was_lost_are_removed_as_they_come(run):
    """Others still write when it is given up: what they write afterwards belongs to nothing."""
    run.write("w00")
    run.keeper.lost("w02")
    assert run.on_disk() == []
    run.write("w01")
    assert run.on_disk() == []


def test_so_are_those_that_come_when_nobody_had_told_of_it_before(run):
    run.keeper.lost("w02")
    run.write("w00")
    assert run.on_disk() == []
    run.write("w01")
    assert run.on_disk() == []


def test_so_are_those_of_steps_that_are_undone_or_that_one_could_not_write(run):
    run.write("w00")
    run.keeper.failed("w01", PartFailed(ATTEMPT, STEP, "no space"))
    run.write("w02")
    assert run.on_disk() == []
    run.write("w00", is_told=False)
    run.keeper.failed("w02", PartFailed(ATTEMPT, STEP, "no such file"))
    assert run.on_disk() == []
    run.keeper.forget()
    run.write("w00")
    assert run.on_disk() == []


def test_a_loss_in_one_attempt_is_none_in_the_next(run):
    run.keeper.lost("w02")
    run.keeper.expect(ATTEMPT + 1, WORKERS)
    temporary = run.options.store.temporary(STEP, run.options.tag(ATTEMPT + 1))
    for worker in WORKERS:
        files = write_part(temporary, worker_part(worker), {"worker": worker})
        seconds = dict.fromkeys(("snapshot_seconds", "backpressure_seconds", "write_seconds", "stall_seconds"), 0.0)
        run.keeper.written(worker, PartWritten(attempt=ATTEMPT + 1, step=STEP, files=files, **seconds))
    assert run.keeper.newest().step == STEP


def test_a_checkpoint_is_hoped_for_while_every_part_is_there_or_on_its_way(run):
    run.write("w00")
    on_its_way = [(ATTEMPT, STEP)]
    assert run.keeper.is_hopeful({"w01": on_its_way, "w02": on_its_way})
    assert not run.keeper.is_hopeful({"w01": on_its_way, "w02": [(ATTEMPT, STEP + 1)]})
    assert not run.keeper.is_hopeful({"w01": on_its_way})
    run.keeper.failed("w01", PartFailed(ATTEMPT, STEP, "no space"))
    assert not run.keeper.is_hopeful({"w01": on_its_way, "w02": on_its_way})
    later, another = (((ATTEMPT, STEP + 1),), ((ATTEMPT + 1, STEP),))
    assert run.keeper.is_hopeful(dict.fromkeys(WORKERS, later))
    assert not run.keeper.is_hopeful(dict.fromkeys(WORKERS, another))
    run.keeper.forget()
    assert not run.keeper.is_hopeful(dict.fromkeys(WORKERS, later))
