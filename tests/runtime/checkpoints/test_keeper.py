"""What the agent makes of the parts of checkpoints that its workers write: whole ones, and nothing that stays of others."""

import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from kintsugi.core.codec import loads
from kintsugi.runtime.checkpoints.advice import CheckpointRecord
from kintsugi.runtime.checkpoints.keeper import Keeper
from kintsugi.runtime.checkpoints.manifest import MANIFEST, Checkpoint
from kintsugi.runtime.checkpoints.recording import CheckpointOptions, RunOptions
from kintsugi.runtime.checkpoints.snapshots import worker_part, write_part
from kintsugi.runtime.control.progress import Progress
from kintsugi.runtime.layout import CHECKPOINTS, RECORDS
from kintsugi.runtime.messages import PartFailed, PartWritten, StepDone
from tests.core.refusals import refuses
from tests.runtime.jobs import odd_job

ATTEMPT, STEP = 1, 4
WORKERS = ("w00", "w01", "w02")
SECONDS = dict.fromkeys(("snapshot_seconds", "backpressure_seconds", "write_seconds", "stall_seconds"), 0.1)


class Run:
    """A folder, the agent's keeper of it, and workers that write there."""

    def __init__(self, folder: Path, **checkpoints: float | None) -> None:
        self.options = RunOptions.of(odd_job(), folder, mtbf_seconds=1_000.0, checkpoints=CheckpointOptions(**checkpoints))
        self.progress = Progress()
        self.keeper = Keeper(self.options, self.progress)

    def begin(self) -> Checkpoint | None:
        found = self.keeper.begin()
        self.keeper.expect(ATTEMPT, WORKERS)
        return found

    def write(self, worker: str, *, attempt: int = ATTEMPT, step: int = STEP, is_told: bool = True) -> None:
        """A worker writes its part, and tells so unless it is lost in between."""
        self.settle()
        files = write_part(self.temporary(attempt, step), worker_part(worker), {"worker": worker})
        if is_told:
            self.keeper.written(worker, PartWritten(attempt=attempt, step=step, files=files, **SECONDS))

    def write_all(self, **place: int) -> None:
        for worker in WORKERS:
            self.write(worker, **place)

    def settle(self) -> None:
        """What the keeper's thread was asked for is done."""
        self.keeper._disk.do(lambda: None).result(240.0)

    def temporary(self, attempt: int = ATTEMPT, step: int = STEP) -> Path:
        return self.options.store.temporary(step, self.options.tag(attempt))

    def on_disk(self) -> list[str]:
        self.settle()
        folder = self.options.folder / CHECKPOINTS
        return sorted(os.listdir(folder)) if folder.exists() else []


def done(step: int) -> StepDone:
    return StepDone(attempt=ATTEMPT, step=step, loss=0.0, seconds=0.5, at=0.0, microbatches=(1,))


@pytest.fixture
def run(tmp_path):
    made = Run(tmp_path)
    made.begin()
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
    run.keeper.forget(0)
    run.write("w00", step=STEP + 1)
    assert run.on_disk() == []


def test_a_loss_in_one_attempt_is_none_in_the_next(run):
    run.keeper.lost("w02")
    run.keeper.expect(ATTEMPT + 1, WORKERS)
    run.write_all(attempt=ATTEMPT + 1)
    assert run.keeper.newest().step == STEP


def test_who_was_no_writer_is_not_missed(run):
    run.keeper.lost("w03")
    run.write("w00")
    run.keeper.lost("w04")
    run.write("w01")
    run.write("w02")
    assert run.keeper.newest().step == STEP


