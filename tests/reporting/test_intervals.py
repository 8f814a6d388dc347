"""Intervals against scipy's, by hand, and in how many of many cases they hold the truth."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from kintsugi.reporting.intervals import Interval, ratio

VALUES = st.lists(st.floats(-1e3, 1e3).map(lambda value: round(value, 3)), min_size=2, max_size=8)


@settings(deadline=None)
@given(VALUES)
def test_one_group_is_students_interval(values):
    interval = Interval.of(values)
    assert interval.mean == pytest.approx(np.mean(values), abs=1e-9)
    expected = stats.t.ppf(0.975, len(values) - 1) * stats.sem(values)
    assert interval.margin == pytest.approx(expected, abs=1e-6)


@settings(deadline=None)
@given(VALUES, VALUES)
def test_two_groups_are_welchs_interval(first, second):
    interval = Interval.stratified([first, [-value for value in second]])
    assert interval.mean == pytest.approx((np.mean(first) - np.mean(second)) / 2, abs=1e-9)
    if len(set(first)) > 1 and len(set(second)) > 1:
        expected = stats.ttest_ind(first, second, equal_var=False).confidence_interval(0.95)
        assert interval.margin == pytest.approx((expected.high - expected.low) / 4, rel=1e-6)


def test_what_groups_differ_by_is_no_uncertainty():
    interval = Interval.stratified([[1.0, 1.0], [101.0, 101.0, 101.0]])
    assert (interval.mean, interval.margin) == (51.0, 0.0)


def test_a_single_value_has_no_margin():
    for interval in (Interval.of([5.0]), Interval.stratified([[1.0, 2.0], [9.0]])):
        assert interval.margin is interval.low is interval.high is None
    assert Interval.of([5.0]).mean == 5.0


def test_ends_are_mean_and_margin():
    interval = Interval.of([1.0, 2.0, 3.0])
    assert (interval.low, interval.high) == pytest.approx((2 - 2.4841, 2 + 2.4841), abs=1e-4)


def test_a_ratio_is_that_of_the_means():
    assert ratio([[1.0, 3.0]], [[2.0, 2.0]]).mean == 1.0
    assert ratio([[1.0], [3.0]], [[2.0], [6.0]]) == Interval(mean=0.5, margin=None)


def test_pairs_that_rise_together_leave_no_doubt_of_their_ratio():
    theirs = [[1.0, 2.0, 5.0], [4.0, 4.5]]
    interval = ratio([[0.25 * value for value in group] for group in theirs], theirs)
    assert interval.mean == pytest.approx(0.25)
    assert interval.margin == pytest.approx(0.0, abs=1e-12)


def test_intervals_hold_the_truth_about_as_often_as_they_say():
    """500 matrices of eight suites of three seeds; unequal noise, as suites have it."""
    random = np.random.default_rng(7)
    truth, noise = np.linspace(-1, 1, 8), np.linspace(0.1, 2, 8)
    held = 0
    for _ in range(500):
        interval = Interval.stratified((truth[:, None] + noise[:, None] * random.standard_normal((8, 3))).tolist())
        held += interval.low <= truth.mean() <= interval.high
    assert 0.92 <= held / 500 <= 0.98
