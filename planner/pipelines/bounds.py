"""What a pipeline takes at least: longest paths through one stage, whatever the others hold; machine code."""

from typing import NamedTuple

import numpy as np

from estimator.arrays import Floats, Ints
from estimator.compiled import borrowing, compiled
from estimator.moments import most_running
from estimator.schedule import most_in_flight

WIDER = 1.25
"""How much longer stages may take where none of the splits within a time fits memory."""


class Model(NamedTuple):
    """Layers as arrays."""

    forward: Floats
    """Time of the first n layers at full speed, shape [layers + 1]."""
    backward: Floats
    """What earlier stages wait for: the whole backward pass, or its input part where the weight part is put off."""
    weight: Floats
    """What is put off; zeros where nothing is."""
    static_bytes: Ints
    """Weights and optimizer state of layers [a, b), shape [layers + 1, layers + 1]."""
    activation_bytes: Ints
    """Of the first n layers and one micro-batch, shape [layers + 1]."""
    entry_bytes: Ints
    """What a stage that begins with layer n keeps of its input besides, shape [layers + 1]."""
    deferred_bytes: Ints
    """Of them what waits for the weight part, shape [layers + 1]."""
    deferred_entry_bytes: Ints
    """What a stage that begins with layer n keeps of its input until then, shape [layers + 1]."""
    taken_bytes: Ints
    """What a pass over layers [a, b) takes beyond, by kind (`estimator.layers.KINDS`), shape [layers + 1, layers + 1, kinds]."""
    update_bytes: Ints
    """What the update of layers [a, b) takes, when no activations are held, shape [layers + 1, layers + 1]."""
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
    moments: Ints
    """When each stage holds most (`estimator.moments.stage_moments`), shape [stages, moments, 3]."""
    rest: int
    """Micro-batches but one."""
    lag: int
    """How many more micro-batches a stage has in flight than the next one (`Schedule.lag`)."""
    all_forward: bool
    """Whether all forward passes come first (GPipe)."""
    tail: Floats
    """Reduction of the first n layers, shape [layers + 1]."""
    least_update: float
    """What the longest update takes at least; it follows everything, so only what a stage's own takes beyond it counts."""
    most_first: int
    """Layers that the first stage holds at most."""
    common: int
    """Layers that one worker somewhere reduces at least, from layer 0 on: some pipeline's first stage."""


@borrowing
def fits(model: Model, chain: Chain, stage: int, start: int, stop: int) -> bool:
    """Whether layers [start, stop) fit the memory of a stage, and are not too many for the first."""
    if stage == 0 and stop > chain.most_first:
        return False
    usable: int = chain.usable_bytes[stage]
    return stage_peak_bytes(model, chain.moments[stage], start, stop) <= usable


@borrowing
def stage_peak_bytes(model: Model, moments: Ints, start: int, stop: int) -> int:
    """`estimator.memory.stage_peak_bytes` of layers [start, stop), from the tables."""
    kept = model.activation_bytes[stop] - model.activation_bytes[start] + model.entry_bytes[start]
    deferred = model.deferred_bytes[stop] - model.deferred_bytes[start] + model.deferred_entry_bytes[start]
    passing = most_running(moments, kept, deferred, model.taken_bytes[start, stop])
    peak: int = model.static_bytes[start, stop] + max(passing, model.update_bytes[start, stop])
    return peak


@borrowing
def fill_peaks(model: Model, moments: Ints, peaks: Floats) -> None:
    """Write `stage_peak_bytes` of every range with layers into a table, shape [layers + 1, layers + 1]."""
    for start in range(len(peaks)):
        for stop in range(start + 1, len(peaks)):
            peaks[start, stop] = stage_peak_bytes(model, moments, start, stop)


@compiled
def fits_somehow(model: Model, chain: Chain) -> bool:
    """Whether any split fits memory. O(layers + stages) where one does in which every stage takes what it can.

    Elsewhere O(stages * layers) for each layer that a stage can hold: one that is too large for a stage may fit a later one, which
    has fewer micro-batches in flight.
    """
    count, num_stages = model.static_bytes.shape[0] - 1, len(chain.speeds)
    stop = 0
    for stage in range(num_stages):
        start, last = stop, count - (num_stages - 1 - stage)
        while stop < last and fits(model, chain, stage, start, stop + 1):
            stop += 1
        if stop == start:
            return _reaches_end(model, chain)
    return bool(stop == count) or _reaches_end(model, chain)


