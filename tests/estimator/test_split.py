"""ZB-H1 and ZB-H2: the recurrence against the paper's forms, against whole backward passes, and under slower stages."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimator.layers import StageTimes
from estimator.pipeline import pipeline_times
from estimator.split import scheduled_times
from kintsugi.core.plan import Schedule

seconds = st.floats(0.001, 1.0)
ZERO_BUBBLE = st.sampled_from([Schedule.ZB_H1, Schedule.ZB_H2])


@st.composite
def pipelines(draw):
    num_stages = draw(st.integers(1, 6))
    stages = [StageTimes(draw(seconds), draw(seconds), draw(seconds), 0.0) for _ in range(num_stages)]
    return stages, draw(st.lists(st.floats(0.0, 0.5), min_size=num_stages - 1, max_size=num_stages - 1)), draw(st.integers(1, 9))


@given(st.integers(1, 6), st.integers(0, 6), seconds)
@settings(deadline=None)
def test_bubbles_are_a_third_of_those_of_1f1b(num_stages, extra, unit):
    """Qi et al., table 1: (p - 1)(F + I - W) where 1F1B has (p - 1)(F + I + W)."""
    stages, microbatches = [StageTimes(unit, unit, unit, 0.0)] * num_stages, num_stages + extra
    times = scheduled_times(Schedule.ZB_H1, stages, [0.0] * (num_stages - 1), microbatches)
    assert times.pipeline_seconds == pytest.approx((3 * microbatches + num_stages - 1) * unit)


@given(st.integers(1, 6), st.integers(0, 6), seconds)
@settings(deadline=None)
def test_no_stage_waits_once_it_has_begun_under_zb_h2(num_stages, extra, unit):
    """Qi et al., figure 3: a parallelogram, where stages begin and end one pass after each other."""
    stages, microbatches = [StageTimes(unit, unit, unit, 0.0)] * num_stages, 2 * num_stages - 1 + extra
    times = scheduled_times(Schedule.ZB_H2, stages, [0.0] * (num_stages - 1), microbatches)
    assert times.stage_end_seconds == pytest.approx([(3 * microbatches + stage) * unit for stage in range(num_stages)])


@given(st.integers(1, 6), st.integers(0, 9), seconds, st.tuples(*[st.floats(0.0, 1.0)] * 3))
@settings(deadline=None)
def test_messages_as_long_as_a_weight_part_are_hidden_by_zb_h2(num_stages, extra, weight, drawn):
    """Qi et al., table 1: bubbles of (p - 1)(F + I - 2 W), where that is more than the way to the last stage."""
    more_forward, more_backward, share = drawn
    forward, backward_input, delay = weight + more_forward, weight + more_backward, share * weight
    stages, microbatches = [StageTimes(forward, backward_input, weight, 0.0)] * num_stages, 2 * num_stages - 1 + extra
    times = scheduled_times(Schedule.ZB_H2, stages, [delay] * (num_stages - 1), microbatches)
    bubble = max(forward + delay, forward + backward_input - 2 * weight + 2 * delay)
    passes = microbatches * (forward + backward_input + weight)
    assert times.pipeline_seconds == pytest.approx(passes + (num_stages - 1) * bubble)


@given(pipelines(), ZERO_BUBBLE, st.data())
@settings(deadline=None)
def test_a_slower_stage_never_shortens_the_pipeline(pipeline, schedule, data):
    stages, delays, microbatches = pipeline
    index, extra = data.draw(st.integers(0, len(stages) - 1)), data.draw(st.floats(0.0, 1.0))
    own = stages[index]
    for slower in (
        StageTimes(own.forward_seconds + extra, own.backward_input_seconds, own.backward_weight_seconds, 0.0),
        StageTimes(own.forward_seconds, own.backward_input_seconds + extra, own.backward_weight_seconds, 0.0),
        StageTimes(own.forward_seconds, own.backward_input_seconds, own.backward_weight_seconds + extra, 0.0),
    ):
        other = [*stages[:index], slower, *stages[index + 1 :]]
        before = scheduled_times(schedule, stages, delays, microbatches).pipeline_seconds
        assert scheduled_times(schedule, other, delays, microbatches).pipeline_seconds >= before * (1 - 1e-12)


@given(pipelines(), st.sampled_from([(Schedule.ZB_H1, Schedule.ONE_F_ONE_B), (Schedule.ZB_H2, Schedule.EAGER_1F1B)]))
@settings(deadline=None)
def test_without_weight_parts_it_is_what_has_as_many_in_flight(pipeline, schedules):
    stages, delays, microbatches = pipeline
    split, whole = schedules
    bare = [StageTimes(stage.forward_seconds, stage.backward_input_seconds, 0.0, 0.0) for stage in stages]
    forward, backward = [stage.forward_seconds for stage in bare], [stage.backward_input_seconds for stage in bare]
    expected = pipeline_times(whole, forward, backward, delays, microbatches)
    assert scheduled_times(split, bare, delays, microbatches).stage_end_seconds == pytest.approx(expected.stage_end_seconds)
    assert scheduled_times(whole, bare, delays, microbatches) == expected