def test_a_checkpoint_is_hoped_for_while_every_part_is_there_or_on_its_way(run):
    run.write("w00")
    on_its_way = [(ATTEMPT, STEP)]
    assert run.keeper.is_hopeful({"w01": on_its_way, "w02": on_its_way})
    assert not run.keeper.is_hopeful({"w01": on_its_way, "w02": [(ATTEMPT, STEP + 1)]})
    assert not run.keeper.is_hopeful({"w01": on_its_way})
    run.keeper.failed("w01", PartFailed(ATTEMPT, STEP, "no space"))
    assert not run.keeper.is_hopeful(dict.fromkeys(WORKERS, tuple(on_its_way)))
    later, another = (((ATTEMPT, STEP + 1),), ((ATTEMPT + 1, STEP),))
    assert run.keeper.is_hopeful(dict.fromkeys(WORKERS, later))
    assert not run.keeper.is_hopeful(dict.fromkeys(WORKERS, another))
    run.keeper.forget(0)
    assert not run.keeper.is_hopeful(dict.fromkeys(WORKERS, later))


def test_a_complete_checkpoint_is_hoped_for_no_more(run):
    run.write_all()
    assert not run.keeper.is_hopeful(dict.fromkeys(WORKERS, ((ATTEMPT, STEP),)))


def test_a_checkpoint_holds_the_files_of_all_its_parts(run):
    run.write_all()
    newest = run.keeper.newest()
    newest.verify()
    assert {Path(name).parts[0] for name in newest.manifest.files} == {worker_part(worker) for worker in WORKERS}


def test_what_a_checkpoint_cost_is_written_down_and_says_how_often_they_are_best_written(run):
    run.progress.take(done(0))
    assert run.keeper.look() is None
    assert run.keeper.every_steps is None
    run.write_all()
    run.keeper.newest()
    assert [record.step for record in run.keeper.costs.records] == [STEP]
    assert loads(CheckpointRecord, (run.options.folder / RECORDS).read_text()) == run.keeper.costs.records[0]
    best = run.keeper.costs.advice.every_steps
    assert run.keeper.every_steps == best > 1
    assert run.keeper.look() == best
    assert run.keeper.look() is None, "it is told once"
    run.write_all(step=STEP + 1)
    run.keeper.close()
    assert [record.step for record in run.keeper.costs.records] == [STEP, STEP + 1]


def test_commits_are_taken_in_once_they_are_done(run):
    run.write_all()
    run.keeper._commits[0].result(240.0)
    run.keeper.look()
    run.keeper.look()
    assert [record.step for record in run.keeper.costs.records] == [STEP]
    assert run.keeper._commits == []


def test_an_interval_that_was_asked_for_is_kept_to(tmp_path):
    run = Run(tmp_path, every_steps=7)
    run.begin()
    run.write_all()
    run.keeper.newest()
    assert run.keeper.every_steps == 7
    assert run.keeper.look() is None
    run.keeper.close()


def test_a_checkpoint_that_cannot_be_committed_is_removed_and_told_of(run):
    run.write_all(step=STEP - 1)
    (run.temporary() / MANIFEST).mkdir(parents=True)
    with capture_logs() as logs:
        run.write_all()
        assert run.keeper.newest().step == STEP - 1
    [told] = [log for log in logs if log["log_level"] == "warning"]
    assert (told["event"], told["step"]) == ("a checkpoint could not be committed; the previous one stays", STEP)
    assert "Is a directory" in told["reason"]
    assert run.on_disk() == ["latest.json", f"step-{STEP - 1:08d}"]
    assert [record.step for record in run.keeper.costs.records] == [STEP - 1]


def test_what_is_left_at_the_end_is_committed_or_removed(run):
    run.write_all()
    run.write("w00", step=STEP + 1)
    run.keeper.close()
    assert not any(thread.name.startswith("keeper") for thread in threading.enumerate())
    assert run.on_disk() == ["latest.json", f"step-{STEP:08d}"]
    assert [record.step for record in run.keeper.costs.records] == [STEP]


