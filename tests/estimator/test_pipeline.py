"""The recurrence against the paper's closed forms, against a generic evaluation of orders."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator.lockstep import FEWEST_STAGES, MOST_STAGES, lockstep_ends
from estimator.pipeline import (
    PassTimes,
    asymmetric_seconds,
    pipeline_times,
    rerouted_seconds,
    single_failure_seconds,
    stagewise_ends,
    symmetric_seconds,
)
from estimator.schedule import order
from kintsugi.core.errors import InfeasibleError
from kintsugi.core.plan import Schedule
from tests.estimator.orders import ordered_times

SCHEDULES = (Schedule.ONE_F_ONE_B, Schedule.EAGER_1F1B, Schedule.GPIPE)
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


@pytest.mark.parametrize("stages", [1, 2, 15, 16, 17, FEWEST_STAGES, 33, 64, 101, MOST_STAGES - 1, MOST_STAGES])
@pytest.mark.parametrize("microbatches", [1, 2, 7, 130])
@pytest.mark.parametrize("is_split", [False, True])
def test_all_stages_at_once_take_what_one_by_one_do(stages, microbatches, is_split):
    chance = np.random.default_rng([stages, microbatches])
    forward, backward, weight, delays = (chance.random(count) for count in (stages, stages, stages, stages - 1))
    times = PassTimes(forward, backward, weight * is_split)
    assert np.array_equal(lockstep_ends(*times, delays, microbatches), stagewise_ends(times, delays, microbatches))


@pytest.mark.parametrize("stages", [FEWEST_STAGES, 47, MOST_STAGES + 1])
def test_the_recurrence_of_long_pipelines_equals_the_generic_one(stages):
    chance, microbatches = np.random.default_rng(stages), 60
    forward, backward, delays = (chance.random(count).tolist() for count in (stages, stages, stages - 1))
    orders = [order(Schedule.ONE_F_ONE_B, stage, stages, microbatches) for stage in range(stages)]
    times = pipeline_times(Schedule.ONE_F_ONE_B, forward, backward, delays, microbatches)
    assert times == ordered_times(orders, forward, backward, delays)


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


@given(st.integers(1, 8), st.integers(1, 20), seconds, seconds)
def test_equal_stages_without_delays_take_as_long_under_eager_1f1b(stages, microbatches, forward, backward):
    times = pipeline_times(Schedule.EAGER_1F1B, [forward] * stages, [backward] * stages, [0.0] * (stages - 1), microbatches)
    assert times.pipeline_seconds == pytest.approx(symmetric_seconds(stages, microbatches, forward, backward))


@given(st.integers(1, 8), st.integers(1, 30), seconds, seconds, st.floats(0.0, 3.0))
def test_with_equal_stages_eager_1f1b_is_never_slower_than_1f1b(stages, microbatches, forward, backward, delay):
    eager, plain = (
        pipeline_times(schedule, [forward] * stages, [backward] * stages, [delay] * (stages - 1), microbatches).pipeline_seconds
        for schedule in (Schedule.EAGER_1F1B, Schedule.ONE_F_ONE_B)
    )
    assert eager <= plain * (1 + 1e-12)


@given(st.integers(2, 8), st.integers(1, 40), seconds, seconds, st.floats(0.0, 0.5))
def test_messages_that_take_half_a_micro_batch_each_way_are_hidden_by_eager_1f1b(stages, microbatches, forward, backward, share):
    delay = share * (forward + backward)
    times = pipeline_times(Schedule.EAGER_1F1B, [forward] * stages, [backward] * stages, [delay] * (stages - 1), microbatches)
    hidden = symmetric_seconds(stages, microbatches, forward, backward) + 2 * (stages - 1) * delay
    assert times.pipeline_seconds == pytest.approx(hidden)


@given(st.integers(2, 6), st.integers(0, 20), seconds, seconds, st.floats(0.0, 3.0))
def test_as_many_micro_batches_as_are_in_flight_take_their_passes_or_one_round_trip(stages, more, forward, backward, delay):
    both, round_trip = forward + backward, stages * (forward + backward) + 2 * (stages - 1) * delay
    for schedule, flight in ((Schedule.ONE_F_ONE_B, stages), (Schedule.EAGER_1F1B, 2 * stages - 1)):
        times = [
            pipeline_times(schedule, [forward] * stages, [backward] * stages, [delay] * (stages - 1), count).pipeline_seconds
            for count in (10 * flight + more, 11 * flight + more)
        ]
        assert times[1] - times[0] == pytest.approx(max(flight * both, round_trip))
