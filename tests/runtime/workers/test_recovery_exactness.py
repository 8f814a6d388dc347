"""A run with failures ends on the losses and parameters of the run without, whatever fails when, under either policy."""

from dataclasses import replace
from functools import cache, partial

import pytest

from kintsugi.core.cluster import Cluster
from kintsugi.core.plan import IdleWorker, Policy
from kintsugi.runtime.faults import Fault, FaultKind, FaultPoint, fail_at
from kintsugi.runtime.result import RunResult
from tests.combinations import combined
from tests.runtime.jobs import NUM_MICROBATCHES, NUM_STEPS, counted_job, drawing_job, frozen_job, langevin_job, odd_job, tiny_gpt
from tests.runtime.runs import assert_same, gpt_request, request_for, run, survivors

pytestmark = pytest.mark.processes

POLICIES = (Policy.DATA_REROUTING, Policy.DYNAMIC_PARALLELISM)
GRIDS = ((2, 3), (4, 2))
IN_STEP = ("step", "forward", "backward", "reduce", "commit", "applied")
IN_RECOVERY = ("regroup", "transfer", "ready")
VICTIMS = {(2, 3): "w04", (4, 2): "w03"}
SECOND_VICTIMS = {(2, 3): "w02", (4, 2): "w06"}


@cache
def reference(dp: int, pp: int) -> RunResult:
    """The uninterrupted run, once per grid."""
    return run(tiny_gpt, gpt_request(dp, pp))


@cache
def odd_reference(optimizer: str) -> RunResult:
    return run(partial(odd_job, optimizer), request_for(odd_job(optimizer), 2, 3))


def mended(grid: tuple[int, int], policy: Policy, *faults: Fault) -> RunResult:
    result = run(tiny_gpt, gpt_request(*grid, policy), *faults)
    assert_same(result, reference(*grid))
    assert {recovery.policy for recovery in result.recoveries} == {policy.value}
    assert [worker for recovery in result.recoveries for worker in recovery.lost] == [fault.worker for fault in faults]
    assert not {fault.worker for fault in faults} & set(survivors(result).workers)
    return result


def test_runs_without_failures_agree_over_all_grids():
    assert_same(reference(2, 3), reference(4, 2))
    assert reference(2, 3).recoveries == ()
    assert len(reference(2, 3).losses) == NUM_STEPS
    assert reference(2, 3).losses[-1] < reference(2, 3).losses[0]


@combined("policy, point", POLICIES, IN_STEP)
def test_a_worker_is_killed_in_a_step(policy, point):
    result = mended((2, 3), policy, fail_at(2, "w04", point))
    assert [decision.plan.generation for decision in result.decisions] == [0, 1]


@combined("policy, point", POLICIES[::-1], IN_STEP)
def test_a_worker_of_a_wider_grid_is_killed_in_a_step(policy, point):
    mended((4, 2), policy, fail_at(2, "w03", point))


@pytest.mark.parametrize("policy", POLICIES)
def test_a_worker_is_killed_between_two_microbatches(policy):
    mended((2, 3), policy, fail_at(1, "w01", "backward", microbatch=2))


@pytest.mark.parametrize("point", ["step", "forward", "commit", "applied"])
def test_a_worker_is_killed_in_the_first_step(point):
    mended((2, 3), Policy.DYNAMIC_PARALLELISM, fail_at(0, "w00", point))


@combined("policy, point", POLICIES[::-1], IN_STEP)
def test_a_worker_is_killed_in_the_last_step(policy, point):
    mended((2, 3), policy, fail_at(NUM_STEPS - 1, "w05", point))


@combined("policy, point", POLICIES, ("forward", "reduce", "applied"))
def test_a_worker_freezes_in_a_step(policy, point):
    mended((2, 3), policy, fail_at(2, "w04", point, "freeze"))


@combined("grid, policy", GRIDS, POLICIES)
def test_two_failures_one_after_the_other(grid, policy):
    result = mended(grid, policy, fail_at(1, VICTIMS[grid], "backward"), fail_at(2, SECOND_VICTIMS[grid], "forward"))
    assert len(result.recoveries) == 2


@combined("policy, strike", POLICIES, (*((point, FaultKind.KILL) for point in IN_RECOVERY), ("transfer", FaultKind.FREEZE)))
def test_a_second_failure_in_the_recovery_of_the_first(policy, strike):
    point, how = strike
    second = Fault(worker="w02", at=FaultPoint(point), generation=1, how=how)
    result = mended((2, 3), policy, fail_at(2, "w04", "forward"), second)
    assert len(result.recoveries) == 1, "one recovery from both"


