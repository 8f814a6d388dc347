"""The critical path of an interleaved pipeline is as long as its passes take, and bounds those of every other such pipeline."""

import numpy as np
import pytest

from estimator.critical_path import CriticalPath, critical_path, last_passes
from estimator.interleaved import interleaved_ends, passes_by_the_clock
from estimator.pipeline import PassTimes
from estimator.schedule import FORWARD, WEIGHT

SHAPES = [(1, 3, 4, False), (2, 2, 1, True), (3, 2, 7, True), (4, 3, 8, False), (4, 2, 9, True)]


def any_times(chance, num_stages, *, is_split):
    """Times of passes, and delays."""
    parts = [chance.random(num_stages) for _ in range(3)]
    weight = parts[2] if is_split else np.zeros(num_stages)
    return PassTimes(parts[0], parts[1], weight), chance.random(num_stages - 1) * 0.3


def way_seconds(way: CriticalPath, times: PassTimes, delays) -> float:
    """What the passes and messages of a way take."""
    backward = way.visits.sum(axis=0) - way.visits[FORWARD] - way.visits[WEIGHT]
    passing = way.visits[FORWARD] @ times.forward + backward @ times.backward + way.visits[WEIGHT] @ times.weight
    assert way.crossings[0] == 0
    return float(passing + way.crossings[1:] @ delays)


@pytest.mark.parametrize("shape", SHAPES)
def test_it_is_as_long_as_all_passes_take_and_no_longer_than_any_other(shape):
    num_workers, num_virtual, count, is_split = shape
    chance, num_stages = np.random.default_rng(3), num_workers * num_virtual
    passes = passes_by_the_clock(*shape)
    cases = [any_times(chance, num_stages, is_split=is_split) for _ in range(12)]
    if num_workers == 1:
        cases = [(times, np.zeros_like(delays)) for times, delays in cases]
    found = [last_passes(passes, *case, num_workers) for case in cases]
    for stage in range(num_stages):
        ways = [critical_path(passes, last, stage, num_workers) for last in found]
        assert num_workers > 1 or not any(way.crossings.any() for way in ways)
        for (times, delays), last, own in zip(cases, found, ways, strict=True):
            columns = PassTimes(*(part[:, None].copy() for part in times))
            ends = interleaved_ends(columns, delays[:, None].copy(), num_workers, count, is_split)[:, 0]
            assert last.ends[stage] == ends[stage]
            assert way_seconds(own, times, delays) == pytest.approx(ends[stage], rel=1e-12)
            assert max(way_seconds(way, times, delays) for way in ways) <= ends[stage] * (1 + 1e-12)
