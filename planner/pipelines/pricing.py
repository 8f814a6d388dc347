"""What splits take: the recurrence of the schedule, as machine code; bounds spare those that others beat."""

import numpy as np

from estimator.arrays import Floats, Ints
from estimator.compiled import compiled
from estimator.pipeline import PassTimes, all_forward_all_backward_ends, alternating_ends
from planner.pipelines.bounds import Chain, Model, greatest_bound, late_weights, reduction_seconds, together_seconds, update_seconds

ROUNDING = 1e-9
"""A bound that is above a time by a larger share than this is above it not by rounding alone."""


@compiled
def splits_seconds(model: Model, chain: Chain, options: Ints, below: float) -> Floats:
    """`split_seconds` of several splits; infinite where bounds rule out less than `below` or than another. Shape [splits]."""
    result = np.full(len(options), np.inf)
    for index in range(len(options)):
        bound = greatest_bound(model, chain, options[index])
        if bound < np.inf and bound <= below * (1 + ROUNDING):
            result[index] = split_seconds(model, chain, options[index])
            below = min(below, result[index])
    return result


@compiled
def split_seconds(model: Model, chain: Chain, cuts: Ints) -> float:
    """Objective of one split by the recurrence of its schedule, zero bubble where weight parts are put off; it fits memory."""
    forward = (model.forward[cuts[1:]] - model.forward[cuts[:-1]]) / chain.speeds
    backward = (model.backward[cuts[1:]] - model.backward[cuts[:-1]]) / chain.speeds
    weight = (model.weight[cuts[1:]] - model.weight[cuts[:-1]]) / chain.speeds
    delays = model.delays[cuts[1:-1]]
    if chain.all_forward:
        ends = all_forward_all_backward_ends(forward, backward, delays, chain.rest + 1)
    else:
        ends = alternating_ends(PassTimes(forward, backward, weight), delays, chain.rest + 1, chain.lag)
    reduced, update = 0.0, 0.0
    for stage in range(len(ends)):
        start, stop = cuts[stage], cuts[stage + 1]
        reduced = max(reduced, ends[stage] + reduction_seconds(chain, start, stop))
        if start < chain.common:
            reduced = max(reduced, ends[stage] - late_weights(chain, stage) * weight[stage] + together_seconds(chain, start, stop))
        update = max(update, update_seconds(model, chain, stage, start, stop))
    return reduced + update


@compiled
def neighbours(cuts: Ints) -> Ints:
    """Splits with one layer taken from one stage and given to another; stages between them shift. Shape [splits, stages + 1]."""
    stages = np.arange(len(cuts) - 1)
    return neighbours_between(cuts, stages, stages)


@compiled
def neighbours_between(cuts: Ints, givers: Ints, takers: Ints) -> Ints:
    """`neighbours` in which certain stages give a layer to certain others."""
    result = np.empty((len(givers) * len(takers), len(cuts)), dtype=np.int64)
    count = 0
    for giver in givers:
        for taker in takers:
            if giver == taker or cuts[giver + 1] - cuts[giver] == 1:
                continue
            result[count] = cuts
            if giver < taker:
                result[count, giver + 1 : taker + 1] -= 1
            else:
                result[count, taker + 1 : giver + 1] += 1
            count += 1
    return result[:count]
