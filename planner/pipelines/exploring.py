"""Splits in the order of their greatest stage bounds: the best one, or a better bound; machine code."""

import numpy as np

from estimator.arrays import Floats, Ints
from estimator.compiled import borrowing, compiled
from planner.pipelines.bounds import Chain, Model, follow_seconds, greatest_bound
from planner.pipelines.pricing import split_seconds
from planner.pipelines.stages import Stages, entry_bound, fill_bounds, stages_below

MOST_EXPLORED = 256
"""Splits that are priced for one level of bounds before it is given up."""

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
    """Whether all splits within a level of bounds were priced, and the best of them and of the given one."""
    count, num_stages, left = len(model.forward) - 1, len(chain.speeds), MOST_EXPLORED
    stages, path = stages_below(model, chain, level), np.zeros(num_stages, dtype=np.int64)
    for first in stages.stops[stages.ranges[0, 0, 0] : stages.ranges[0, 0, 1]]:
        best, follow = np.full((num_stages + 1, count + 1), np.inf), follow_seconds(model, chain, first)
        fill_bounds(stages, level, follow, best)
        limited, option = (stages, best, level), np.zeros(num_stages + 1, dtype=np.int64)
        option[1] = first
        has_next = _descend(limited, follow, option, path, 1)
        while has_next:
            left -= 1
            if left < 0:
                return False, seconds, cuts
            if greatest_bound(model, chain, option) <= seconds:
                own = split_seconds(model, chain, option)
                if own < seconds:
                    seconds, cuts = own, option.copy()
            has_next = _advance(limited, follow, option, path)
    return True, seconds, cuts


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
    (stages, best, level), (stage, begin) = limited, place
    for entry in range(begin, stages.ranges[stage, option[stage], 1]):
        if best[stage + 1, stages.stops[entry]] <= level and entry_bound(stages, entry, follow) <= level:
            option[stage + 1], path[stage] = stages.stops[entry], entry
            return True
    return False
