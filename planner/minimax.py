"""The contiguous split whose greatest stage bound is least: a dynamic program over (stage, first layer), as machine code."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from estimator.compiled import compiled
from estimator.pipeline import Floats, one_forward_one_backward_ends

Ints = npt.NDArray[np.int64]

ROUNDING = 1e-9
"""A bound that is above a time by a larger share than this is above it not by rounding alone."""


class Model(NamedTuple):
    """Layers as arrays."""

    forward: Floats
    """Time of the first n layers at full speed, shape [layers + 1]."""
    backward: Floats
    static_bytes: npt.NDArray[np.int64]
    """Weights and optimizer state of layers [a, b), shape [layers + 1, layers + 1]."""
    activation_bytes: Ints
    """Of the first n layers and one micro-batch, shape [layers + 1]."""
    delays: Floats
    """Link delay in front of layer n, shape [layers + 1]."""
    least_delay: float
    update: Floats
    """Optimizer update of the first n layers at full speed, shape [layers + 1]."""


class Chain(NamedTuple):
    """What is asked of a pipeline, as arrays."""

    speeds: Floats
    """Shape [stages]."""
    above: Floats
    """The highest speed before each stage, shape [stages]."""
    below: Floats
    """The highest speed after each stage, shape [stages]."""
    usable_bytes: Ints
    """Shape [stages]."""
    held: Ints
    """Most micro-batches in flight, shape [stages]."""
    rest: int
    """Micro-batches but one."""
    all_forward: bool
    """Whether all forward passes come first (GPipe)."""
    tail: Floats
    """Reduction of the first n layers, shape [layers + 1]."""
    least_update: float
    """What the longest update takes at least; it follows everything, so only what a stage's own takes beyond it counts."""


@compiled
def fits(model: Model, chain: Chain, stage: int, start: int, stop: int) -> bool:
    """Whether layers [start, stop) fit the memory of a stage."""
    activations = model.activation_bytes[stop] - model.activation_bytes[start]
    needed: int = model.static_bytes[start, stop] + chain.held[stage] * activations
    usable: int = chain.usable_bytes[stage]
    return needed <= usable


@compiled
def fits_somehow(model: Model, chain: Chain) -> bool:
    """Whether any split fits memory: every stage takes what it can, for less never helps those after it. O(layers + stages)."""
    count, num_stages = model.static_bytes.shape[0] - 1, len(chain.speeds)
    stop = 0
    for stage in range(num_stages):
        start, last = stop, count - (num_stages - 1 - stage)
        while stop < last and fits(model, chain, stage, start, stop + 1):
            stop += 1
        if stop == start:
            return False
    return bool(stop == count)


@compiled
def after_seconds(model: Model, chain: Chain, stage: int, start: int, stop: int) -> float:
    """What follows a stage's last backward pass: the reduction of its layers, and an update longer than the least."""
    update = (model.update[stop] - model.update[start]) / chain.speeds[stage] - chain.least_update
    return float(chain.tail[stop] - chain.tail[start] + chain.tail[0] + max(0.0, update))


@compiled
def stage_bound(model: Model, chain: Chain, stage: int, start: int, stop: int) -> float:
    """Least objective with layers [start, stop) on a stage, whatever the others hold; in seconds.

    Longest paths through the stage: every round trip below it waits for the micro-batches in flight. They end with the
    first stage's last backward pass, or with what follows the stage's own.
    """
    speeds, rest, held, count = chain.speeds, chain.rest, chain.held[stage], len(chain.speeds)
    forward, backward = model.forward, model.backward
    own_forward = (forward[stop] - forward[start]) / speeds[stage]
    own_backward = (backward[stop] - backward[start]) / speeds[stage]
    own = own_forward + own_backward
    upper = forward[start] / chain.above[stage] + stage * model.least_delay
    back = backward[start] / chain.above[stage] + stage * model.least_delay
    lower = (forward[-1] + backward[-1] - forward[stop] - backward[stop]) / chain.below[stage]
    lower += 2.0 * (count - 1 - stage) * model.least_delay
    through = own + lower
    if chain.all_forward:
        waits = rest * own
    elif rest >= held:
        rounds = rest // held
        waits = max(through + (rest - held) * own, rounds * through + (rest - rounds * held) * own, rest * own - lower)
    else:
        waits = rest * max(own_forward, own_backward)
    return float(upper + through + waits + max(back, after_seconds(model, chain, stage, start, stop)))


@compiled
def even_ceiling(model: Model, chain: Chain) -> float:
    """The greatest stage bound of a split by even time: a ceiling for `minimax`; infinite where it does not fit memory."""
    both = model.forward + model.backward
    count, num_stages = len(both) - 1, len(chain.speeds)
    result, start, share = 0.0, 0, 0.0
    for stage in range(num_stages):
        share += both[-1] * chain.speeds[stage] / chain.speeds.sum()
        last = count - (num_stages - 1 - stage)
        stop = start + 1
        while stop < last and both[stop + 1] + both[stop] <= 2 * share * (1 + 1e-9):
            stop += 1
        if stage == num_stages - 1:
            stop = count
        if not fits(model, chain, stage, start, stop):
            return np.inf
        result = max(result, stage_bound(model, chain, stage, start, stop))
        start = stop
    return result