def test_the_next_life_goes_on_from_the_newest_checkpoint_and_clears_what_was_being_written(run):
    journal = run.options.journal("w00")
    for step in range(STEP + 1):
        journal.passed(ATTEMPT, step, (), epoch=0, cursor=0)
        journal.committed(ATTEMPT, step, loss=10.0 + step, microbatches=(1, 1))
    journal.close()
    run.write_all()
    run.keeper.close()
    run.write("w00", step=STEP + 1, is_told=False)
    later = Run(run.options.folder)
    assert later.begin().step == STEP
    assert later.on_disk() == ["latest.json", f"step-{STEP:08d}"]
    assert later.progress.losses == {step: 10.0 + step for step in range(STEP)}
    assert later.progress.microbatches == dict.fromkeys(range(STEP), (1, 1))
    later.keeper.close()


def test_a_life_that_asks_for_fewer_steps_than_are_trained_is_refused(run):
    run.write_all()
    run.keeper.close()
    later = Run(run.options.folder)
    later.options = replace(later.options, geometry=replace(later.options.geometry, num_steps=STEP - 1))
    keeper = Keeper(later.options, later.progress)
    with refuses("num_steps", STEP - 1, f"is fewer than the {STEP} that are trained in {run.options.folder} already"):
        keeper.begin()
    assert later.progress.losses == {}
    later.keeper.close()
    keeper.close()


def test_one_that_is_complete_once_a_later_one_is_whole_is_removed(run):
    """As where a worker that has no part in the next plan is slow to write the last part of the one before."""
    run.write("w00")
    run.write("w01")
    run.keeper.expect(ATTEMPT + 1, WORKERS[:2])
    for worker in WORKERS[:2]:
        run.write(worker, attempt=ATTEMPT + 1, step=STEP + 2)
    assert run.keeper.newest().step == STEP + 2
    run.write("w02")
    assert run.keeper.newest().step == STEP + 2
    assert run.on_disk() == ["latest.json", f"step-{STEP + 2:08d}"]


def test_after_going_back_an_earlier_one_counts_again(run):
    run.write_all(step=STEP + 2)
    assert run.keeper.newest().step == STEP + 2
    run.keeper.forget(0)
    run.keeper.expect(ATTEMPT + 1, WORKERS)
    run.write_all(attempt=ATTEMPT + 1)
    assert run.keeper.newest().step == STEP


def test_parts_of_one_that_others_left_before_they_copied_theirs_are_removed(run):
    run.write("w00")
    run.write("w00", step=STEP + 1)
    run.keeper.give_up_incomplete({"w00": (), "w01": ((ATTEMPT, STEP),), "w02": ((ATTEMPT, STEP),)})
    assert run.on_disk() == [run.temporary().name]
    run.write("w01")
    run.write("w02")
    assert run.keeper.newest().step == STEP


def test_without_a_folder_nothing_is_kept():
    keeper = Keeper(None, Progress())
    assert not keeper.is_on
    assert (keeper.begin(), keeper.newest(), keeper.look(), keeper.every_steps) == (None, None, None, None)
    keeper.expect(ATTEMPT, WORKERS)
    keeper.lost("w00")
    keeper.give_up_incomplete({})
    assert not keeper.is_hopeful({})
    assert not keeper.lacks_end(STEP)
    keeper.close()


def test_a_checkpoint_of_a_state_that_is_not_trusted_is_removed_however_far_it_got(run):
    run.write_all(step=STEP - 2)
    run.write_all()
    assert run.keeper.newest().step == STEP
    assert run.keeper.kept_step == STEP
    run.keeper.distrust(STEP)
    assert run.keeper.newest().step == run.keeper.kept_step == STEP - 2
    run.write("w00", step=STEP + 2)
    run.keeper.distrust(STEP + 2)
    run.write("w01", step=STEP + 2)
    run.write("w02", step=STEP + 2)
    assert run.on_disk() == ["latest.json", f"step-{STEP - 2:08d}"]
    run.keeper.expect(ATTEMPT + 1, WORKERS)
    run.write_all(attempt=ATTEMPT + 1)
    assert run.keeper.newest().step == STEP


