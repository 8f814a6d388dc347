"""Quantities, widths and scales of the pages."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.dashboard import formats
from api.dashboard.charts import round_values
from api.dashboard.grid import _spans
from kintsugi.core.plan import Pipeline, Stage


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, formats.DASH),
        (0.0, "0 s"),
        (3.21e-8, "32.1 ns"),
        (4.5e-5, "45 µs"),
        (0.01234, "12.3 ms"),
        (4.999, "5.00 s"),
        (5.0, "5 s"),
        (5.169, "5.17 s"),
        (119.4, "119 s"),
        (967.0, "16 min 7 s"),
        (3600.0, "60 min"),
        (10_800.0, "3 h"),
        (12_345.0, "3 h 26 min"),
        (864_000.0, "10 days"),
    ],
)
def test_seconds_are_told_in_their_unit(value, shown):
    assert formats.seconds(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, formats.DASH),
        (0, "0 B"),
        (999, "999 B"),
        (1_500, "1.50 kB"),
        (30_900_000_000, "30.9 GB"),
        (2e15, "2 PB"),
    ],
)
def test_sizes_are_decimal(value, shown):
    assert formats.size(value) == shown


@pytest.mark.parametrize(("value", "shown"), [(0.0, "0 %"), (1e-5, "< 0.01 %"), (0.1667, "16.7 %"), (1.0, "100 %")])
def test_ratios_are_percentages(value, shown):
    assert formats.percent(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"), [(-0.0001, "0 %"), (0.0, "0 %"), (0.0004, "0 %"), (-0.021, "\N{MINUS SIGN}2.1 %"), (0.35, "+35.0 %")]
)
def test_differences_have_a_sign_where_they_are_any(value, shown):
    assert formats.signed_percent(value) == shown


def test_prose_has_no_underscores():
    assert formats.prose("data_rerouting beats checkpoint_restart.") == "Data rerouting beats checkpoint restart."
    assert formats.prose("workers: too few") == "Workers: too few"


@pytest.mark.parametrize("field", ["recovery.checkpoint_interval_seconds", "ranges.min_dp", "fail[0]"])
def test_prose_leaves_the_names_of_fields(field):
    assert formats.prose(f"{field}: cannot be") == f"{field}: cannot be"


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("seconds", 967.0, "16~min 7~s"),
        ("size", 30_900_000_000, "30.9~GB"),
        ("percent", 1e-5, "< 0.01~%"),
        ("signed_percent", 0.35, "+35.0~%"),
        (
            "prose",
            "pinned: 1.097 s a step after 3 s; 2 spares give 21.9 samples/s",
            "Pinned: 1.097~s a step after 3~s; 2 spares give 21.9~samples/s",
        ),
    ],
)
def test_pages_keep_numbers_and_their_units_on_one_line(name, value, shown):
    assert formats.FILTERS[name](value) == shown.replace("~", "\N{NO-BREAK SPACE}")


@given(st.floats(1e-9, 1e9))
def test_scales_reach_just_above_their_values(top):
    values = round_values(top)
    assert values[0] == 0.0
    assert values[-1] >= top * (1 - 1e-6)
    assert values[-2] < top
    assert len(values) <= 6
    steps = {round((b - a) / values[1], 6) for a, b in itertools.pairwise(values)}
    assert steps == {1.0}


def test_a_scale_of_nothing_is_a_scale():
    assert round_values(0.0) == (0.0, 1.0)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=40), st.integers(0, 12))
def test_stages_share_the_columns(layers, more):
    starts = [sum(layers[:index]) for index in range(len(layers))]
    stages = tuple(Stage(layer_start=a, layer_stop=a + n, worker=None) for a, n in zip(starts, layers, strict=True))
    columns = 12 * (len(layers) + more)
    spans = _spans(Pipeline(num_microbatches=1, stages=stages), columns)
    assert sum(spans) == columns
    fewest = columns * 2 / 3 / len(layers)
    assert all(math.floor(fewest) <= span for span in spans)
    widest = sorted(range(len(layers)), key=lambda index: layers[index])
    assert spans[widest[-1]] >= spans[widest[0]] - 1
