"""Orders of reductions: few rounds (Chameleon, section IV-B), or each as soon as it can begin."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import combinations

from restorer.buckets import Bucket

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
    return _last_first(_Colouring(conflicts, num_bytes, _fitted(conflicts, num_bytes)).best(), buckets)


def quick_rounds(
    buckets: Sequence[Bucket], num_bytes: Sequence[int], seconds: Sequence[float], ready_seconds: Sequence[float]
) -> Rounds:
    """What `short_rounds` starts from: rounds by first fit, or each bucket as soon as it can begin. Where many are compared."""
    return _quickly_scheduled(buckets, num_bytes, seconds, ready_seconds).known()


def quickly_reduced_seconds(
    buckets: Sequence[Bucket], num_bytes: Sequence[int], seconds: Sequence[float], ready_seconds: Sequence[float]
) -> float:
    """End of the last reduction with `quick_rounds`."""
    return _quickly_scheduled(buckets, num_bytes, seconds, ready_seconds).known_seconds()


def _quickly_scheduled(
    buckets: Sequence[Bucket], num_bytes: Sequence[int], seconds: Sequence[float], ready_seconds: Sequence[float]
) -> "_Scheduling":
    scheduling = _Scheduling(buckets, seconds, ready_seconds)
    scheduling.offer(_last_first(_fitted(scheduling.conflicts, num_bytes), buckets))
    scheduling.offer(scheduling.soonest())
    return scheduling


def short_rounds(
    buckets: Sequence[Bucket], num_bytes: Sequence[int], seconds: Sequence[float], ready_seconds: Sequence[float]
) -> Rounds:
    """Rounds that are through early when every reduction begins as soon as its workers can.

    The few rounds of the colouring, or each bucket as soon as it can begin, whichever is through first; branch and bound
    over active schedules (Giffler and Thompson, 1960) looks for better ones where the bound leaves room, exact where it
    ends within `MOST_LOOKS`.

    Args:
        buckets: to be ordered.
        num_bytes: of each.
        seconds: that each takes.
        ready_seconds: when the last of its workers is through with its layers.
    """
    scheduling = _Scheduling(buckets, seconds, ready_seconds)
    scheduling.offer(few_rounds(buckets, num_bytes))
    scheduling.offer(scheduling.soonest())
    return scheduling.best()


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


class _Colouring:
    """Branch and bound over buckets from the largest: the first of a round is its largest and pays for it."""

    def __init__(self, conflicts: Conflicts, num_bytes: Sequence[int], known: list[list[int]]) -> None:
        self._conflicts, self._num_bytes = conflicts, num_bytes
        self._order = sorted(range(len(num_bytes)), key=lambda index: -num_bytes[index])
        self._best, self._least = known, _weight(known, num_bytes)
        self._num_nodes = 0

    def best(self) -> list[list[int]]:
        """The best rounds that were found."""
        self._place(0, [], 0)
        return self._best

    def _place(self, depth: int, rounds: list[list[int]], weight: int) -> None:
        if (len(rounds), weight) >= self._least or self._num_nodes >= MOST_NODES:
            return
        if depth == len(self._order):
            self._best, self._least = [list(own) for own in rounds], (len(rounds), weight)
            return
        self._num_nodes += 1
        index = self._order[depth]
        for own in rounds:
            if self._conflicts[index].isdisjoint(own):
                own.append(index)
                self._place(depth + 1, rounds, weight)
                own.pop()
        rounds.append([index])
        self._place(depth + 1, rounds, weight + self._num_bytes[index])
        rounds.pop()


class _Scheduling:
    """Orders of buckets whose workers reduce one at a time."""

    def __init__(self, buckets: Sequence[Bucket], seconds: Sequence[float], ready_seconds: Sequence[float]) -> None:
        self.conflicts, self._stages = conflicts_of(buckets), [frozenset(own) for own in _by_stage(buckets)]
        self._stages_of = [[own for own in self._stages if index in own] for index in range(len(buckets))]
        self._seconds, self._ready = seconds, list(ready_seconds)
        self._best: Rounds = ()
        self._least, self._num_looks = math.inf, 0

    def offer(self, rounds: Rounds) -> None:
        """Rounds that are known; the first of equal ones are kept."""
        end = reduced_seconds(rounds, self.conflicts, self._seconds, self._ready)
        if end < self._least:
            self._best, self._least = rounds, end

    def known(self) -> Rounds:
        """The best rounds that were offered or found so far."""
        return self._best

    def known_seconds(self) -> float:
        """When those are through."""
        return self._least

    def best(self) -> Rounds:
        """The best rounds that were offered or can be found."""
        if len(self._ready) <= MOST_SEARCHED:
            self._extend(self._ready, frozenset(range(len(self._ready))), (), 0.0)
        return self._best

    def soonest(self) -> Rounds:
        """Buckets one by one, always one that can begin first; of those the one whose busiest stage has most left to reduce."""
        start, left = self._ready, frozenset(range(len(self._ready)))
        order: list[int] = []
        while left:
            soon = min(start[index] for index in left)
            ready = [index for index in left if start[index] == soon]
            order.append(ready[0] if len(ready) == 1 else min(ready, key=lambda index: self._urgency(index, start, left)))
            start, left = self._after(order[-1], start, left)
        return _levels(order, self.conflicts)

    def _urgency(self, index: int, start: Sequence[float], left: frozenset[int]) -> tuple[float, float, int]:
        remaining = max(sum(self._seconds[other] for other in own & left) for own in self._stages_of[index])
        return start[index], -remaining, -index

    def _after(self, index: int, start: Sequence[float], left: frozenset[int]) -> tuple[list[float], frozenset[int]]:
        """When the others can begin once `index` was reduced, and which are left."""
        result, left, end = list(start), left - {index}, start[index] + self._seconds[index]
        for other in self.conflicts[index] & left:
            result[other] = max(result[other], end)
        return result, left

    def _extend(self, start: Sequence[float], left: frozenset[int], order: tuple[int, ...], end: float) -> None:
        """All active schedules that begin so: some reduction begins before the one that could end first, or is that one."""
        if max(end, self._bound(start, left)) >= self._least or self._num_looks >= MOST_LOOKS:
            return
        if not left:
            self._best, self._least = _levels(order, self.conflicts), end
            return
        self._num_looks += len(left)
        first = min(left, key=lambda index: (start[index] + self._seconds[index], index))
        limit = start[first] + self._seconds[first]
        rivals = [index for index in (self.conflicts[first] | {first}) & left if start[index] < limit or index == first]
        for index in sorted(rivals, key=lambda index: self._urgency(index, start, left)):
            self._extend(*self._after(index, start, left), (*order, index), max(end, start[index] + self._seconds[index]))

    def _bound(self, start: Sequence[float], left: frozenset[int]) -> float:
        """No stage is through with what is left before this."""
        loads = (
            (min(start[i] for i in own), sum(self._seconds[i] for i in own)) for stage in self._stages if (own := stage & left)
        )
        return max((begin + load for begin, load in loads), default=0.0)