@compiled
def _reaches_end(model: Model, chain: Chain) -> bool:
    """Whether any split fits memory, whatever stages take; more layers never need less."""
    count, num_stages = model.static_bytes.shape[0] - 1, len(chain.speeds)
    is_reached = np.zeros((num_stages + 1, count + 1), dtype=np.bool_)
    is_reached[0, 0] = True
    for stage in range(num_stages):
        for start in range(stage, count - num_stages + stage + 1):
            stop = start + 1 if is_reached[stage, start] else count + 1
            while stop <= count - (num_stages - 1 - stage) and fits(model, chain, stage, start, stop):
                is_reached[stage + 1, stop] = True
                stop += 1
    return bool(is_reached[num_stages, count])


@compiled
def widest_that_fits(model: Model, chain: Chain, both: Floats, least: float) -> float:
    """Least possible time of the greatest stage over all splits that fit memory; infinite where none does.

    Tried within times that grow from the least one, so that few layers are in question as first ones of a stage.

    Args:
        model: layers.
        chain: what is asked of the pipeline.
        both: time of the first n layers, shape [layers + 1].
        least: no split has a greatest stage that takes less.
    """
    count, num_stages, limit = len(both) - 1, len(chain.speeds), least
    while True:
        limit *= 1 + 1e-12
        best = np.full((num_stages + 1, count + 1), np.inf)
        best[0, 0] = 0.0
        for stage in range(num_stages):
            for start in range(stage, count - num_stages + stage + 1):
                stop = start + 1 if best[stage, start] < np.inf else count + 1
                while stop <= count - (num_stages - 1 - stage):
                    own = both[stop] - both[start]
                    if own > limit or not fits(model, chain, stage, start, stop):
                        break
                    if both[count] - both[stop] <= (num_stages - 1 - stage) * limit:
                        best[stage + 1, stop] = min(best[stage + 1, stop], max(best[stage, start], own))
                    stop += 1
        if best[num_stages, count] < np.inf or limit >= both[count]:
            return float(best[num_stages, count])
        limit *= WIDER


@borrowing
def reduction_seconds(chain: Chain, start: int, stop: int) -> float:
    """Of the layers of a stage."""
    return float(chain.tail[stop] - chain.tail[start] + chain.tail[0])


@borrowing
def update_seconds(model: Model, chain: Chain, stage: int, start: int, stop: int) -> float:
    """By how much the update of a stage's layers is longer than the least."""
    return float(max(0.0, (model.update[stop] - model.update[start]) / chain.speeds[stage] - chain.least_update))


@borrowing
def together_seconds(chain: Chain, start: int, stop: int) -> float:
    """What follows a stage's last backward pass, or its input part, when one worker reduces the `common` first layers; 0 for none.

    Of those, the layers up to the stage's last have passed through it or will be passed later by a stage before it, so that
    worker, which reduces one layer at a time, begins none of them earlier.
    """
    if start >= chain.common:
        return 0.0
    return float(chain.tail[min(stop, chain.common)])


@borrowing
def flight_of(chain: Chain, stage: int) -> int:
    """Micro-batches that a stage passes forward before its first backward pass, if there are as many."""
    return most_in_flight(len(chain.speeds) - stage, chain.lag)


@borrowing
def late_weights(chain: Chain, stage: int) -> int:
    """Micro-batches whose weight parts a stage passes after its last input part, where they are put off."""
    num_put_off = chain.lag * stage
    return int(chain.rest >= num_put_off) + min(num_put_off, chain.rest + 1)


@borrowing
def follow_seconds(model: Model, chain: Chain, stop: int) -> float:
    """What follows the last input part of the first stage when it holds the layers up to `stop`; in seconds.

    Its weight part, the reduction of its layers, and an update that is longer than the least.
    """
    reduced = reduction_seconds(chain, 0, stop) + update_seconds(model, chain, 0, 0, stop)
    return float(model.weight[stop] / chain.speeds[0] + reduced)


@borrowing
def stage_bound(model: Model, chain: Chain, stage: int, layers: tuple[int, int], follow: float) -> float:
    """Least objective with some layers on a stage, whatever the others hold; in seconds.

    Longest paths through the stage: every round trip below it waits for the micro-batches in flight. They end with what
    follows the first stage's last backward pass, or the stage's own.

    Args:
        model: layers.
        chain: what is asked of the pipeline.
        stage: index of the stage.
        layers: its first layer and one past its last.
        follow: what follows the first stage's last backward pass at least.
    """
    through, back, after = stage_parts(model, chain, stage, layers[0], layers[1])
    return through + max(back + follow if stage > 0 else 0.0, after)