def test_one_whose_state_was_compared_stays_whatever_its_holders_hold_now(run):
    run.write_all()
    assert run.keeper.newest().step == STEP
    assert not run.keeper.has_kept(STEP)
    run.progress.take(done(STEP))
    assert run.keeper.has_kept(STEP)
    assert not run.keeper.has_kept(STEP + 1)
    run.keeper.distrust(STEP)
    assert run.keeper.newest().step == STEP
    run.progress.rewind(STEP)
    run.keeper.forget(STEP)
    run.keeper.distrust(STEP)
    assert run.keeper.newest().step == STEP
    run.keeper.close()
    later = Run(run.options.folder)
    assert later.begin().step == STEP
    later.keeper.distrust(STEP)
    assert later.keeper.newest().step == STEP
    later.keeper.close()


def test_one_that_is_written_again_is_not_trusted_for_what_was_there_before(run):
    run.write_all()
    run.progress.take(done(STEP))
    run.progress.rewind(STEP - 2)
    run.keeper.forget(STEP - 2)
    run.keeper.expect(ATTEMPT + 1, WORKERS)
    run.write_all(attempt=ATTEMPT + 1)
    run.keeper.distrust(STEP)
    assert run.keeper.newest() is None


def test_the_end_is_lacking_until_a_checkpoint_has_it_and_again_once_that_is_not_trusted(run):
    assert [run.keeper.lacks_end(step) for step in (STEP - 1, STEP)] == [False, True]
    run.write_all()
    assert run.keeper.newest().step == STEP
    assert not run.keeper.lacks_end(STEP)
    is_free = threading.Event()
    run.keeper._disk.do(is_free.wait)  # what the disk is told of is not done yet
    run.keeper.distrust(STEP)
    assert run.keeper.lacks_end(STEP)
    is_free.set()
    run.keeper.expect(ATTEMPT + 1, WORKERS)
    run.write_all(attempt=ATTEMPT + 1)
    assert run.keeper.newest().step == STEP
    assert not run.keeper.lacks_end(STEP)


def test_the_newest_whose_state_was_compared_stays_until_that_of_a_later_one_was(tmp_path):
    run = Run(tmp_path, keep=1, every_steps=1)
    run.begin()
    run.write_all(step=STEP - 2)
    run.progress.take(done(STEP - 2))
    run.write_all()
    run.keeper.look()
    assert run.on_disk() == ["latest.json", f"step-{STEP - 2:08d}", f"step-{STEP:08d}"]
    run.progress.take(done(STEP))
    run.keeper.look()
    assert run.on_disk() == ["latest.json", f"step-{STEP:08d}"]
    run.write_all(step=STEP + 2)
    run.keeper.distrust(STEP + 2)
    assert run.keeper.newest().step == STEP
    run.keeper.close()


def test_at_the_end_so_many_stay_as_were_asked_for_and_all_along_where_nothing_is_compared(tmp_path):
    for compares in (True, False):
        run = Run(tmp_path / str(compares), keep=1, every_steps=1)
        run.keeper = Keeper(run.options, run.progress, compares=compares)
        run.begin()
        run.write_all(step=STEP - 2)
        run.progress.take(done(STEP - 2))
        run.write_all()
        if compares:
            run.keeper.conclude()
        assert run.on_disk() == ["latest.json", f"step-{STEP:08d}"]
        run.keeper.close()


@pytest.mark.parametrize("every_steps", [None, 5])
def test_in_a_hurry_one_is_wanted_after_the_next_step_and_that_is_told_once(tmp_path, every_steps):
    run = Run(tmp_path, every_steps=every_steps)
    assert (run.keeper.every_steps, run.keeper.look()) == (every_steps, None)
    run.keeper.hurry()
    assert (run.keeper.every_steps, run.keeper.look(), run.keeper.look()) == (1, 1, None)
    run.keeper.close()
