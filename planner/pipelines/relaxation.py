"""Closed-form lower bounds on pipelines, and the most micro-batches that any pipelines could finish in time: machine code."""

from typing import NamedTuple

import numpy as np

from estimator.arrays import Floats, Ints, Mask
from estimator.compiled import borrowing, compiled
from estimator.schedule import most_in_flight

Numbers = Ints | Floats


class Outline(NamedTuple):
    """What closed-form bounds know of a model on equal workers."""

    both: Floats
    """The passes of the first n layers that others wait for, shape [layers + 1]."""
    work: float
    """All passes of all layers."""
    delay: float
    """The least link delay."""
    widest: Floats
    """Least possible time of the greatest of n stages, shape [layers + 1]."""
    fitting: Floats
    """The same over splits that fit memory with more micro-batches than are ever in flight, shape [layers + 1]."""
    lag: int
    """How many more micro-batches a stage has in flight than the next one (`Schedule.lag`)."""
    all_forward: bool
    """Whether all forward passes come first (GPipe)."""


class Lengths(NamedTuple):
    """Pipelines to choose from: every length from a first one on."""

    outline: Outline
    first: int
    """The shortest."""
    most: Ints
    """Most micro-batches that a pipeline of length first + k can take at all, shape [lengths]."""
    tail: Floats
    """Reduction of the first n layers, shape [layers + 1]."""
    least_update: float
    """What the longest update takes at least, which the objective leaves out."""


@compiled
def widest_stages(prefix: Floats) -> Floats:
    """Least possible sum of the greatest of n contiguous stages, n = 1 .. layers. Shape [layers + 1]; the first is infinite."""
    count = len(prefix) - 1
    best = np.full((count + 1, count + 1), np.inf)
    best[0, 0] = 0.0
    for stages in range(1, count + 1):
        for stop in range(stages, count + 1):
            for start in range(stop - 1, stages - 2, -1):
                own = prefix[stop] - prefix[start]
                if own >= best[stages, stop]:
                    break
                best[stages, stop] = min(best[stages, stop], max(own, best[stages - 1, start]))
    return best[:, count].copy()


