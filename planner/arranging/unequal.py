"""Arrangements of workers that differ in speed or memory: alike workers share a pipeline, layers and micro-batches follow speed."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from estimator.costs import Costs
from estimator.pipeline import Floats
from kintsugi.core.plan import Schedule
from kintsugi.core.profile import LinkCost, OptimizerSharding
from planner.arranging.arrangement import Arrangement, PipelineShape
from planner.arranging.degrees import Degrees
from planner.batches import distribute
from planner.pipelines.kinds import WorkerKind
from planner.pipelines.partition import Partitioner
from planner.pipelines.tails import tail_seconds
from planner.pipelines.zero_bubble import partitioner_for

MOST_DEGREES = 12
"""Numbers of pipelines that are tried, the most promising first."""

Kinds = tuple[WorkerKind, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnequalProblem:
    """Workers that differ, and what is asked of them."""

    costs: Costs
    kinds: Kinds
    """Of all workers that may be used."""
    num_microbatches: int
    allowed: Degrees
    schedule: Schedule
    link: LinkCost
    reduction_link: LinkCost


class UnequalSearch:
    """Heuristic search with a proven bound: no step beats the work divided by all speeds, nor one micro-batch's fastest way."""

    tolerance = 1e-9
    optimism = math.inf

    def __init__(self, problem: UnequalProblem) -> None:
        self._problem = problem
        self._kinds = sorted(problem.kinds, key=lambda kind: (-kind.speed_ratio, -kind.usable_bytes))
        self._bounds: dict[tuple[int, Kinds, int], float] = {}
        self._partitioners: dict[int, Partitioner] = {}
        self._tails: dict[int, Floats] = {}

    def by_promise(self) -> list[int]:
        """Numbers of pipelines to try, fewest bubbles and reductions first."""
        return sorted(self._problem.allowed.dp, key=lambda dp: (self._promise(dp), dp))[:MOST_DEGREES]

    def _promise(self, dp: int) -> float:
        speed = sum(kind.speed_ratio for kind in self._kinds)
        extra = (self._problem.num_microbatches - dp) / speed
        even = self._tail(dp)[-1] * dp / len(self._kinds)
        return self._way * (1 + extra) + float(even)

    @property
    def _way(self) -> float:
        """One micro-batch through all layers at full speed, in seconds."""
        sums = self._problem.costs.sums
        return float(sums.forward[-1] + sums.backward[-1])

    @property
    def _bound_seconds(self) -> float:
        speeds, sums = [kind.speed_ratio for kind in self._kinds], self._problem.costs.sums
        waited = sums.backward_input if self._problem.schedule is Schedule.ZB_H1 else sums.backward
        one_way = (sums.forward[-1] + waited[-1]) / max(speeds)
        return max(self._way * self._problem.num_microbatches / sum(speeds), one_way)

    def could_win(self, degrees: Sequence[int], limit_seconds: float) -> list[int]:
        """Those numbers of pipelines for which a step below the limit is not ruled out."""
        return list(degrees) if limit_seconds > self._bound_seconds else []

    def arrange(self, dp: int, limit_seconds: float = math.inf) -> tuple[float, Arrangement | None]:
        """A lower bound on any step, and the best arrangement of `dp` pipelines over all workers or the fastest ones only."""
        slowest = sorted({kind.speed_ratio for kind in self._kinds})
        options = []
        for cutoff in slowest:
            kinds = [kind for kind in self._kinds if kind.speed_ratio >= cutoff]
            option = self._over(kinds, dp)
            if option is not None and option.seconds < limit_seconds:
                options.append(option)
        return self._bound_seconds, min(options, key=lambda option: option.seconds, default=None)

    def step_seconds(self, arrangement: Arrangement) -> float:
        """What is known of the step of an arrangement before its workers have names."""
        return arrangement.seconds

    def even(self, dp: int, limit_seconds: float = math.inf) -> Arrangement | None:  # noqa: ARG002  # one signature for both
        """None besides what `arrange` finds: its groups are even already."""
        return None

    def _over(self, kinds: Sequence[WorkerKind], dp: int) -> Arrangement | None:
        groups = self._groups(kinds, dp)
        if groups is None:
            return None
        count = self._problem.num_microbatches
        shares = distribute(dp, count, lambda k, m: self._seconds(dp, groups[k], m))
        partitioner = self._partitioner(dp)
        attained = [partitioner.attain(group, share, self._tail(dp)) for group, share in zip(groups, shares, strict=True)]
        splits = [partitioner.best(item) for item in attained]
        found = [split for split in splits if split is not None]
        if len(found) < dp:
            return None
        shapes = tuple(PipelineShape(split.cuts, share) for split, share in zip(found, shares, strict=True))
        return Arrangement(shapes, max(split.seconds for split in found), tuple(kind for group in groups for kind in group))

    def _groups(self, kinds: Sequence[WorkerKind], dp: int) -> list[Kinds] | None:
        """Consecutive workers, fastest first, in `dp` groups of nearly equal size; the roomiest worker of a group comes first."""
        allowed = self._problem.allowed.pp
        used = min(len(kinds), dp * allowed[-1])
        if used < dp * allowed[0]:
            return None
        base, extra = divmod(used, dp)
        groups, start = [], 0
        for index in range(dp):
            stop = start + base + (index >= dp - extra)
            groups.append(tuple(sorted(kinds[start:stop], key=lambda kind: (-kind.usable_bytes, -kind.speed_ratio))))
            start = stop
        return groups

    def _seconds(self, dp: int, group: Kinds, num_microbatches: int) -> float:
        key = dp, group, num_microbatches
        if key not in self._bounds:
            self._bounds[key] = self._partitioner(dp).attain(group, num_microbatches, self._tail(dp)).seconds
        return self._bounds[key]

    def _partitioner(self, dp: int) -> Partitioner:
        return self.partitioner(dp if self._problem.costs.profile.optimizer_sharding is OptimizerSharding.ZERO1 else 1)

    def partitioner(self, num_replicas: int) -> Partitioner:
        """Splits of layers whose optimizer state is shared by so many replicas."""
        problem = self._problem
        if num_replicas not in self._partitioners:
            kind = partitioner_for(problem.schedule)
            self._partitioners[num_replicas] = kind(problem.costs.sums, problem.schedule, problem.link, num_replicas)
        return self._partitioners[num_replicas]

    def _tail(self, dp: int) -> Floats:
        if dp not in self._tails:
            self._tails[dp] = tail_seconds(self._problem.costs.profile, self._problem.reduction_link, dp)
        return self._tails[dp]
