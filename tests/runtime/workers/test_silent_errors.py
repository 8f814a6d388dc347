"""Memory that errs in silence is found at the next commit point, and mended as a loss: the run ends as the uninterrupted one."""

from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from structlog.testing import capture_logs

from kintsugi.core.errors import CommunicationError, InvalidInputError, StateLostError
from kintsugi.runtime.checkpoints.recording import CheckpointOptions, RunOptions
from kintsugi.runtime.control.agent import Agent
from kintsugi.runtime.control.decisions import LocalDecisions
from kintsugi.runtime.faults import Fault, FaultKind, FaultPoint, FaultScript, fail_at
from kintsugi.runtime.options import AgentOptions, Governance, WorkerOptions
from kintsugi.runtime.records.audit import audit
from kintsugi.runtime.result import RunResult
from kintsugi.runtime.verdicts import Verdict
from kintsugi.runtime.workers.commit import anything
from kintsugi.runtime.workers.replicas import ReplicasDifferError
from kintsugi.runtime.workers.worker import WorkerProcess
from tests.combinations import combined
from tests.runtime.jobs import tiny_gpt
from tests.runtime.runs import assert_same, gpt_request, leaves_nothing, request_for, run

NUM_STEPS = 6
job = partial(tiny_gpt, num_steps=NUM_STEPS)


@cache
def reference() -> RunResult:
    return run(job, gpt_request(2, 2))


def struck(
    dp: int,
    pp: int,
    *faults: Fault,
    governance: Governance = Governance.AGENT,
    every: int | None = 1,
    folder: Path | None = None,
) -> RunResult:
    recorded = None
    if folder is not None:
        recorded = RunOptions.of(job(), folder, mtbf_seconds=3600.0, checkpoints=CheckpointOptions(every_steps=2))
    options = AgentOptions(worker=WorkerOptions(faults=faults, compare_every_steps=every, run=recorded), governance=governance)
    with leaves_nothing(), Agent(job, request_for(job(), dp, pp, min_dp=1), LocalDecisions(), options=options) as agent:
        return agent.run()


def flipped(step: int, worker: str, at: str = "step") -> Fault:
    return fail_at(step, worker, at, "flip")


@pytest.mark.processes
@combined("governance, at", tuple(Governance), ["step", "applied"])
def test_a_worker_whose_memory_errs_is_lost_before_anybody_uses_what_it_says(governance, at):
    result = struck(4, 1, flipped(3, "w01", at), governance=governance)
    assert_same(result, reference())
    assert [recovery.lost for recovery in result.recoveries] == [["w01"]]


@pytest.mark.processes
@pytest.mark.parametrize("every", [1, NUM_STEPS - 1])
def test_memory_that_errs_after_the_last_step_is_found_too(every):
    result = struck(4, 1, flipped(NUM_STEPS - 1, "w00", "applied"), every=every)
    assert_same(result, reference())
    assert [recovery.lost for recovery in result.recoveries] == [["w00"]]


@pytest.mark.processes
def test_where_nobody_can_tell_who_is_right_all_go_back_to_a_checkpoint_that_was_compared(tmp_path):
    result = struck(2, 2, flipped(4, "w03"), folder=tmp_path)
    assert_same(result, reference())
    (recovery,) = result.recoveries
    assert recovery.layers
    assert not recovery.lost
    report = audit(tmp_path)
    assert report.is_exact
    assert report.is_complete
    assert [(undone.first, undone.last) for undone in report.undone] == [(2, 3)]


@pytest.mark.processes
@pytest.mark.parametrize("governance", Governance)
def test_where_nobody_can_tell_and_there_is_nothing_to_go_back_to_the_job_ends_and_says_so(governance):
    with pytest.raises(StateLostError, match=r"replicas of .+ differ before step 2, and nobody can tell which of them is right"):
        struck(2, 1, flipped(2, "w01"), governance=governance)


def between_comparisons(worker: str) -> tuple[Fault, ...]:
    """A worker's memory errs behind its last comparison, and before the next one a new plan follows, for two others are lost."""
    return flipped(3, worker, "applied"), fail_at(4, "w02", "forward"), fail_at(4, "w04", "forward")


