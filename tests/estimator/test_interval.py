"""Checkpoint intervals against the minimum of the expected time that they approximate."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from estimator.interval import daly_interval_seconds, expected_run_seconds, young_interval_seconds
from kintsugi.core.errors import InvalidInputError

COSTS = st.floats(0.01, 500)
MTBF = st.floats(1_000, 1e6)


@given(COSTS, MTBF)
def test_daly_is_within_a_thousandth_of_the_least_expected_time(cost, mtbf):
    def seconds(log_interval):
        return expected_run_seconds(1e6, math.exp(log_interval), cost, 10.0, mtbf)

    best = minimize_scalar(seconds, bounds=(math.log(1e-3), math.log(1e8)), method="bounded", options={"xatol": 1e-9})
    assert seconds(math.log(daly_interval_seconds(cost, mtbf))) <= best.fun * 1.001


@given(COSTS, MTBF)
def test_daly_approaches_young_where_checkpoints_are_cheap(cost, mtbf):
    young = young_interval_seconds(cost, mtbf)
    assert young == math.sqrt(2 * cost * mtbf)
    assert abs(daly_interval_seconds(cost, mtbf) - young) <= cost


@given(COSTS, MTBF)
def test_dearer_checkpoints_and_rarer_failures_lengthen_the_interval(cost, mtbf):
    interval = daly_interval_seconds(cost, mtbf)
    assert daly_interval_seconds(cost, 2 * mtbf) > interval
    assert young_interval_seconds(2 * cost, mtbf) > young_interval_seconds(cost, mtbf)


def test_checkpoints_dearer_than_the_time_between_failures_come_once_in_it():
    assert daly_interval_seconds(300.0, 100.0) == 100.0
    assert daly_interval_seconds(0.0, 100.0) == 0.0


def test_times_that_are_none_are_refused():
    with pytest.raises(InvalidInputError, match="mtbf_seconds"):
        young_interval_seconds(1.0, 0.0)
    with pytest.raises(InvalidInputError, match="cost_seconds"):
        daly_interval_seconds(-1.0, 1.0)
