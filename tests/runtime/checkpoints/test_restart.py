"""Runs that write checkpoints, lose every holder of a layer, or their agent, and end as the uninterrupted one, audited."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import pytest
import structlog

from kintsugi.core.errors import StateLostError
from kintsugi.core.job import Ranges
from kintsugi.core.plan import Policy
from kintsugi.runtime.checkpoints.manifest import Checkpoint, DamagedCheckpointError, Manifest, file_record
from kintsugi.runtime.checkpoints.recording import CheckpointOptions, RunOptions, Strategy
from kintsugi.runtime.control.agent import Agent
from kintsugi.runtime.control.decisions import JobRequest, LocalDecisions
from kintsugi.runtime.faults import Fault, FaultKind, FaultPoint, FaultScript, fail_at
from kintsugi.runtime.models import TrainingJob
from kintsugi.runtime.options import AgentOptions, WorkerOptions
from kintsugi.runtime.records.audit import AuditReport, audit, read_history
from kintsugi.runtime.records.journal import Source
from kintsugi.runtime.result import RunResult
from tests.runtime.jobs import odd_job, tiny_gpt
from tests.runtime.runs import assert_same, gpt_request, leaves_nothing, request_for, run

pytestmark = pytest.mark.processes

NUM_STEPS = 7
job = partial(tiny_gpt, num_steps=NUM_STEPS)
GRIDS = ((2, 3), (4, 2), (1, 2))
EVERY_TWO = CheckpointOptions(every_steps=2)


@cache
def reference() -> RunResult:
    return run(job, gpt_request(2, 3))


def restartable(dp: int, pp: int, *, min_dp: int = 1, make_job: Callable[[], TrainingJob] = job) -> JobRequest:
    """A request whose plans reckon with checkpoints."""
    request = request_for(make_job(), dp, pp, min_dp=min_dp)
    recovery = replace(request.profile.recovery, checkpoint_interval_seconds=600.0, checkpoint_read_bytes_per_second=1e9)
    return replace(
        request,
        profile=replace(request.profile, recovery=recovery),
        settings=replace(request.settings, ranges=Ranges(min_dp=min_dp)),
    )


def recorded(
    folder: Path,
    request: JobRequest,
    *faults: Fault,
    checkpoints: CheckpointOptions = EVERY_TWO,
    num_steps: int = NUM_STEPS,
    make_job: Callable[..., TrainingJob] = tiny_gpt,
) -> RunResult:
    """Train in a folder; nothing may be left but what is in it."""
    own = partial(make_job, num_steps=num_steps)
    options = RunOptions.of(own(), folder, mtbf_seconds=3600.0, checkpoints=checkpoints)
    worker = WorkerOptions(faults=faults, run=options)
    with leaves_nothing(), Agent(own, request, LocalDecisions(), options=AgentOptions(worker=worker)) as agent:
        return agent.run()


def proven(folder: Path) -> AuditReport:
    report = audit(folder)
    assert report.problems == ()
    assert report.is_exact
    assert report.is_complete
    return report


def both(step: int, at: str, first: str, second: str) -> tuple[Fault, Fault]:
    """The second holder of a layer is lost while the job recovers from the loss of the first."""
    return fail_at(step, first, at), Fault(worker=second, at=FaultPoint.REGROUP, generation=1)


def steps_on_disk(folder: Path) -> list[int]:
    return sorted(int(path.name.partition("-")[2]) for path in (folder / "checkpoints").glob("step-*"))


@pytest.mark.parametrize("strategy", Strategy)
def test_checkpoints_change_nothing_and_are_whole(tmp_path, strategy):
    result = recorded(tmp_path, restartable(2, 3), checkpoints=CheckpointOptions(every_steps=3, strategy=strategy))
    assert_same(result, reference(), tolerance=0.0)
    assert [record.step for record in result.checkpoints] == [3, 6, 7]
    assert {record.strategy for record in result.checkpoints} == {strategy.value}
    assert steps_on_disk(tmp_path) == [6, 7]
    assert not list((tmp_path / "checkpoints").glob(".*"))
    proven(tmp_path)
    is_blocking = strategy is Strategy.BLOCKING
    for record in result.checkpoints:
        assert record.stall_seconds >= (record.write_seconds if is_blocking else record.snapshot_seconds)


def test_every_failure_in_a_step_is_audited(tmp_path):
    faults = [fail_at(1, "w01", "commit"), fail_at(3, "w05", "applied"), fail_at(4, "w00", "backward")]
    result = recorded(tmp_path, restartable(2, 3), *faults)
    assert_same(result, reference())
    assert len(result.recoveries) >= 2
    proven(tmp_path)


@pytest.mark.parametrize("policy", [Policy.DYNAMIC_PARALLELISM, Policy.DATA_REROUTING])
def test_before_its_first_step_a_later_life_loses_nothing_either_whatever_the_policy(tmp_path, policy):
    """All begin anew from what the earlier life left, as those of a first life do from the seed."""
    request = restartable(1, 2)
    request = replace(request, settings=replace(request.settings, policy=policy))
    recorded(tmp_path, request, num_steps=4)
    result = recorded(tmp_path, request, fail_at(4, "w00", "backward"))
    assert_same(result, reference())
    assert [decision.policy for decision in result.decisions] == [Policy.FAULT_FREE, Policy.FAULT_FREE]
    proven(tmp_path)


def test_what_a_later_life_has_trained_is_lost_with_its_only_holder_where_the_policy_goes_back_to_no_checkpoint(tmp_path):
    request = restartable(1, 2)
    request = replace(request, settings=replace(request.settings, policy=Policy.DYNAMIC_PARALLELISM))
    recorded(tmp_path, request, num_steps=4)
    with pytest.raises(StateLostError):
        recorded(tmp_path, request, fail_at(5, "w00", "backward"))


def test_only_lost_layers_are_read_where_survivors_hold_the_step_of_the_checkpoint(tmp_path):
    blocking = CheckpointOptions(every_steps=2, strategy=Strategy.BLOCKING)
    result = recorded(tmp_path, restartable(1, 3), fail_at(4, "w01", "step"), checkpoints=blocking)
    assert_same(result, reference())
    assert result.decisions[-1].policy is Policy.CHECKPOINT_RESTART
    assert proven(tmp_path).undone == ()
    sources = [line["source"] for line in resumes(tmp_path)]
    assert Source.CHECKPOINT.value not in sources


def test_steps_since_the_checkpoint_are_trained_again(tmp_path):
    blocking = CheckpointOptions(every_steps=2, strategy=Strategy.BLOCKING)  # that of step 4 must be whole before step 5
    result = recorded(tmp_path, restartable(2, 3), *both(5, "backward", "w02", "w05"), checkpoints=blocking)
    assert_same(result, reference())
    assert result.decisions[-1].policy is Policy.CHECKPOINT_RESTART
    (undone,) = proven(tmp_path).undone
    assert (undone.first, undone.last, undone.source) == (4, 4, Source.CHECKPOINT)


def resumes(folder: Path):
    from kintsugi.runtime.records.journal import read_journal

    records = [read_journal(path) for path in sorted((folder / "audit").glob("*.jsonl"))]
    return [line for record in records if record is not None for line in record.lines if line["kind"] == "resume"]


def test_without_a_checkpoint_the_job_begins_anew(tmp_path):
    result = recorded(
        tmp_path,
        restartable(2, 3),
        fail_at(1, "w02", "step"),
        fail_at(1, "w05", "step"),
        checkpoints=CheckpointOptions(every_steps=6),
    )
    assert_same(result, reference())
    (undone,) = proven(tmp_path).undone
    assert (undone.first, undone.last, undone.source) == (0, 0, Source.START)


def test_a_damaged_checkpoint_is_passed_over(tmp_path):
    recorded(tmp_path, restartable(2, 3), fail_at(3, "w04", "checkpoint", "truncate"), num_steps=4)
    assert steps_on_disk(tmp_path) == [2, 4]
    with structlog.testing.capture_logs() as log:
        assert_same(recorded(tmp_path, restartable(4, 2)), reference())
    (warned,) = (line for line in log if line["log_level"] == "warning" and "damaged" in line["event"])
    assert (warned["damaged"], warned["used"]) == ("step-00000004", "step-00000002")
    (undone,) = proven(tmp_path).undone
    assert (undone.first, undone.last) == (2, 3)


@pytest.mark.parametrize("how", [FaultKind.TEAR, FaultKind.TRUNCATE, FaultKind.FLIP])
def test_files_are_damaged_on_purpose_and_that_is_found(tmp_path, how):
    path = tmp_path / "part.distcp"
    path.write_bytes(bytes(range(1, 101)))
    checkpoint = Checkpoint(tmp_path, Manifest(step=1, job="", epoch=0, cursor=1, seed="0", files={path.name: file_record(path)}))
    checkpoint.verify()
    FaultScript("w00", [fail_at(3, "w00", "checkpoint", how)], lambda _: None).strike_if(FaultPoint.CHECKPOINT, 3, written=[path])
    with pytest.raises(DamagedCheckpointError, match=path.name):
        checkpoint.verify()
    assert (path.stat().st_size == 100) == (how is not FaultKind.TRUNCATE)
    assert path.read_bytes()[:50] == bytes(range(1, 51))


@pytest.mark.parametrize("grid", GRIDS)
def test_another_life_goes_on_under_another_plan(tmp_path, grid):
    first = recorded(tmp_path, restartable(2, 3), num_steps=3)
    result = recorded(tmp_path, restartable(*grid))
    assert result.losses[:3] == first.losses
    assert_same(result, reference())
    assert proven(tmp_path).undone == ()


def test_another_life_goes_on_with_what_an_optimizer_keeps_in_its_groups(tmp_path):
    averaging = partial(odd_job, "averaging")
    recorded(tmp_path, restartable(2, 3, make_job=averaging), num_steps=3, make_job=averaging)
    result = recorded(tmp_path, restartable(2, 2, make_job=averaging), make_job=averaging)
    assert_same(result, run(partial(averaging, num_steps=NUM_STEPS), request_for(averaging(), 2, 3)))


def test_nothing_is_lost_of_what_an_earlier_life_trained_before_this_one_begins(tmp_path):
    first = recorded(tmp_path, restartable(2, 3), num_steps=3)
    request = restartable(1, 3)
    pinned = replace(request, settings=replace(request.settings, policy=Policy.DYNAMIC_PARALLELISM))
    result = recorded(tmp_path, pinned, fail_at(None, "w01", "start"))
    assert result.losses[:3] == first.losses
    assert_same(result, reference())
    assert proven(tmp_path).undone == ()


def test_a_life_that_has_nothing_left_to_train_ends_at_once(tmp_path):
    first = recorded(tmp_path, restartable(2, 3), num_steps=2)
    again = recorded(tmp_path, restartable(1, 2), num_steps=2)
    assert_same(again, first, tolerance=0.0)
    assert {layer: set(by.values()) for layer, by in again.digests.items()} == {
        layer: set(by.values()) for layer, by in first.digests.items()
    }


@pytest.mark.parametrize("how", [FaultKind.KILL, FaultKind.FREEZE, FaultKind.FAIL, FaultKind.SLOW])
def test_a_write_that_is_struck_leaves_the_previous_checkpoint(tmp_path, how):
    strike = Fault(worker="w04", at=FaultPoint.CHECKPOINT, step=3, how=how)
    one_at_a_time = replace(EVERY_TWO, max_in_flight=1)  # the next checkpoint waits for the strike
    result = recorded(tmp_path, restartable(2, 3), strike, checkpoints=one_at_a_time)
    assert_same(result, reference())
    proven(tmp_path)
    written = [record.step for record in result.checkpoints]
    assert written[0] == 2
    assert written[-1] == 7
    held = read_history(tmp_path).held
    is_lost = how in (FaultKind.KILL, FaultKind.FREEZE)
    is_asked_again = held[3].key != held[2].key  # survivors who had not committed step 3 yet trained it once more
    assert bool(result.recoveries) == is_lost
    assert is_lost or not is_asked_again
    assert (4 in written) == (how is FaultKind.SLOW or is_asked_again)


def test_lost_state_without_a_folder_stays_lost():
    with pytest.raises(StateLostError):
        run(job, gpt_request(2, 3, min_dp=1), *both(2, "step", "w02", "w05"))


def test_an_interval_is_found_from_what_checkpoints_cost_and_shown(tmp_path):
    with structlog.testing.capture_logs() as log:
        result = recorded(tmp_path, restartable(2, 3), checkpoints=CheckpointOptions())
    shown = next(line for line in log if line["event"] == "how often checkpoints are best written")
    assert shown["every_steps"] >= 1
    assert 0 < shown["cost_seconds"] < shown["daly_seconds"] < shown["mtbf_seconds"]
    assert result.checkpoints[0].step == 1
    assert result.interval.every_steps >= 1
    assert result.interval.daly_seconds > 0
    assert result.interval.mtbf_seconds == 3600.0


@pytest.mark.parametrize(
    ("grid", "how"), [((2, 3), FaultKind.KILL), ((4, 1), FaultKind.FLIP)]
)  # it takes its part of the last checkpoint along, or none of that checkpoint is trusted
def test_a_loss_after_the_last_step_leaves_a_checkpoint_of_what_was_trained(tmp_path, grid, how):
    strike = fail_at(NUM_STEPS - 1, "w01", "applied", how)
    blocking = CheckpointOptions(every_steps=4, strategy=Strategy.BLOCKING)  # that of step 4 is whole
    result = recorded(tmp_path, restartable(*grid), strike, checkpoints=blocking)
    assert_same(result, reference())
    assert [recovery.lost for recovery in result.recoveries] == [["w01"]]
    assert steps_on_disk(tmp_path) == [4, NUM_STEPS]
    assert recorded(tmp_path, restartable(1, 2)).digests.keys() == result.digests.keys()
    proven(tmp_path)