@pytest.mark.processes
@pytest.mark.parametrize("governance", Governance)
def test_what_is_wrong_since_the_last_comparison_is_found_before_it_moves(governance):
    """Some of those who hold its layers are to let go of them."""
    result = struck(4, 2, *between_comparisons("w05"), governance=governance)
    assert_same(result, reference())
    assert sorted(worker for recovery in result.recoveries for worker in recovery.lost) == ["w02", "w04", "w05"]


@pytest.mark.processes
def test_where_nobody_can_tell_who_is_right_nothing_moves_and_all_go_back(tmp_path):
    """Of two who hold a layer one is to let go of it, and the other one would be the source of a third one's copy."""
    result = struck(2, 4, *between_comparisons("w01"), folder=tmp_path)
    assert_same(result, reference())
    assert [recovery.layers for recovery in result.recoveries if recovery.layers] == [[2]]
    assert audit(tmp_path).is_exact


@pytest.mark.processes
def test_where_nobody_can_tell_before_a_change_of_plan_and_there_is_nothing_to_go_back_to_the_job_ends():
    with pytest.raises(StateLostError, match=r"replicas of .+ differ before step 4, and nobody can tell which of them is right"):
        struck(2, 4, *between_comparisons("w01"), governance=Governance.RING)


@pytest.mark.processes
def test_what_is_compared_seldom_is_found_later_and_never_where_it_is_not_compared():
    late = struck(4, 1, flipped(1, "w01"), every=4)
    assert [recovery.lost for recovery in late.recoveries] == [["w01"]]
    assert late.has_equal_replicas
    never = struck(4, 1, flipped(1, "w01"), every=None)
    assert not never.recoveries
    assert not never.has_equal_replicas


def test_faults_of_memory_strike_between_steps():
    assert flipped(3, "w01").how is FaultKind.FLIP
    assert Fault(worker="w01", at=FaultPoint.APPLIED, how=FaultKind.FLIP).at is FaultPoint.APPLIED
    with pytest.raises(InvalidInputError, match="strikes memory between steps, or a file"):
        fail_at(3, "w01", "forward", "flip")


class Heard:
    """A line that keeps what a worker tells."""

    def __init__(self) -> None:
        self.told = []
        self.send = self.told.append


def test_what_was_found_in_a_step_that_is_called_off_at_that_moment_is_told_all_the_same():
    def run(step: int) -> None:
        process._listener._call_off(2)
        raise found

    process = WorkerProcess("w01", Heard(), WorkerOptions(), anything)
    process._attempt = 1
    found = ReplicasDifferError(3, Verdict((0,), ("w01",)), ["embedding"])
    with pytest.raises(ReplicasDifferError):
        process._run_step(SimpleNamespace(run=run), 3)
    found = KeyError("of the user's code")
    with pytest.raises(CommunicationError, match="attempt 1 was called off"):
        process._run_step(SimpleNamespace(run=run), 3)
    process._doorbell.close()


def test_where_nothing_is_held_or_written_a_fault_of_it_strikes_nothing_and_that_is_told():
    struck: list[float] = []
    script = FaultScript("w01", [flipped(3, "w01"), flipped(4, "w01")], struck.append)
    with capture_logs() as logs:
        script.strike_if(FaultPoint.STEP, 3, held=[torch.empty(0)])
    assert not struck
    assert [(log["event"], log["worker"], log["step"]) for log in logs] == [
        ("a fault strikes nothing: no parameter is held here", "w01", 3)
    ]
    torn = FaultScript("w01", [fail_at(3, "w01", "checkpoint", "tear")], struck.append)
    with capture_logs() as logs:
        torn.strike_if(FaultPoint.CHECKPOINT, 3)
    assert not struck
    assert [log["event"] for log in logs] == ["a fault strikes nothing: no file was written here"]
    held = torch.ones(2)
    script.strike_if(FaultPoint.STEP, 4, held=[torch.empty(0), held])
    assert (held != 1.0).tolist() == [True, False]
    assert len(struck) == 1


@pytest.mark.parametrize("every", [0, -1, 1.5, True])
def test_replicas_are_compared_after_whole_numbers_of_steps(every):
    with pytest.raises(InvalidInputError, match="compare_every_steps"):
        WorkerOptions(compare_every_steps=every)
