"""Orders of reductions: few rounds (Chameleon, section IV-B), or each as soon as it can begin."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np

from estimator.arrays import Floats, Ints, Mask
from restorer.buckets import Bucket
from restorer.colouring import coloured, first_fitted, weight
from restorer.sequencing import Shop, end_seconds, shortest, sooner_seconds, soonest

Rounds = tuple[tuple[int, ...], ...]
"""Indices of buckets, round by round."""

MOST_NODES = 500
"""Places that the search for few rounds tries at most; enough for about ten buckets."""

MOST_SEARCHED = 32
"""More buckets are only ordered as soon as they can begin."""

MOST_LOOKS = 3000
"""Buckets that the search for short rounds looks at, at most; it ends for about ten of them."""


def few_rounds(buckets: Sequence[Bucket], num_bytes: Sequence[int]) -> Rounds:
    """The fewest rounds in which no worker is in two reductions, and of those the least total bytes; last layers first.

    A round is as long as its largest bucket. Buckets of untied layers lie along the model and those of one stage follow each
    other, so first fit along it needs no more rounds than the stage with most buckets has, which is the fewest. First
    fit by size and by degree may weigh less. Branch and bound then looks for better ones: exact where it ends within
    `MOST_NODES` places.
    """
    return _few(buckets, _conflicts(_stages(buckets)), num_bytes)


@dataclass(frozen=True)
class QuickOrder:
    """What `short_rounds` starts from: rounds by first fit, or each bucket as soon as it can begin. Where many are compared."""

    buckets: Sequence[Bucket]
    num_bytes: Sequence[int]
    stages: Mask
    """Which buckets each stage of each shape takes part in, shape by shape. Shape [stages, buckets]."""
    conflicts: Mask
    """Whether two buckets share a worker, shape [buckets, buckets]."""
    fitted: Rounds

    @classmethod
    def of(cls, buckets: Sequence[Bucket], num_bytes: Sequence[int]) -> "QuickOrder":
        """Of buckets of these sizes."""
        stages = _stages(buckets)
        conflicts = _conflicts(stages)
        fitted = _last_first(first_fitted(conflicts, np.array(num_bytes, dtype=np.int64)), buckets)
        return cls(buckets, num_bytes, stages, conflicts, fitted)

    def rounds(self, seconds: Sequence[float], ready_seconds: Sequence[float]) -> Rounds:
        """Whichever are through first when the buckets take so long and can begin then."""
        return _sooner(self._shop(seconds, ready_seconds), self.fitted)[0]

    def reduced_seconds(self, seconds: Sequence[float], ready_seconds: Sequence[float] | Floats) -> float:
        """End of the last reduction with these rounds."""
        return sooner_seconds(self._shop(seconds, ready_seconds), self._flat)

    def shortest_seconds(self, seconds: Sequence[float], ready_seconds: Sequence[float] | Floats) -> float:
        """End of the last reduction with `short_rounds`."""
        return _shortest(self._shop(seconds, ready_seconds), self._few)[1]

    @cached_property
    def _flat(self) -> Ints:
        return _flat(self.fitted)

    @cached_property
    def _few(self) -> Rounds:
        return _few(self.buckets, self.conflicts, self.num_bytes)

    def _shop(self, seconds: Sequence[float], ready_seconds: Sequence[float] | Floats) -> Shop:
        own, ready = np.array(seconds, dtype=np.float64), np.array(ready_seconds, dtype=np.float64)
        return Shop(self.conflicts, self.stages, own, ready)


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
    stages = _stages(buckets)
    conflicts = _conflicts(stages)
    shop = Shop(conflicts, stages, np.array(seconds, dtype=np.float64), np.array(ready_seconds, dtype=np.float64))
    return _shortest(shop, _few(buckets, conflicts, num_bytes))[0]


def _shortest(shop: Shop, few: Rounds) -> tuple[Rounds, float]:
    """`short_rounds` from few rounds on, and when they are through."""
    rounds, end = _sooner(shop, few)
    if len(shop.ready) > MOST_SEARCHED:
        return rounds, end
    order = shortest(shop, end, MOST_LOOKS)
    return (_levels(order, shop.conflicts), end_seconds(shop, order)) if len(order) else (rounds, end)


def _sooner(shop: Shop, rounds: Rounds) -> tuple[Rounds, float]:
    """Some rounds, or each bucket as soon as it can begin, whichever is through first; and when."""
    end, order = end_seconds(shop, _flat(rounds)), soonest(shop)
    other = end_seconds(shop, order)
    return (_levels(order, shop.conflicts), other) if other < end else (rounds, end)


def _flat(rounds: Rounds) -> Ints:
    return np.array(list(chain.from_iterable(rounds)), dtype=np.int64)


def _stages(buckets: Sequence[Bucket]) -> Mask:
    """Which buckets each stage of each shape takes part in, shape by shape. Shape [stages, buckets]."""
    pairs = [
        (shape, stage, index) for index, bucket in enumerate(buckets) for shape, own in enumerate(bucket.stages) for stage in own
    ]
    row_of = {place: row for row, place in enumerate(sorted({(shape, stage) for shape, stage, _ in pairs}))}
    result = np.zeros((len(row_of), len(buckets)), dtype=np.bool_)
    result[[row_of[shape, stage] for shape, stage, _ in pairs], [index for _, _, index in pairs]] = True
    return result


def _conflicts(stages: Mask) -> Mask:
    """Whether two buckets share a worker. Shape [buckets, buckets]."""
    result: Mask = stages.T @ stages
    np.fill_diagonal(result, val=False)
    return result


def _few(buckets: Sequence[Bucket], conflicts: Mask, num_bytes: Sequence[int]) -> Rounds:
    """Rounds by first fit, or better ones by branch and bound."""
    sizes = np.array(num_bytes, dtype=np.int64)
    known, order = first_fitted(conflicts, sizes), np.argsort(-sizes, kind="stable")
    found = coloured(conflicts[np.ix_(order, order)], sizes[order], weight(known, sizes), MOST_NODES)
    if len(found):
        known[order] = found
    return _last_first(known, buckets)


def _last_first(colours: Ints, buckets: Sequence[Bucket]) -> Rounds:
    """The buckets of each round; those of the last layers come first."""
    rounds: list[list[int]] = [[] for _ in range(int(colours.max(initial=-1)) + 1)]
    for index, colour in enumerate(colours.tolist()):
        rounds[colour].append(index)
    means = [sum(bucket.layers) / len(bucket.layers) for bucket in buckets]
    return tuple(tuple(own) for own in sorted(rounds, key=lambda own: sum(means[index] for index in own) / len(own), reverse=True))


def _levels(order: Ints, conflicts: Mask) -> Rounds:
    """Every bucket in the round after the last one in which a conflicting one precedes it; keeps every worker's order."""
    level = np.full(len(order), -1)
    rounds: dict[int, list[int]] = defaultdict(list)
    for index in order.tolist():
        level[index] = level[conflicts[index]].max(initial=-1) + 1
        rounds[int(level[index])].append(index)
    return tuple(tuple(rounds[number]) for number in sorted(rounds))
