"""The critical path of an interleaved pipeline: the longest way through its passes, and how often it goes through each stage.

Times of passes change with the stages, the order of passes does not. So when a stage is through is the greatest of many sums, one
for each way through the passes, and the sum of the longest one is a lower bound on it whatever the stages are.
"""

from typing import NamedTuple

import numpy as np

from estimator.arrays import Floats, Ints
from estimator.compiled import compiled
from estimator.pipeline import PassTimes
from estimator.schedule import FORWARD, KINDS, WEIGHT


class LastPasses(NamedTuple):
    """When stages are through, and what each pass has waited for."""

    ends: Floats
    """Of the last pass of each stage, in seconds. Shape [stages]."""
    places: Ints
    """Where that pass is among all. Shape [stages]."""
    sources: Ints
    """The place of the pass that each one began right behind; -1 for the first of all. Shape [passes]."""


class CriticalPath(NamedTuple):
    """The longest way to the end of a stage's last pass."""

    visits: Ints
    """How many of its passes are of each kind and stage. Shape [kinds, stages], as `estimator.schedule.KINDS`."""
    crossings: Ints
    """How many messages it waits for, either way, over the link in front of each stage. Shape [stages]."""


@compiled
def last_passes(passes: Ints, times: PassTimes, delays: Floats, num_workers: int) -> LastPasses:
    """When the stages of an interleaved pipeline are through. O(passes).

    Args:
        passes: as `estimator.interleaved.passes_by_the_clock` tells them.
        times: of the passes, in seconds, shape [stages].
        delays: seconds between neighbouring stages, each way, shape [stages - 1].
        num_workers: that the stages go round.
    """
    num_stages = len(times.forward)
    ends, sources = np.empty(len(passes)), np.empty(len(passes), dtype=np.int64)
    of_worker, of_stage = np.full(num_workers, -1), np.full(num_stages, -1)
    of_microbatch = np.full((num_stages, passes[:, 2].max() + 1), -1)
    for place in range(len(passes)):
        kind, stage, microbatch = passes[place]
        source = of_worker[stage % num_workers]
        start = ends[source] if source >= 0 else 0.0
        other = stage - 1 if kind == FORWARD else stage + 1
        if kind != WEIGHT and 0 <= other < num_stages:
            arrival = ends[of_microbatch[other, microbatch]] + delays[min(stage, other)]
            if arrival > start:
                start, source = arrival, of_microbatch[other, microbatch]
        seconds = times.forward if kind == FORWARD else times.weight if kind == WEIGHT else times.backward
        ends[place], sources[place] = start + seconds[stage], source
        of_worker[stage % num_workers] = of_stage[stage] = place
        if kind != WEIGHT:
            of_microbatch[stage, microbatch] = place
    return LastPasses(ends[of_stage], of_stage, sources)


@compiled
def critical_path(passes: Ints, last: LastPasses, stage: int, num_workers: int) -> CriticalPath:
    """The longest way to the last pass of a stage."""
    num_stages = len(last.ends)
    visits, crossings = np.zeros((len(KINDS), num_stages), dtype=np.int64), np.zeros(num_stages, dtype=np.int64)
    place = last.places[stage]
    while place >= 0:
        kind, own, _ = passes[place]
        visits[kind, own] += 1
        place = last.sources[place]
        if place >= 0 and passes[place, 1] % num_workers != own % num_workers:
            crossings[max(own, passes[place, 1])] += 1
    return CriticalPath(visits, crossings)