@borrowing
def least_seconds(outline: Outline, num_stages: int, num_microbatches: int, tail: Floats) -> float:
    """No split of the layers over so many equal workers has a shorter objective, in seconds. O(layers).

    The greatest stage takes at least `widest`, more where the first stage holds few layers; the path through it waits for
    it once per micro-batch that is not in flight, and for the stages below it twice; or for half of its passes; or it does all of
    its own between its first and its last.
    """
    both, rest, count = outline.both, num_microbatches - 1, len(outline.both) - 1
    total, result, flight = both[-1], np.inf, most_in_flight(num_stages, outline.lag)
    least = outline.fitting[num_stages] if num_microbatches > flight else outline.widest[num_stages]
    chain = total + 2 * (num_stages - 1) * outline.delay
    for first in range(1 if num_stages > 1 else count, count - num_stages + 2):
        widest = max(both[first], (total - both[first]) / max(1, num_stages - 1), least)
        if outline.all_forward:
            waits = rest * widest
        else:
            waits = max(rest * widest / 2, num_microbatches * widest - chain, (rest // flight) * chain)
            if rest >= flight:
                waits = max(waits, total + (rest - flight) * widest)
        result = min(result, chain + waits + tail[first])
        if both[first] > least and both[first] * (num_stages - 1) > total - both[first]:
            break
    return max(result, num_microbatches * outline.work / num_stages)


@compiled
def caps(lengths: Lengths, target: float) -> Ints:
    """Most micro-batches that a pipeline of each length might finish within a time. Shape [lengths]."""
    return caps_near(lengths, target, np.zeros(len(lengths.most), dtype=np.int64))


@compiled
def caps_near(lengths: Lengths, target: float, guess: Ints) -> Ints:
    """`caps`, found the sooner the closer they are to a guess, or to that of the length before where the guess is 0."""
    result = np.zeros(len(lengths.most), dtype=np.int64)
    for index in range(len(result)):
        most, near = lengths.most[index], guess[index] if guess[index] > 0 or index == 0 else result[index - 1]
        low, high, step = 0, most + 1, 1
        probe = min(max(1, near), most)
        while high - low > 1:
            if least_seconds(lengths.outline, lengths.first + index, probe, lengths.tail) <= target:
                low = probe
                probe = low + step
            else:
                high = probe
                probe = high - step
            step *= 2
            if not low < probe < high:
                probe = (low + high) // 2
        result[index] = low
    return result


@borrowing
def relaxed_worth(worth: Numbers, first_length: int, num_workers: int, num_pipelines: int) -> float:
    """No multiset of lengths is worth more: the linear relaxation of the knapsack, on at most two lengths. O(lengths^2)."""
    mean, result = num_workers / num_pipelines, -1.0
    for short in range(len(worth)):
        below = mean - first_length - short
        if worth[short] < 1 or below < 0:
            continue
        result = max(result, num_pipelines * float(worth[short]))
        for long in range(short + 1, len(worth)):
            if worth[long] > worth[short]:
                share = min(1.0, below / (long - short))
                result = max(result, num_pipelines * (worth[short] + share * (worth[long] - worth[short])))
    return result


@compiled
def can_finish(lengths: Lengths, target: float, num_workers: int, num_pipelines: int, num_microbatches: int) -> bool:
    """False only if no such pipelines finish so many micro-batches within a time."""
    worth = caps(lengths, target)
    return bool(relaxed_worth(worth, lengths.first, num_workers, num_pipelines) * (1 + 1e-12) >= num_microbatches)


@compiled
def table(lengths: Lengths, horizon: float) -> Floats:
    """`least_seconds` of every length and of 1, 2, ... micro-batches; infinite beyond the horizon. Shape [lengths, counts]."""
    widths = caps(lengths, horizon)
    result = np.full((len(widths), max(1, widths.max())), np.inf)
    for index in range(len(widths)):
        for column in range(widths[index]):
            result[index, column] = least_seconds(lengths.outline, lengths.first + index, column + 1, lengths.tail)
    return result


@compiled
def promises(outline: Outline, offers: tuple[int, Ints, Floats], degrees: Ints, work: tuple[int, int]) -> Floats:
    """About how long so many pipelines take when pipelines can be divided: an order to try them in.

    A pipeline of p stages is taken to finish a micro-batch in every `fitting[p]` seconds once it is filled. Shape of `degrees`.

    Args:
        outline: of the model.
        offers: the shortest length; the most micro-batches that a pipeline of each length can take, shape [degrees, lengths]; and
            what follows the last backward pass, of the same shape.
        degrees: numbers of pipelines.
        work: workers and micro-batches in all.
    """
    first, most, tails = offers
    num_workers, total = work
    result, num_lengths = np.empty(len(degrees)), tails.shape[1]
    fill, worth = np.empty(num_lengths), np.empty(num_lengths)
    for index in range(len(degrees)):
        for k in range(num_lengths):
            length = first + k
            chain = outline.both[-1] + 2 * (length - 1) * outline.delay
            fill[k] = chain + outline.both[-1] - (length + 1) * outline.fitting[length] + tails[index, k]
        low, high = 0.0, outline.both[-1] * (total + num_lengths + first) + tails[index].max() + fill.max()
        for _ in range(24):
            middle = (low + high) / 2
            for k in range(num_lengths):
                worth[k] = min(most[index, k], np.floor((middle - fill[k]) / outline.fitting[first + k] + 1e-9))
            if relaxed_worth(worth, first, num_workers, degrees[index]) >= total:
                high = middle
            else:
                low = middle
        result[index] = high
    return result


@compiled
def which_can_finish(
    outline: Outline, offers: tuple[int, Ints, Floats], target: tuple[Ints, Floats], work: tuple[int, int]
) -> Mask:
    """`can_finish` for many numbers of pipelines. Shape [degrees].

    Args:
        outline: of the model.
        offers: the shortest length; `Lengths.most`, shape [degrees, lengths]; and `Lengths.tail`, shape [degrees, layers + 1].
        target: numbers of pipelines and times within which they have to be through, shape [degrees] each.
        work: workers and micro-batches in all.
    """
    first, most, tails = offers
    degrees, seconds = target
    result, worth = np.empty(len(degrees), dtype=np.bool_), np.zeros(most.shape[1], dtype=np.int64)
    for index in range(len(degrees)):
        worth = caps_near(Lengths(outline, first, most[index], tails[index], 0.0), seconds[index], worth)
        result[index] = relaxed_worth(worth, first, work[0], degrees[index]) * (1 + 1e-12) >= work[1]
    return result
