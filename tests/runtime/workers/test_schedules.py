"""Real processes train alike under every schedule, with whole and with split backward passes, healthy and mended."""

from functools import cache, partial

import pytest

from estimator.program import PASSES, ActionKind, compile_program
from kintsugi.core.plan import Policy, Schedule
from kintsugi.runtime.faults import fail_at
from kintsugi.runtime.result import RunResult
from tests.runtime.jobs import frozen_job, odd_job, tiny_gpt
from tests.runtime.runs import assert_same, gpt_request, kinds, request_for, run, survivors, under

pytestmark = pytest.mark.processes


@cache
def reference() -> RunResult:
    return run(tiny_gpt, gpt_request(2, 3))


@pytest.mark.parametrize("schedule", [Schedule.EAGER_1F1B, Schedule.GPIPE, Schedule.ZB_H1, Schedule.ZB_H2])
def test_schedules_train_as_1f1b_does(schedule):
    request = under(schedule, gpt_request(2, 3))
    result = run(tiny_gpt, request)
    assert_same(result, reference())
    assert (ActionKind.BACKWARD_WEIGHT in kinds(result, request)) == schedule.is_split


def test_weight_parts_come_between_other_passes_under_zb_h2():
    """The last of three stages puts the weight parts of four micro-batches off: the first follows five forward passes."""
    request = under(Schedule.ZB_H2, gpt_request(1, 3))
    result = run(tiny_gpt, request)
    assert_same(result, reference())
    program = compile_program(survivors(result), request.profile, request.cluster)
    last = [action.kind for action in program.actions["w02"] if action.kind in PASSES]
    assert last[-4:] == [ActionKind.BACKWARD_WEIGHT] * 4
    assert last.index(ActionKind.BACKWARD_WEIGHT) == 10


@pytest.mark.parametrize(
    ("schedule", "policy"),
    [
        (Schedule.ZB_H1, Policy.DATA_REROUTING),
        (Schedule.ZB_H1, Policy.DYNAMIC_PARALLELISM),
        (Schedule.EAGER_1F1B, Policy.DATA_REROUTING),
        (Schedule.ZB_H2, Policy.DATA_REROUTING),
        (Schedule.ZB_H2, Policy.DYNAMIC_PARALLELISM),
    ],
)
def test_a_job_is_mended_under_its_schedule(schedule, policy):
    request = under(schedule, gpt_request(2, 3, policy))
    result = run(tiny_gpt, request, fail_at(2, "w04", "backward"))
    assert_same(result, reference())
    assert survivors(result).schedule is schedule


def test_a_rerouted_job_under_1f1b_splits_its_backward_passes():
    request = gpt_request(2, 3, Policy.DATA_REROUTING)
    result = run(tiny_gpt, request, fail_at(1, "w01", "forward"))
    assert_same(result, reference())
    assert ActionKind.BACKWARD_WEIGHT in kinds(result, request)


@pytest.mark.parametrize("make_job", [odd_job, partial(odd_job, "stateless"), frozen_job])
def test_odd_models_train_alike_under_zb_h1(make_job):
    request = request_for(make_job(), 2, 3)
    assert_same(run(make_job, under(Schedule.ZB_H1, request)), run(make_job, request))
