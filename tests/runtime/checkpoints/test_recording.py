"""When and how checkpoints are written, as a caller says it."""

import pytest

from kintsugi.runtime.checkpoints.recording import CheckpointOptions, Strategy
from tests.core.refusals import refuses


@pytest.mark.parametrize("name", ["every_steps", "max_in_flight", "keep"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True, "3"])
def test_counts_are_whole_numbers_above_0(name, value):
    with refuses(name, value, "above 0"):
        CheckpointOptions(**{name: value})


@pytest.mark.parametrize("name", ["max_in_flight", "keep"])
def test_only_the_interval_may_be_left_open(name):
    assert CheckpointOptions(every_steps=None).every_steps is None
    with refuses(name):
        CheckpointOptions(**{name: None})


@pytest.mark.parametrize("strategy", Strategy)
def test_a_strategy_may_be_a_text(strategy):
    assert CheckpointOptions(strategy=strategy.value).strategy is strategy


@pytest.mark.parametrize("strategy", ["nonsense", None, 3])
def test_another_strategy_is_refused_with_those_that_there_are(strategy):
    with refuses("strategy", strategy, "known ones: blocking, overlapped"):
        CheckpointOptions(strategy=strategy)