@compiled
def _widest(chain: Chain, ceiling: float) -> Floats:
    """Passes at full speed that a stage can hold below a ceiling: each stage is busy so long at least. Shape [stages]."""
    result = np.empty(len(chain.speeds))
    for stage in range(len(result)):
        is_full = chain.all_forward or chain.rest >= chain.held[stage]
        times = chain.rest + 1.0 if is_full else 0.5 * chain.rest + 1.0
        result[stage] = ceiling / times * chain.speeds[stage] * (1 + 1e-9)
    return result


@compiled
def minimax(model: Model, chain: Chain) -> tuple[float, Ints, Ints]:
    """The least greatest bound over all splits that fit memory, in seconds, and two splits that attain it.

    The splits are stage boundaries, shape [stages + 1]: with the largest and with the smallest first stages. Infinite
    where nothing fits. O(stages * layers^2) at worst; a ceiling from a split by even time leaves far less.
    """
    both = model.forward + model.backward
    count, num_stages = len(both) - 1, len(chain.speeds)
    ceiling = even_ceiling(model, chain) * (1 + 1e-12)
    best = np.full((num_stages + 1, count + 1), np.inf)
    best[num_stages, count] = 0.0
    widest = _widest(chain, ceiling)
    for stage in range(num_stages - 1, -1, -1):
        first, last = (0, 0) if stage == 0 else (stage, count - num_stages + stage)
        first = max(first, np.searchsorted(both, both[-1] - widest[stage:].sum()))
        last = min(last, np.searchsorted(both, widest[:stage].sum(), side="right") - 1) if stage > 0 else last
        for start in range(first, last + 1):
            for stop in range(start + 1, count - num_stages + stage + 2):
                if both[stop] - both[start] > widest[stage]:
                    break
                if best[stage + 1, stop] < best[stage, start] and fits(model, chain, stage, start, stop):
                    bound = stage_bound(model, chain, stage, start, stop)
                    if bound <= ceiling:
                        best[stage, start] = min(best[stage, start], max(bound, best[stage + 1, stop]))
    return best[0, 0], _trace(model, chain, best, True), _trace(model, chain, best, False)


@compiled
def _trace(model: Model, chain: Chain, best: Floats, is_largest: bool) -> Ints:
    """A split whose stages all stay within the best greatest bound."""
    num_stages, count = len(chain.speeds), best.shape[1] - 1
    limit = best[0, 0] * (1 + 1e-12)
    cuts = np.zeros(num_stages + 1, dtype=np.int64)
    if limit == np.inf:
        return cuts
    for stage in range(num_stages):
        start = cuts[stage]
        for stop in range(start + 1, count + 1):
            if (
                best[stage + 1, stop] <= limit
                and fits(model, chain, stage, start, stop)
                and stage_bound(model, chain, stage, start, stop) <= limit
            ):
                cuts[stage + 1] = stop
                if not is_largest:
                    break
    return cuts


@compiled
def split_seconds(model: Model, chain: Chain, cuts: Ints) -> float:
    """Objective of one split by the 1F1B recurrence; infinite where it does not fit memory."""
    num_stages = len(chain.speeds)
    forward, backward = np.empty(num_stages), np.empty(num_stages)
    for stage in range(num_stages):
        if not fits(model, chain, stage, cuts[stage], cuts[stage + 1]):
            return np.inf
        forward[stage] = (model.forward[cuts[stage + 1]] - model.forward[cuts[stage]]) / chain.speeds[stage]
        backward[stage] = (model.backward[cuts[stage + 1]] - model.backward[cuts[stage]]) / chain.speeds[stage]
    delays = model.delays[cuts[1:-1]]
    ends = one_forward_one_backward_ends(forward, backward, delays, chain.rest + 1)
    result = 0.0
    for stage in range(num_stages):
        result = max(result, ends[stage] + after_seconds(model, chain, stage, cuts[stage], cuts[stage + 1]))
    return result


@compiled
def splits_seconds(model: Model, chain: Chain, options: Ints, below: float) -> Floats:
    """`split_seconds` of several splits; infinite where bounds rule out less than `below` or than another. Shape [splits]."""
    result = np.full(len(options), np.inf)
    for index in range(len(options)):
        cuts, bound = options[index], 0.0
        for stage in range(len(chain.speeds)):
            bound = max(bound, stage_bound(model, chain, stage, cuts[stage], cuts[stage + 1]))
        if bound <= below * (1 + ROUNDING):
            result[index] = split_seconds(model, chain, cuts)
            below = min(below, result[index])
    return result


@compiled
def neighbours(cuts: Ints) -> Ints:
    """Splits with one layer taken from one stage and given to another; stages between them shift. Shape [splits, stages + 1]."""
    num_stages = len(cuts) - 1
    result = np.empty((num_stages * (num_stages - 1), num_stages + 1), dtype=np.int64)
    count = 0
    for giver in range(num_stages):
        for taker in range(num_stages):
            if giver == taker or cuts[giver + 1] - cuts[giver] == 1:
                continue
            result[count] = cuts
            if giver < taker:
                result[count, giver + 1 : taker + 1] -= 1
            else:
                result[count, taker + 1 : giver + 1] += 1
            count += 1
    return result[:count]
