"""Real processes train interleaved pipelines to the same losses and parameters, healthy, struck and mended."""

from dataclasses import replace
from functools import cache, partial

import pytest

from estimator.program import ActionKind
from kintsugi.core.cluster import Cluster
from kintsugi.core.plan import IdleWorker, Policy, Schedule
from kintsugi.runtime.control.decisions import JobRequest
from kintsugi.runtime.faults import fail_at
from kintsugi.runtime.result import RunResult
from tests.combinations import combined
from tests.runtime.jobs import odd_job, tiny_gpt
from tests.runtime.runs import assert_same, gpt_request, kinds, request_for, run, survivors, under

pytestmark = pytest.mark.processes


@cache
def reference() -> RunResult:
    """The uninterrupted run under 1F1B."""
    return run(tiny_gpt, gpt_request(2, 3))


def interleaved(
    dp: int, pp: int, policy: Policy | None = None, *, virtual: int = 2, schedule: Schedule = Schedule.INTERLEAVED
) -> JobRequest:
    return under(schedule, request_for(tiny_gpt(), dp, pp, policy, stages_per_worker=virtual))


@pytest.mark.parametrize(("dp", "pp", "virtual"), [(2, 2, 2), (1, 3, 2), (1, 2, 3), (2, 1, 2)])
def test_interleaved_pipelines_train_as_1f1b_does(dp, pp, virtual):
    result = run(tiny_gpt, interleaved(dp, pp, virtual=virtual))
    assert_same(result, reference())
    assert {len(slots) for slots in survivors(result).slots_of.values()} == {virtual}


@pytest.mark.parametrize(("dp", "pp", "virtual"), [(2, 2, 2), (1, 3, 2)])
def test_interleaved_zero_bubble_trains_as_1f1b_does(dp, pp, virtual):
    request = interleaved(dp, pp, virtual=virtual, schedule=Schedule.INTERLEAVED_ZB)
    result = run(tiny_gpt, request)
    assert_same(result, reference())
    assert ActionKind.BACKWARD_WEIGHT in kinds(result, request)


@pytest.mark.parametrize("policy", [Policy.DATA_REROUTING, Policy.DYNAMIC_PARALLELISM])
def test_a_job_under_interleaved_zero_bubble_is_mended_twice(policy):
    request = interleaved(2, 3, policy, schedule=Schedule.INTERLEAVED_ZB)
    result = run(tiny_gpt, request, fail_at(1, "w04", "backward"), fail_at(3, "w02", "forward"))
    assert_same(result, reference())
    assert survivors(result).schedule is Schedule.INTERLEAVED_ZB
    assert [recovery.policy for recovery in result.recoveries] == [policy.value] * 2


@combined("policy, point", [Policy.DATA_REROUTING, Policy.DYNAMIC_PARALLELISM], ["forward", "backward", "reduce", "commit"])
def test_an_interleaved_job_is_mended(policy, point):
    result = run(tiny_gpt, interleaved(2, 2, policy), fail_at(2, "w03", point))
    assert_same(result, reference())
    assert survivors(result).schedule is Schedule.INTERLEAVED
    assert [recovery.policy for recovery in result.recoveries] == [policy.value]


@pytest.mark.parametrize("policy", [Policy.DATA_REROUTING, Policy.DYNAMIC_PARALLELISM])
def test_a_second_loss_is_mended_too(policy):
    result = run(tiny_gpt, interleaved(2, 3, policy), fail_at(1, "w04", "backward"), fail_at(3, "w02", "forward"))
    assert_same(result, reference())
    assert len(result.recoveries) == 2


def test_a_spare_takes_all_stages_of_the_lost_worker():
    request = interleaved(2, 2, Policy.SPARE_SUBSTITUTION)
    idle = IdleWorker(worker="w04", reason="kept for later")
    request = replace(request, cluster=Cluster.uniform(5), plan=replace(request.plan, idle_workers=(idle,)))
    result = run(tiny_gpt, request, fail_at(2, "w01", "backward"))
    assert_same(result, reference())
    assert survivors(result).layers_of["w04"] == request.plan.layers_of["w01"]


def test_layers_tied_across_the_stages_of_one_worker_stay_one():
    make_job = partial(odd_job, "momentum")
    whole = run(make_job, request_for(make_job(), 1, 1))
    request = request_for(make_job(), 2, 2, Policy.DATA_REROUTING, stages_per_worker=2)
    assert_same(run(make_job, request, fail_at(1, "w02", "backward")), whole)
    assert_same(run(make_job, under(Schedule.INTERLEAVED_ZB, request), fail_at(1, "w02", "backward")), whole)
