"""Which splits one layer away from another one are worth their price: their bounds, from one table; machine code."""

import numpy as np

from estimator.arrays import Floats, Ints
from estimator.compiled import borrowing, compiled
from planner.pipelines.bounds import Chain, Model, fits, follow_seconds, stage_parts
from planner.pipelines.pricing import ROUNDING

SHIFTS = ((0, 0), (-1, -1), (1, 1), (0, -1), (-1, 0), (0, 1), (1, 0))
"""By how much a stage's first layer, and one past its last, change where one stage gives a layer to another."""

STAYS, EARLIER, LATER, GIVES_LAST, TAKES_FIRST, TAKES_LAST, GIVES_FIRST = range(len(SHIFTS))


@compiled
def neighbours_below(model: Model, chain: Chain, cuts: Ints, below: float) -> Ints:
    """`pricing.neighbours` that fit memory and whose bounds rule out no time below one, in the same order.

    All of them together have but seven ranges of layers for each stage, whose bounds are found once. O(stages^3) comparisons at
    most, and few where most neighbours are ruled out by a stage at once.

    Args:
        model: layers.
        chain: what is asked of the pipeline.
        cuts: the split, shape [stages + 1].
        below: in seconds.
    """
    num_stages, limit, count = len(cuts) - 1, below * (1 + ROUNDING), 0
    bounds = np.empty((3, num_stages, len(SHIFTS)))
    for shift in range(3):
        follow = follow_seconds(model, chain, min(max(cuts[1] + shift - 1, 1), cuts[-1]))
        _fill(model, chain, cuts, follow, bounds[shift])
    result = np.empty((num_stages * (num_stages - 1), num_stages + 1), dtype=np.int64)
    for giver in range(num_stages):
        for taker in range(num_stages):
            own = bounds[1 + (taker == 0) - (giver == 0)]
            if giver != taker and cuts[giver + 1] - cuts[giver] > 1 and _is_worth(own, giver, taker, limit):
                result[count] = cuts
                result[count, giver + 1 : taker + 1] -= 1
                result[count, taker + 1 : giver + 1] += 1
                count += 1
    return result[:count]


@borrowing
def _fill(model: Model, chain: Chain, cuts: Ints, follow: float, bounds: Floats) -> None:
    """Put `stage_bound` of each stage with each shift into a table, shape [stages, shifts]; infinite where it does not fit."""
    for stage in range(len(bounds)):
        for way in range(len(SHIFTS)):
            start, stop = cuts[stage] + SHIFTS[way][0], cuts[stage + 1] + SHIFTS[way][1]
            bounds[stage, way] = np.inf
            if 0 <= start < stop <= cuts[-1] and fits(model, chain, stage, start, stop):
                through, back, after = stage_parts(model, chain, stage, start, stop)
                bounds[stage, way] = through + max(back + follow if stage > 0 else 0.0, after)


@borrowing
def _is_worth(bounds: Floats, giver: int, taker: int, limit: float) -> bool:
    """Whether no stage's bound is above the limit; who gives and who takes the layer are looked at first."""
    gives, takes, between = (GIVES_LAST, TAKES_FIRST, EARLIER) if giver < taker else (GIVES_FIRST, TAKES_LAST, LATER)
    greatest = max(bounds[giver, gives], bounds[taker, takes])
    first, last = min(giver, taker), max(giver, taker)
    for stage in range(len(bounds)):
        if greatest > limit:
            return False
        if stage < first or stage > last:
            greatest = max(greatest, bounds[stage, STAYS])
        elif first < stage < last:
            greatest = max(greatest, bounds[stage, between])
    return bool(greatest <= limit and greatest < np.inf)
