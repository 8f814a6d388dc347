"""Splits in the order of their greatest stage bounds: the best one, or a better bound; machine code."""

import numpy as np

from estimator.arrays import Floats, Ints
from estimator.compiled import borrowing, compiled
from planner.pipelines.bounds import Chain, Model, follow_seconds, greatest_bound
from planner.pipelines.pricing import split_seconds
from planner.pipelines.stages import Stages, entry_bound, fill_bounds, stages_below

MOST_EXPLORED = 256
"""Splits that are priced for one level of bounds; where there are more within it, none is."""

FIRST_LEVEL = 1e-3
"""How far above the least bound the first level reaches, as a share; every level reaches twice as far as the one before."""

Limited = tuple[Stages, Floats, float]
"""What stages may hold, the least greatest bound of the stages from one on by its first layer, and a level in seconds."""


@compiled
def explore(model: Model, chain: Chain, least: float, cuts: Ints, close: float) -> tuple[float, float, Ints]:
    """A bound on any split's objective, the least objective that was found, and the split that has it.

    Prices all splits whose greatest stage bound is within a level; whatever is left out takes longer than the level. O(stages
    * layers) for every split within it.

    Args:
        model: layers.
        chain: what is asked of the pipeline.
        least: no split takes less, in seconds.
        cuts: a split that fits memory.
        close: distance between bound and objective, as a share, that needs no improvement.
    """
    seconds, share, bound = split_seconds(model, chain, cuts), FIRST_LEVEL, least
    while seconds > bound * (1 + close) and share < 1.0:
        level = min(least * (1 + share), seconds)
        is_complete, seconds, cuts = _within(model, chain, level, seconds, cuts)
        if not is_complete:
            break
        bound, share = min(level, seconds), 2 * share
    return bound, seconds, cuts


@compiled
def _within(model: Model, chain: Chain, level: float, seconds: float, cuts: Ints) -> tuple[bool, float, Ints]:
    """Whether the splits within a level of bounds are few, and the best of these and of the given one."""
    count, num_stages = len(model.forward) - 1, len(chain.speeds)
    stages, path = stages_below(model, chain, level), np.zeros(num_stages, dtype=np.int64)
    firsts = stages.stops[stages.ranges[0, 0, 0] : stages.ranges[0, 0, 1]]
    best, follows = np.full((len(firsts), num_stages + 1, count + 1), np.inf), np.zeros(len(firsts))
    num_within = 0.0
    for index, first in enumerate(firsts):
        follows[index] = follow_seconds(model, chain, first)
        fill_bounds(stages, level, follows[index], best[index])
        num_within += _num_within((stages, best[index], level), follows[index], first)
    if num_within > MOST_EXPLORED:
        return False, seconds, cuts
    for index, first in enumerate(firsts):
        limited, option = (stages, best[index], level), np.zeros(num_stages + 1, dtype=np.int64)
        option[1] = first
        has_next = _descend(limited, follows[index], option, path, 1)
        while has_next:
            if greatest_bound(model, chain, option) <= seconds:
                own = split_seconds(model, chain, option)
                if own < seconds:
                    seconds, cuts = own, option.copy()
            has_next = _advance(limited, follows[index], option, path)
    return True, seconds, cuts


@compiled
def _num_within(limited: Limited, follow: float, first: int) -> float:
    """How many splits with this first stage are within the level; a float, as they may be more than an integer holds."""
    stages, best, _ = limited
    num_stages, count = len(best) - 1, best.shape[1] - 1
    ways = np.zeros(best.shape)
    ways[num_stages, count] = 1.0
    for stage in range(num_stages - 1, 0, -1):
        for start in range(stage, count - num_stages + stage + 1):
            for entry in range(stages.ranges[stage, start, 0], stages.ranges[stage, start, 1]):
                if _is_within(limited, follow, stage, entry):
                    ways[stage, start] += ways[stage + 1, stages.stops[entry]]
    return float(ways[1, first])


@borrowing
def _is_within(limited: Limited, follow: float, stage: int, entry: int) -> bool:
    """Whether a stage may hold the layers of an entry: with the best of the stages after it, all are within the level."""
    stages, best, level = limited
    return bool(best[stage + 1, stages.stops[entry]] <= level and entry_bound(stages, entry, follow) <= level)


@borrowing
def _advance(limited: Limited, follow: float, option: Ints, path: Ints) -> bool:
    """Change `option` and its entries to the next split with its first stage within the level; False where there is none."""
    for stage in range(len(path) - 1, 0, -1):
        entry = path[stage] + 1
        while _enter(limited, follow, option, path, (stage, entry)):
            if _descend(limited, follow, option, path, stage + 1):
                return True
            entry = path[stage] + 1
    return False


@borrowing
def _descend(limited: Limited, follow: float, option: Ints, path: Ints, stage: int) -> bool:
    """Let all stages from one on end as early as the level allows; False where it does not."""
    for current in range(stage, len(path)):
        begin = limited[0].ranges[current, option[current], 0]
        if not _enter(limited, follow, option, path, (current, begin)):
            return False
    return True


@borrowing
def _enter(limited: Limited, follow: float, option: Ints, path: Ints, place: tuple[int, int]) -> bool:
    """Put a stage's first entry from one on that is within the level, with the stages after it; False where there is none."""
    stages, (stage, begin) = limited[0], place
    for entry in range(begin, stages.ranges[stage, option[stage], 1]):
        if _is_within(limited, follow, stage, entry):
            option[stage + 1], path[stage] = stages.stops[entry], entry
            return True
    return False
