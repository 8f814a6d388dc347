"""The recurrence against the paper's closed forms, against a generic evaluation of orders."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator.pipeline import (
    asymmetric_seconds,
    pipeline_times,
    rerouted_seconds,
    single_failure_seconds,
    symmetric_seconds,
)
from estimator.schedule import order
from kintsugi.core.errors import InfeasibleError
from kintsugi.core.plan import Schedule
from tests.estimator.orders import ordered_times

SCHEDULES = (Schedule.ONE_F_ONE_B, Schedule.GPIPE)
seconds = st.floats(0.001, 1.0)


@st.composite
def pipelines(draw):
    stages = draw(st.integers(1, 6))
    times = st.lists(seconds, min_size=stages, max_size=stages)
    delays = st.lists(st.floats(0.0, 0.5), min_size=stages - 1, max_size=stages - 1)
    return draw(times), draw(times), draw(delays), draw(st.integers(1, 9))


@given(st.integers(1, 8), st.integers(1, 20), seconds, seconds)
def test_equal_stages_without_delays_take_what_equation_9_says(stages, microbatches, forward, backward):
    times = pipeline_times(Schedule.ONE_F_ONE_B, [forward] * stages, [backward] * stages, [0.0] * (stages - 1), microbatches)
    assert times.pipeline_seconds == pytest.approx(symmetric_seconds(stages, microbatches, forward, backward))


@given(st.sampled_from(SCHEDULES), pipelines())
def test_the_recurrence_of_a_schedule_equals_the_generic_one(schedule, pipeline):
    forward, backward, delays, microbatches = pipeline
    orders = [order(schedule, stage, len(forward), microbatches) for stage in range(len(forward))]
    assert pipeline_times(schedule, forward, backward, delays, microbatches) == ordered_times(orders, forward, backward, delays)


@given(pipelines(), st.integers(0, 5), st.floats(0.0, 1.0))
def test_a_slower_stage_never_shortens_the_pipeline(pipeline, stage, extra):
    forward, backward, delays, microbatches = pipeline
    slower = list(forward)
    slower[stage % len(slower)] += extra
    for schedule in SCHEDULES:
        before = pipeline_times(schedule, forward, backward, delays, microbatches).pipeline_seconds
        after = pipeline_times(schedule, slower, backward, delays, microbatches).pipeline_seconds
        assert after >= before * (1 - 1e-12)


def test_the_slowest_pipeline_decides():
    assert asymmetric_seconds([1.0, 3.0, 2.0]) == 3.0


def test_equation_12_is_equation_13_with_one_failure():
    assert single_failure_seconds(4, 8, 3, 1.0, 2.0) == pytest.approx((4 + 8 - 1 + 8 / 2) * 3.0)
    assert rerouted_seconds([0, 2, 1, 0], 8, 3, 1.0, 2.0) == pytest.approx((4 + 8 - 1 + 8 * 2 / 1 + 8 * 1 / 2) * 3.0)


def test_a_stage_without_a_living_replica_cannot_be_rerouted():
    with pytest.raises(InfeasibleError, match="all 3 replicas of stage 1"):
        rerouted_seconds([0, 3], 8, 3, 1.0, 2.0)
