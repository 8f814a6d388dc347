"""What single stages take at least, tabulated where one pipeline is asked about again and again; machine code."""

from typing import NamedTuple

import numpy as np

from estimator.compiled import compiled
from estimator.pipeline import Floats
from planner.bounds import Chain, Ints, Model, fits, stage_parts


class Stages(NamedTuple):
    """Layers that each stage but the first may hold below a ceiling: those of one stage and first layer stand together."""

    ranges: Ints
    """Where those of a stage and first layer begin and end, shape [stages, layers + 1, 2]."""
    stops: Ints
    """One past the last layer, ascending; this and what follows has shape [entries]."""
    through: Floats
    """Until the stage's last backward pass, in seconds."""
    back: Floats
    """From there to the end of the first stage's, in seconds."""
    after: Floats
    """What follows the stage's own, in seconds."""


@compiled
def stages_below(model: Model, chain: Chain, ceiling: float) -> Stages:
    """All that fits memory and is no bound above the ceiling whatever the first stage is followed by. O(stages * layers^2)."""
    both = model.forward + model.backward
    count, num_stages, size = len(both) - 1, len(chain.speeds), 0
    ranges, widest = np.zeros((num_stages, count + 1, 2), dtype=np.int64), _widest(chain, ceiling)
    stops, parts = np.empty(4 * num_stages + count, dtype=np.int64), np.empty((4 * num_stages + count, 3))
    for stage in range(1, num_stages):
        first = max(stage, np.searchsorted(both, both[-1] - widest[stage:].sum()))
        last = min(count - num_stages + stage, np.searchsorted(both, widest[:stage].sum(), side="right") - 1)
        for start in range(first, last + 1):
            ranges[stage, start] = size
            for stop in _stops(stage, num_stages, start, count):
                if both[stop] - both[start] > widest[stage]:
                    break
                if not fits(model, chain, stage, start, stop):
                    continue
                through, back, after = stage_parts(model, chain, stage, start, stop)
                if through + max(back, after) <= ceiling:
                    if size == len(stops):
                        stops, parts = np.concatenate((stops, stops)), np.concatenate((parts, parts))
                    stops[size], parts[size, 0], parts[size, 1], parts[size, 2] = stop, through, back, after
                    size += 1
            ranges[stage, start, 1] = size
    return Stages(ranges, stops[:size], parts[:size, 0], parts[:size, 1], parts[:size, 2])


@compiled
def entry_bound(stages: Stages, entry: int, follow: float) -> float:
    """`stage_bound` of an entry."""
    return float(stages.through[entry] + max(stages.back[entry] + follow, stages.after[entry]))


@compiled
def fill_bounds(stages: Stages, ceiling: float, follow: float, best: Floats) -> None:
    """Put the least greatest bound of the stages from one on, by its first layer, into `best`, up to a ceiling.

    Of all stages but the first, which is followed by so many seconds. Shape of `best`: [stages + 1, layers + 1].
    """
    num_stages, count = len(best) - 1, best.shape[1] - 1
    best[num_stages, count] = 0.0
    for stage in range(num_stages - 1, 0, -1):
        for start in range(stage, count - num_stages + stage + 1):
            least = np.inf
            for entry in range(stages.ranges[stage, start, 0], stages.ranges[stage, start, 1]):
                rest = best[stage + 1, stages.stops[entry]]
                if rest < least:
                    bound = entry_bound(stages, entry, follow)
                    if bound <= ceiling:
                        least = min(least, max(bound, rest))
            best[stage, start] = least


@compiled
def _stops(stage: int, num_stages: int, start: int, count: int) -> range:
    """Where a stage may stop: all after it have a layer, and the last stops at the end."""
    return range(count if stage == num_stages - 1 else start + 1, count - num_stages + stage + 2)


@compiled
def _widest(chain: Chain, ceiling: float) -> Floats:
    """Passes at full speed that a stage can hold below a ceiling: each stage is busy so long at least. Shape [stages]."""
    num_stages = len(chain.speeds)
    result = np.empty(num_stages)
    for stage in range(num_stages):
        is_full = chain.all_forward or chain.rest >= num_stages - stage
        times = chain.rest + 1.0 if is_full else 0.5 * chain.rest + 1.0
        result[stage] = ceiling / times * chain.speeds[stage] * (1 + 1e-9)
    return result
