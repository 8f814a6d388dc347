"""Splits in the order of their greatest stage bounds: the best one, or a better bound; machine code."""

import numpy as np

from estimator.compiled import compiled
from estimator.pipeline import Floats
from planner.bounds import Chain, Ints, Model, fits, follow_seconds, greatest_bound, stage_bound
from planner.minimax import fill_bounds
from planner.pricing import split_seconds

MOST_EXPLORED = 256
"""Splits that are priced for one level of bounds before it is given up."""

FIRST_LEVEL = 1e-3
"""How far above the least bound the first level reaches, as a share; every level reaches twice as far as the one before."""

Limited = tuple[Floats, float]
"""The least greatest bound of the stages from one on by its first layer, shape [stages + 1, layers + 1], and a level."""


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
    for first in range(1, count - num_stages + 2):
        if not fits(model, chain, 0, 0, first) or stage_bound(model, chain, 0, (0, first), 0.0) > level:
            continue
        best = np.full((num_stages + 1, count + 1), np.inf)
        fill_bounds(model, chain, level, follow_seconds(model, chain, first), best)
        option = np.zeros(num_stages + 1, dtype=np.int64)
        option[1] = first
        has_next = _descend(model, chain, (best, level), option, 1)
        while has_next:
            left -= 1
            if left < 0:
                return False, seconds, cuts
            if greatest_bound(model, chain, option) <= seconds:
                own = split_seconds(model, chain, option)
                if own < seconds:
                    seconds, cuts = own, option.copy()
            has_next = _advance(model, chain, (best, level), option)
    return True, seconds, cuts


@compiled
def _advance(model: Model, chain: Chain, limited: Limited, option: Ints) -> bool:
    """Change `option` to the next split with its first stage within the level; False where there is none."""
    for stage in range(len(chain.speeds) - 1, 0, -1):
        follow = follow_seconds(model, chain, option[1])
        for stop in range(option[stage + 1] + 1, limited[0].shape[1]):
            if _is_open(model, chain, limited, (stage, option[stage], stop), follow):
                option[stage + 1] = stop
                if _descend(model, chain, limited, option, stage + 1):
                    return True
    return False


@compiled
def _descend(model: Model, chain: Chain, limited: Limited, option: Ints, stage: int) -> bool:
    """Let all stages from one on end as early as the level allows; False where it does not."""
    follow = follow_seconds(model, chain, option[1])
    for current in range(stage, len(chain.speeds)):
        for stop in range(option[current] + 1, limited[0].shape[1]):
            if _is_open(model, chain, limited, (current, option[current], stop), follow):
                option[current + 1] = stop
                break
        else:
            return False
    return True


@compiled
def _is_open(model: Model, chain: Chain, limited: Limited, place: tuple[int, int, int], follow: float) -> bool:
    """Whether a stage may hold these layers, and the stages after it the others, within the level."""
    (best, level), (stage, start, stop) = limited, place
    if best[stage + 1, stop] > level or not fits(model, chain, stage, start, stop):
        return False
    return bool(stage_bound(model, chain, stage, (start, stop), follow) <= level)