@pytest.mark.parametrize("policy", POLICIES)
def test_a_second_failure_right_after_the_swap(policy):
    """Nobody has reported to run the new plan, and yet the state lies where it puts it."""
    mended((2, 3), policy, fail_at(2, "w04", "forward"), Fault(worker="w02", at=FaultPoint.STEP, generation=1))


@combined("policy, point", POLICIES, ("start", *IN_RECOVERY))
def test_a_worker_dies_before_the_first_step(policy, point):
    mended((2, 3), policy, Fault(worker="w01", at=FaultPoint(point)))


def test_two_workers_die_at_once():
    result = run(
        tiny_gpt,
        gpt_request(4, 2, Policy.DYNAMIC_PARALLELISM),
        fail_at(2, "w02", "backward"),
        fail_at(2, "w05", "backward"),
    )
    assert_same(result, reference(4, 2))


@combined("optimizer, policy", ("momentum", "stateless", "averaging", "combined"), POLICIES)
def test_odd_models_are_mended_too(optimizer, policy):
    job = partial(odd_job, optimizer)
    costs = {"optimizer_bytes": 0} if optimizer == "stateless" else {}
    result = run(job, request_for(job(), 2, 3, policy, **costs), fail_at(1, "w05", "backward"), fail_at(3, "w00", "reduce"))
    assert_same(result, odd_reference(optimizer))


def test_what_samples_layers_and_losses_draw_is_the_same_on_every_stage_and_in_a_step_that_is_run_again():
    whole = run(drawing_job, request_for(drawing_job(), 1, 1))
    request = request_for(drawing_job(), 2, 3, Policy.DYNAMIC_PARALLELISM)
    assert_same(run(drawing_job, request, fail_at(1, "w05", "backward"), fail_at(3, "w00", "commit")), whole)


@pytest.mark.parametrize("point", ["backward", "reduce", "commit", "applied"])
def test_sums_over_unequally_many_are_divided_by_how_many_the_whole_step_has(point):
    whole = run(counted_job, request_for(counted_job(), 1, 1))
    request = request_for(counted_job(), 2, 3, Policy.DATA_REROUTING)
    assert_same(run(counted_job, request, fail_at(1, "w05", point), fail_at(3, "w00", point)), whole)


def test_what_an_optimizer_draws_is_the_same_on_every_replica_and_under_every_plan():
    whole = run(langevin_job, request_for(langevin_job(), 1, 1))
    request = request_for(langevin_job(), 2, 3, Policy.DYNAMIC_PARALLELISM)
    assert_same(run(langevin_job, request, fail_at(1, "w05", "backward"), fail_at(3, "w00", "applied")), whole)


def test_a_stage_with_nothing_to_train():
    whole = run(frozen_job, request_for(frozen_job(), 1, 1))
    request = request_for(frozen_job(), 2, 8, Policy.DATA_REROUTING)
    assert_same(run(frozen_job, request, fail_at(2, "w00", "forward")), whole)


def test_a_spare_worker_takes_over():
    request = gpt_request(2, 3, Policy.SPARE_SUBSTITUTION)
    idle = IdleWorker(worker="w06", reason="kept for later")
    request = replace(request, cluster=Cluster.uniform(7), plan=replace(request.plan, idle_workers=(idle,)))
    result = run(tiny_gpt, request, fail_at(2, "w04", "forward"))
    assert_same(result, reference(2, 3))
    assert "w06" in survivors(result).workers


def test_one_worker_alone_trains_the_same():
    result = run(tiny_gpt, gpt_request(1, 1))
    assert_same(result, reference(2, 3))
    assert survivors(result).workers == ("w00",)


def test_all_but_one_die_one_by_one():
    faults = [fail_at(step, worker, "backward") for step, worker in ((0, "w01"), (1, "w02"), (2, "w03"))]
    result = run(tiny_gpt, gpt_request(4, 1, Policy.DYNAMIC_PARALLELISM, min_dp=1), *faults)
    assert_same(result, reference(2, 3))
    assert survivors(result).workers == ("w00",)


def test_microbatches_are_all_trained_under_every_plan():
    for decision in mended((2, 3), Policy.DYNAMIC_PARALLELISM, fail_at(1, "w03", "forward")).decisions:
        assert decision.plan.num_microbatches == NUM_MICROBATCHES
