"""Equation 8 and the prices of transitions."""

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from estimator.goodput import (
    break_even_mtbf_seconds,
    goodput_samples_per_second,
    migration_seconds,
    rerouting_seconds,
    restart_seconds,
    throughput_samples_per_second,
)
from kintsugi.core.profile import Recovery
from tests.builders import RECOVERY, uniform_profile

steps, transitions = st.floats(0.1, 100.0), st.floats(0.0, 1000.0)


@given(steps, transitions, steps, transitions)
def test_both_plans_have_the_same_goodput_at_the_break_even(t, r, u, s):
    even = break_even_mtbf_seconds(t, r, u, s)
    assume(even is not None and even < 1e9)
    goodputs = [goodput_samples_per_second(throughput_samples_per_second(8, 1, x), y, even) for x, y in ((t, r), (u, s))]
    assert goodputs[0] == pytest.approx(goodputs[1], rel=1e-6, abs=1e-9)


@pytest.mark.parametrize(
    ("iteration", "reconfiguration", "other", "other_reconfiguration"),
    [
        (0.10907170, 3.0, 0.11190755, 3.0),
        (0.10910749731395977, 961.0, 0.10910749731395979, 961.0),
        (0.1, 3.0, 0.1 + 1e-16, 900.0),
    ],
)
def test_what_differs_by_rounding_alone_has_no_break_even(iteration, reconfiguration, other, other_reconfiguration):
    for nudged in (reconfiguration, math.nextafter(reconfiguration, 0.0), math.nextafter(reconfiguration, math.inf)):
        assert break_even_mtbf_seconds(iteration, nudged, other, other_reconfiguration) is None
        assert break_even_mtbf_seconds(other, other_reconfiguration, iteration, nudged) is None


def test_a_plan_that_is_better_in_both_has_no_break_even():
    assert break_even_mtbf_seconds(1.0, 1.0, 2.0, 2.0) is None


def test_a_transition_longer_than_the_time_between_failures_leaves_nothing():
    assert goodput_samples_per_second(10.0, 200.0, 100.0) == 0.0


def test_prices_of_transitions():
    assert rerouting_seconds(RECOVERY) == 3.0
    assert migration_seconds(RECOVERY, 4.0) == 7.0
    assert restart_seconds(uniform_profile(2)) is None
    recovery = Recovery(
        detect_seconds=1.0,
        regroup_seconds=2.0,
        restart_seconds=60.0,
        checkpoint_interval_seconds=600.0,
        checkpoint_read_bytes_per_second=1e9,
    )
    assert restart_seconds(uniform_profile(2, recovery=recovery)) == pytest.approx(1 + 60 + 1.0 + 300)
    eight = uniform_profile(2, recovery=recovery, tensor_parallel_degree=8)
    assert restart_seconds(eight) == pytest.approx(1 + 60 + 8.0 + 300)  # each device has layers of its own to read
