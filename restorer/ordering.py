"""Orders of reductions: few rounds (Chameleon, section IV-B), or each as soon as it can begin."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import chain, combinations

import numpy as np

from restorer.buckets import Bucket
from restorer.colouring import Mask, coloured
from restorer.sequencing import Shop, end_seconds, shortest, soonest

Rounds = tuple[tuple[int, ...], ...]
"""Indices of buckets, round by round."""

MOST_NODES = 500
"""Places that the search for few rounds tries at most; enough for about ten buckets."""

MOST_SEARCHED = 32
"""More buckets are only ordered as soon as they can begin."""

MOST_LOOKS = 3000
"""Buckets that the search for short rounds looks at, at most; it ends for about ten of them."""

Conflicts = Sequence[frozenset[int]]
"""The buckets that share a worker with each bucket."""


def conflicts_of(buckets: Sequence[Bucket]) -> tuple[frozenset[int], ...]:
    """The buckets that share a worker with each bucket. Shape [buckets]."""
    result: list[set[int]] = [set() for _ in buckets]
    for indices in _by_stage(buckets):
        for a, b in combinations(indices, 2):
            result[a].add(b)
            result[b].add(a)
    return tuple(map(frozenset, result))


def few_rounds(buckets: Sequence[Bucket], num_bytes: Sequence[int]) -> Rounds:
    """The fewest rounds in which no worker is in two reductions, and of those the least total bytes; last layers first.

    A round is as long as its largest bucket. Buckets of untied layers lie along the model and those of one stage follow each
    other, so first fit along it needs no more rounds than the stage with most buckets has, which is the fewest. First
    fit by size and by degree may weigh less. Branch and bound then looks for better ones: exact where it ends within
    `MOST_NODES` places.
    """
    conflicts = conflicts_of(buckets)
    return _last_first(_coloured(conflicts, num_bytes, _fitted(conflicts, num_bytes)), buckets)


def quick_rounds(
    buckets: Sequence[Bucket], num_bytes: Sequence[int], seconds: Sequence[float], ready_seconds: Sequence[float]
) -> Rounds:
    """What `short_rounds` starts from: rounds by first fit, or each bucket as soon as it can begin. Where many are compared."""
    return _quick(buckets, num_bytes, seconds, ready_seconds)[0]


def quickly_reduced_seconds(
    buckets: Sequence[Bucket], num_bytes: Sequence[int], seconds: Sequence[float], ready_seconds: Sequence[float]
) -> float:
    """End of the last reduction with `quick_rounds`."""
    return _quick(buckets, num_bytes, seconds, ready_seconds)[1]


def _quick(
    buckets: Sequence[Bucket], num_bytes: Sequence[int], seconds: Sequence[float], ready_seconds: Sequence[float]
) -> tuple[Rounds, float]:
    conflicts = conflicts_of(buckets)
    rounds = _last_first(_fitted(conflicts, num_bytes), buckets)
    return _sooner(_shop(buckets, conflicts, seconds, ready_seconds), conflicts, rounds)


def short_rounds(
    buckets: Sequence[Bucket], num_bytes: Sequence[int], seconds: Sequence[float], ready_seconds: Sequence[float]
) -> Rounds:
    """Rounds that are through early when every reduction begins as soon as its workers can.

    The few rounds of the colouring, or each bucket as soon as it can begin, whichever is through first; branch and bound
    (`restorer.sequencing`) looks for better ones where the bound leaves room, exact where it ends within `MOST_LOOKS`.

    Args:
        buckets: to be ordered.
        num_bytes: of each.
        seconds: that each takes.
        ready_seconds: when the last of its workers is through with its layers.
    """
    if not buckets:
        return ()
    conflicts = conflicts_of(buckets)
    shop = _shop(buckets, conflicts, seconds, ready_seconds)
    rounds, end = _sooner(shop, conflicts, few_rounds(buckets, num_bytes))
    order = shortest(shop, end, MOST_LOOKS) if len(buckets) <= MOST_SEARCHED else ()
    return _levels([int(index) for index in order], conflicts) if len(order) else rounds


def _sooner(shop: Shop, conflicts: Conflicts, rounds: Rounds) -> tuple[Rounds, float]:
    """Some rounds, or each bucket as soon as it can begin, whichever is through first; and when."""
    end, order = end_seconds(shop, np.array(list(chain.from_iterable(rounds)), dtype=np.int64)), soonest(shop)
    other = end_seconds(shop, order)
    return (_levels(order.tolist(), conflicts), other) if other < end else (rounds, end)


def _shop(buckets: Sequence[Bucket], conflicts: Conflicts, seconds: Sequence[float], ready_seconds: Sequence[float]) -> Shop:
    stages = _by_stage(buckets)
    is_on = np.zeros((len(stages), len(buckets)), dtype=np.bool_)
    for own, indices in zip(is_on, stages, strict=True):
        own[indices] = True
    return Shop(_mask(conflicts), is_on, np.array(seconds, dtype=np.float64), np.array(ready_seconds, dtype=np.float64))


def _mask(conflicts: Conflicts) -> Mask:
    """Shape [buckets, buckets]."""
    result = np.zeros((len(conflicts), len(conflicts)), dtype=np.bool_)
    for own, others in zip(result, conflicts, strict=True):
        own[list(others)] = True
    return result


def _coloured(conflicts: Conflicts, num_bytes: Sequence[int], known: list[list[int]]) -> list[list[int]]:
    """The known rounds or better ones."""
    order = sorted(range(len(num_bytes)), key=lambda index: -num_bytes[index])
    sizes = np.array([num_bytes[index] for index in order], dtype=np.int64)
    colours = coloured(_mask(conflicts)[np.ix_(order, order)], sizes, _weight(known, num_bytes), MOST_NODES)
    if not len(colours):
        return known
    rounds: list[list[int]] = [[] for _ in range(int(colours.max()) + 1)]
    for index, colour in zip(order, colours.tolist(), strict=True):
        rounds[colour].append(index)
    return rounds


def reduced_seconds(rounds: Rounds, conflicts: Conflicts, seconds: Sequence[float], ready_seconds: Sequence[float]) -> float:
    """End of the last reduction, each beginning as soon as its workers are through with its layers and their reductions before."""
    start, done = list(ready_seconds), set()
    for index in (index for own in rounds for index in own):
        done.add(index)
        for other in conflicts[index] - done:
            start[other] = max(start[other], start[index] + seconds[index])
    return max((begin + own for begin, own in zip(start, seconds, strict=True)), default=0.0)


def _by_stage(buckets: Sequence[Bucket]) -> list[list[int]]:
    """Indices of the buckets that each stage of each shape takes part in."""
    result: dict[tuple[int, int], list[int]] = defaultdict(list)
    for index, bucket in enumerate(buckets):
        for shape, stages in enumerate(bucket.stages):
            for stage in stages:
                result[shape, stage].append(index)
    return list(result.values())


def _last_first(rounds: Iterable[Sequence[int]], buckets: Sequence[Bucket]) -> Rounds:
    """Those of the last layers come first."""
    return tuple(tuple(sorted(own)) for own in sorted(rounds, key=lambda own: _mean_layer(buckets, own), reverse=True))


def _fitted(conflicts: Conflicts, num_bytes: Sequence[int]) -> list[list[int]]:
    """The best rounds by first fit: along the model, by size, and by degree."""
    along = range(len(num_bytes))
    orders = (
        along,
        sorted(along, key=lambda index: -num_bytes[index]),
        sorted(along, key=lambda index: (-len(conflicts[index]), -num_bytes[index])),
    )
    return min((_first_fit(order, conflicts) for order in orders), key=lambda found: _weight(found, num_bytes))


def _first_fit(order: Iterable[int], conflicts: Conflicts) -> list[list[int]]:
    """Every bucket in the first round without a conflict."""
    rounds: list[list[int]] = []
    for index in order:
        free = next((own for own in rounds if conflicts[index].isdisjoint(own)), None)
        if free is None:
            rounds.append([index])
        else:
            free.append(index)
    return rounds


def _levels(order: Iterable[int], conflicts: Conflicts) -> Rounds:
    """Every bucket in the round after the last one in which a conflicting one precedes it; keeps every worker's order."""
    level: dict[int, int] = {}
    rounds: dict[int, list[int]] = defaultdict(list)
    for index in order:
        level[index] = max((level[other] + 1 for other in conflicts[index] if other in level), default=0)
        rounds[level[index]].append(index)
    return tuple(tuple(rounds[number]) for number in sorted(rounds))


def _weight(rounds: Sequence[Sequence[int]], num_bytes: Sequence[int]) -> tuple[int, int]:
    """How many rounds, and the sum of their largest buckets."""
    return len(rounds), sum(max(num_bytes[index] for index in own) for own in rounds)


def _mean_layer(buckets: Sequence[Bucket], own: Sequence[int]) -> float:
    """Where in the model a round's reductions lie."""
    means = [sum(buckets[index].layers) / len(buckets[index].layers) for index in own]
    return sum(means) / len(means)
