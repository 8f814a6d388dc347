"""What the agent makes of replicas that are none: who is wrong ends by itself, and where nobody can tell all go back, once."""

from collections import deque
from pathlib import Path

import pytest

from kintsugi.core.errors import StateLostError
from kintsugi.runtime.checkpoints.manifest import Manifest
from kintsugi.runtime.checkpoints.recording import CheckpointOptions, RunOptions
from kintsugi.runtime.checkpoints.snapshots import worker_part, write_part
from kintsugi.runtime.control.attempt import Phase
from kintsugi.runtime.control.decisions import LocalDecisions
from kintsugi.runtime.messages import Differing, Prepare
from kintsugi.runtime.options import AgentOptions, WorkerOptions
from kintsugi.runtime.workers.commit import StepStatus
from tests.runtime.control.crews import Ensemble
from tests.runtime.jobs import tiny_gpt
from tests.runtime.runs import gpt_request

LAYER = 2


class Trained(Ensemble):
    """Has trained some steps, and has a checkpoint of every second one."""

    def __init__(self, folder: Path | None, *, steps: int = 6) -> None:
        run = None
        if folder is not None:
            run = RunOptions.of(tiny_gpt(), folder, mtbf_seconds=1e3, checkpoints=CheckpointOptions(every_steps=2, keep=9))
        super().__init__(gpt_request(2, 1), LocalDecisions(), AgentOptions(worker=WorkerOptions(run=run)))
        self.run, self.steps, self.differed_in = run, steps, 0

    def __enter__(self) -> "Trained":
        super().__enter__()
        self.reach(self.steps)
        for step in range(2, self.steps + 1, 2) if self.run is not None else ():
            temporary = self.run.store.temporary(step, "test")
            files = write_part(temporary, worker_part("w00"), {"number": step})
            state = self.run.sampler.state(step)
            manifest = Manifest(
                step=step, job=self.run.job, epoch=state.epoch, cursor=state.cursor, seed=str(state.seed), files=files
            )
            self.run.store.commit(temporary, manifest)
        return self

    def __exit__(self, *error: object) -> None:
        self.conductor.close()
        super().__exit__(*error)

    def reach(self, step: int) -> None:
        """All have applied the steps before this one."""
        for seat in self.crew.handles.values():
            seat.status = StepStatus(step)

    def differ(self, step: int, *wrong: str, layers: tuple[int, ...] = (LAYER,), unsettled: tuple[int, ...] = ()) -> None:
        """All say that holders of a layer differ."""
        self.reach(step)
        self.differed_in = self.conductor._attempt.number
        for seat in self.crew.handles.values():
            seat.answers.append(Differing(self.differed_in, step, layers, wrong, unsettled if wrong else layers))

    def last_told(self, worker: str) -> Prepare:
        return [message for message in self.crew.handles[worker].told if isinstance(message, Prepare)][-1]

    def has_gone_back(self) -> bool:
        return self.trains() and self.conductor._attempt.number > self.differed_in


def test_where_nobody_can_tell_all_go_back_to_the_newest_checkpoint_but_that_of_the_state_itself(tmp_path):
    with Trained(tmp_path) as job:
        job.differ(6)
        job.until(job.has_gone_back)
        for worker in ("w00", "w01"):
            told = job.last_told(worker)
            assert told.restore is not None
            assert (told.start_step, told.restore.is_whole, told.restore.folder.name) == (4, True, "step-00000004")
        assert [(recovery.layers, recovery.lost) for recovery in job.conductor.recoveries.all] == [([LAYER], [])]


def test_without_a_checkpoint_they_begin_anew(tmp_path):
    with Trained(tmp_path, steps=2) as job:
        job.differ(2)
        job.until(job.has_gone_back)
        told = job.last_told("w00")
        assert (told.start_step, told.is_initial, told.restore) == (0, True, None)


def test_one_that_is_lost_meanwhile_changes_nothing_in_that(tmp_path):
    with Trained(tmp_path) as job:
        job.differ(6)
        job.until(lambda: job.conductor.phase is Phase.QUIESCING)
        job.lose("w01")
        job.until(job.has_gone_back)
        told = job.last_told("w00")
        assert told.restore is not None
        assert (told.start_step, told.restore.is_whole, told.migration.transfers) == (4, True, ())
        assert [(recovery.layers, recovery.lost) for recovery in job.conductor.recoveries.all] == [([LAYER], ["w01"])]


def test_nor_does_one_whose_end_is_heard_of_along_with_the_difference(tmp_path):
    with Trained(tmp_path) as job:
        job.differ(6)
        job.lose("w01")
        job.until(job.has_gone_back)
        assert job.here == {"w00"}
        assert (job.last_told("w00").start_step, job.last_told("w00").restore.is_whole) == (4, True)


def test_a_difference_that_is_heard_of_when_its_attempt_is_over_is_none_the_less_one(tmp_path):
    with Trained(tmp_path) as job:
        job.lose("w01")
        job.differ(6)
        job.crew.handles["w00"].answers, late = deque(), job.crew.handles["w00"].answers
        job.conductor.poll()
        assert job.conductor.phase is Phase.QUIESCING
        job.crew.handles["w00"].answers.extendleft(late)
        job.until(job.has_gone_back)
        assert job.here == {"w00"}
        assert job.last_told("w00").start_step == 4


def test_one_that_is_wrong_about_a_layer_hides_no_other_one_of_which_nobody_can_tell(tmp_path):
    with Trained(tmp_path) as job:
        job.differ(6, "w01", layers=(0, LAYER), unsettled=(LAYER,))
        job.lose("w01")
        job.until(job.has_gone_back)
        assert job.here == {"w00"}
        assert job.last_told("w00").start_step == 4


def test_what_was_gone_back_from_is_trusted_again_afterwards(tmp_path):
    with Trained(tmp_path) as job:
        job.differ(5)
        job.until(job.has_gone_back)
        job.reach(7)
        job.lose("w01")
        job.until(lambda: job.here == {"w00"} and job.trains())
        told = job.last_told("w00")
        assert (told.start_step, told.restore) == (7, None)


def test_a_job_that_differs_again_before_it_got_any_further_ends(tmp_path):
    with Trained(tmp_path) as job:
        job.differ(6)
        job.until(job.has_gone_back)
        job.differ(6)
        with pytest.raises(StateLostError, match=r"before step 6, .* train again, from the newest checkpoint") as error:
            job.until(lambda: False)
        assert error.value.layers == (LAYER,)


def test_a_job_that_got_further_goes_back_again(tmp_path):
    with Trained(tmp_path) as job:
        for step in (5, 6):
            job.differ(step)
            job.until(job.has_gone_back)
        assert [recovery.layers for recovery in job.conductor.recoveries.all] == [[LAYER], [LAYER]]


def test_without_a_folder_the_job_ends():
    with Trained(None) as job:
        job.differ(6)
        with pytest.raises(StateLostError, match=r"begin anew with run=\.\.\."):
            job.until(lambda: False)


def test_who_is_wrong_is_lost_with_that_as_the_reason(tmp_path):
    with Trained(tmp_path) as job:
        job.differ(6, "w01")
        wrong = job.crew.handles["w01"]
        job.conductor.poll()
        assert wrong.reason == "held other numbers than most before step 6"
        assert job.conductor.phase is Phase.TRAINING  # until its process has ended
        job.lose("w01")
        job.until(lambda: job.here == {"w00"} and job.trains())
        assert job.last_told("w00").start_step == 6
        assert job.conductor.keeper.newest().step == 4
