"""Pipelines of given workers: layers and micro-batches follow speed."""

import math
from bisect import bisect_left
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from estimator.arrays import Floats
from kintsugi.core.profile import LinkCost
from planner.arranging.arrangement import Arrangement, PipelineShape
from planner.arranging.grouping import Kinds
from planner.arranging.ordering import Ordered, Ordering
from planner.arranging.pace import Pace, busiest_seconds, by_speed, together
from planner.arranging.problem import Asked
from planner.arranging.stepping import Kind, Stepper
from planner.pipelines.kinds import WorkerKind
from planner.pipelines.partition import Partitioner
from planner.pipelines.tails import tail_seconds

Sides = tuple[int, ...]
"""Of slow links that the workers of a pipeline are on."""

Levels = Mapping[WorkerKind, WorkerKind]
"""What each kind of worker counts as."""

MOST_CORRECTED = 3
"""How often shares are reckoned anew from the times of those before."""

ROUNDING = 1e-9
"""By what share a bound may be above a time by rounding alone."""


@dataclass(frozen=True)
class Assembled:
    """An arrangement whose step is reckoned when it is asked for."""

    arrangement: Arrangement
    alike: Counter[Kind]
    """Its pipelines."""
    stepper: Stepper
    reduction_link: LinkCost
    longest_seconds: float
    """Of its pipelines, until each has reduced its own layers."""

    @cached_property
    def least_seconds(self) -> float:
        """The step is no shorter."""
        return (self.longest_seconds + self.stepper.after_seconds(self.alike)) * (1 - ROUNDING)

    @cached_property
    def timed(self) -> Arrangement:
        """The arrangement with its step."""
        return replace(self.arrangement, seconds=self.stepper.seconds(self.alike, self.reduction_link))


class Assembly:
    """Assembles pipelines of given workers; what it finds out about groups of these it keeps."""

    def __init__(
        self, asked: Asked, num_workers: int, partitioner: Callable[[int], Partitioner], levels: Levels | None = None
    ) -> None:
        """An assembly that knows nothing yet.

        Args:
            asked: of the workers.
            num_workers: of the job.
            partitioner: for so many replicas that share optimizer state.
            levels: what each kind of worker counts as; None for itself.
        """
        self._asked, self._partitioner, self._levels = asked, partitioner, levels
        self._ordering = Ordering(num_workers)
        self._splits: dict[tuple[int, Kinds, int], Ordered | None] = {}
        self._most: dict[tuple[int, Kinds], int] = {}
        """Micro-batches that fit the memory of one of so many pipelines, where it was found out."""
        self._assembled: dict[tuple[tuple[Kinds, ...], tuple[Sides, ...]], Assembled | None] = {}
        self._tails: dict[int, Floats] = {}
        self._stepper = asked.shared.stepper(asked.costs, asked.schedule, asked.link)

    def of(self, groups: Sequence[Kinds], sides: Sequence[Sides] = ()) -> Assembled | None:
        """Pipelines of these workers, first stages first; None where nothing fits memory.

        Args:
            groups: workers of each pipeline.
            sides: of slow links that each of these workers is on; nothing where that does not matter.
        """
        key = tuple(groups), tuple(sides)
        if key not in self._assembled:
            self._assembled[key] = self._over(*key)
        return self._assembled[key]

    def _over(self, groups: Sequence[Kinds], sides: Sequence[Sides]) -> Assembled | None:
        shares = self._shares(groups)
        if shares is None:
            return None
        dp, pipelines, longest = len(groups), list[tuple[PipelineShape, Kinds, Sides]](), 0.0
        for group, share, own in zip(groups, shares, sides or ((),) * len(groups), strict=True):
            found = self.split(dp, group, share)
            if found is None:
                return None
            order, split = found
            pipelines.append((PipelineShape(split.cuts, share), order, _along(order, group, own)))
            longest = max(longest, split.seconds)
        pipelines.sort(key=lambda item: (-len(item[1]), -item[0].num_microbatches, item[0].cuts, *item[1:]))
        alike = Counter(
            Kind(shape.cuts, shape.num_microbatches, tuple(kind.speed_ratio for kind in own)) for shape, own, _ in pipelines
        )
        arrangement = Arrangement(
            shapes=tuple(shape for shape, _, _ in pipelines),
            seconds=math.inf,
            kinds=tuple(kind for _, own, _ in pipelines for kind in own),
            levels=self._levels,
            sides=tuple(side for _, _, own in pipelines for side in own) or None,
        )
        return Assembled(arrangement, alike, self._stepper, self._asked.reduction_link(dp), longest)

    def _shares(self, groups: Sequence[Kinds]) -> tuple[int, ...] | None:
        """Micro-batches of pipelines so that all are through together; None where some pipeline fits no micro-batch.

        Begins with shares by speed; from then on a micro-batch more or less takes a pass of the busiest stage.
        """
        dp, total = len(groups), self._asked.num_microbatches
        speeds = [sum(kind.speed_ratio for kind in group) for group in groups]
        shares = by_speed(speeds, total)
        for _ in range(MOST_CORRECTED):
            alike = {item: self._pace(dp, *item) for item in set(zip(groups, shares, strict=True))}
            if not all(pace.most_microbatches for pace in alike.values()):
                return None
            before, shares = shares, together([alike[item] for item in zip(groups, shares, strict=True)], total)
            if shares == before:
                break
        return shares

    def _pace(self, dp: int, group: Kinds, num_microbatches: int) -> Pace:
        """What is known of one of `dp` pipelines from its time with so many micro-batches, or with the most that fit."""
        found = self.split(dp, group, num_microbatches)
        if found is None:
            most = bisect_left(range(num_microbatches), True, key=lambda count: self.split(dp, group, count + 1) is None)
            self._most[dp, group] = most
            return self._pace(dp, group, most) if most else Pace(0, math.inf, math.inf, 0)
        order, split = found
        sums = self._asked.costs.sums
        stages = zip(pairwise(split.cuts), order, strict=True)
        busiest = busiest_seconds(sums.times(a, b, kind.speed_ratio) for (a, b), kind in stages)
        return Pace(num_microbatches, split.seconds, busiest, self._most.get((dp, group), self._asked.num_microbatches))

    def split(self, dp: int, group: Kinds, num_microbatches: int) -> Ordered | None:
        """Of one of `dp` pipelines, and its workers in order; None where nothing fits memory."""
        key = dp, group, num_microbatches
        if key not in self._splits:
            if dp not in self._tails:
                self._tails[dp] = tail_seconds(self._asked.costs.profile, self._asked.reduction_link(dp), dp)
            partitioner = self._partitioner(self._asked.costs.profile.optimizer_shards(dp))
            self._splits[key] = self._ordering.best(partitioner, group, num_microbatches, self._tails[dp])
        return self._splits[key]


def _along(order: Kinds, given: Kinds, sides: Sides) -> Sides:
    """The sides of workers that now stand in another order; of those of one kind the first stays the first."""
    if not sides:
        return ()
    left = defaultdict[WorkerKind, deque[int]](deque)
    for kind, side in zip(given, sides, strict=True):
        left[kind].append(side)
    return tuple(left[kind].popleft() for kind in order)