@borrowing
def stage_parts(model: Model, chain: Chain, stage: int, start: int, stop: int) -> tuple[float, float, float]:
    """Of `stage_bound`: until its last backward pass, from there to the first stage's, and what follows its own; in seconds."""
    speed, forward, backward = chain.speeds[stage], model.forward, model.backward
    own_forward, own_backward = (forward[stop] - forward[start]) / speed, (backward[stop] - backward[start]) / speed
    own_weight = (model.weight[stop] - model.weight[start]) / speed
    upper = forward[start] / chain.above[stage] + stage * model.least_delay
    back = backward[start] / chain.above[stage] + stage * model.least_delay
    lower = (forward[-1] + backward[-1] - forward[stop] - backward[stop]) / chain.below[stage]
    lower += 2.0 * (len(chain.speeds) - 1 - stage) * model.least_delay
    through = own_forward + own_backward + lower
    waits = waiting_seconds(chain, stage, (own_forward, own_backward, own_weight), lower)
    late = late_weights(chain, stage) * own_weight
    reduced = max(late + reduction_seconds(chain, start, stop), together_seconds(chain, start, stop))
    return upper + through + waits, back, reduced + update_seconds(model, chain, stage, start, stop)


@borrowing
def waiting_seconds(chain: Chain, stage: int, own: tuple[float, float, float], lower: float) -> float:
    """What a stage's last backward pass waits for at least beside one round trip through the stage and those below it.

    With w micro-batches in flight and m in all: a second round trip after those that the stage does by itself; round trips
    of every w-th; all of the stage's own passes; and those of the passes that cannot go beside the first or the last trip. A
    stage does weight parts from the micro-batch of `lag` times its own index on; the others it puts off to the end.

    Args:
        chain: what is asked of the pipeline.
        stage: index of the stage.
        own: its forward pass, and its input and weight part, in seconds.
        lower: one micro-batch's way through the stages below and back.
    """
    forward, backward, weight = own
    both, rest, flight, num_put_off = forward + backward, chain.rest, flight_of(chain, stage), chain.lag * stage
    if chain.all_forward:
        return rest * both
    done = max(0, rest - num_put_off) * weight
    if rest < flight:
        return max(rest * forward, rest * backward + done)
    rounds, alone = rest // flight, rest - flight
    early = max(0, alone - num_put_off + 1) * weight
    trips = max(both + lower + alone * both + early, rounds * (both + lower) + (rest - rounds * flight) * both)
    beside = max(rest * backward + (alone + 1) * forward + done, rest * forward + (alone + 1) * backward + early)
    return max(trips, beside, rest * both + done - lower)


@borrowing
def greatest_bound(model: Model, chain: Chain, cuts: Ints) -> float:
    """Of a split's stages, in seconds; infinite where one does not fit memory."""
    result, follow = 0.0, follow_seconds(model, chain, cuts[1])
    for stage in range(len(chain.speeds)):
        if not fits(model, chain, stage, cuts[stage], cuts[stage + 1]):
            return np.inf
        result = max(result, stage_bound(model, chain, stage, (cuts[stage], cuts[stage + 1]), follow))
    return result


@borrowing
def most_apart(both: Floats, one: Floats, other: Floats, reach: float, common: int) -> float:
    """By how much the reductions of a stage differ at most between two tails, in seconds. O(layers).

    Args:
        both: time of the first n layers, shape [layers + 1].
        one: reduction of the first n layers, shape [layers + 1].
        other: the same.
        reach: no stage takes longer.
        common: layers from the first on that are reduced together.
    """
    first = one[0] - other[0]
    apart, together = 0.0, abs(first)
    for layer in range(1, min(common + 1, len(one))):
        together = max(together, abs(one[layer] - other[layer]))
    stop, ahead, behind = 0, 0.0, 0.0
    for start in range(len(both)):
        if start:
            behind += abs((one[start] - other[start]) - (one[start - 1] - other[start - 1]))
        while stop + 1 < len(both) and both[stop + 1] <= both[start] + reach:
            stop += 1
            ahead += abs((one[stop] - other[stop]) - (one[stop - 1] - other[stop - 1]))
        apart = max(apart, ahead - behind)
    return float(max(apart + abs(first), together))
