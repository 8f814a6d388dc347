"""DP x PP with asymmetric pipelines: the fastest plan over every multiset of lengths, split of micro-batches and of layers."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from estimator.communication import ring_all_reduce_seconds
from estimator.costs import Costs
from estimator.pipeline import Floats
from kintsugi.core.cluster import Worker
from kintsugi.core.errors import InfeasibleError, InvalidInputError
from kintsugi.core.job import Ranges
from kintsugi.core.plan import Schedule
from kintsugi.core.profile import LinkCost, OptimizerSharding, Profile
from planner.batches import trim
from planner.knapsack import Knapsack
from planner.partition import Partitioner, WorkerKind
from planner.timetable import Entry, Timetable

TOLERANCE = 1e-9
"""Relative difference below which two times are the same."""


@dataclass(frozen=True, slots=True)
class PipelineShape:
    """One pipeline without names: its stage boundaries and its micro-batches."""

    cuts: tuple[int, ...]
    num_microbatches: int

    @property
    def num_stages(self) -> int:
        """Length of the pipeline."""
        return len(self.cuts) - 1


@dataclass(frozen=True, slots=True)
class Arrangement:
    """Pipelines without names, longest first, and what is known of their time."""

    shapes: tuple[PipelineShape, ...]
    seconds: float
    """The objective: the pipelines, on their first stages the reduction that follows, and the update."""
    kinds: tuple[WorkerKind, ...] | None = None
    """Kind of worker that each slot was planned for; None where all workers are equal."""


@dataclass(frozen=True, slots=True)
class Degrees:
    """Ranges with their defaults filled in."""

    dp: range
    pp: range


def degrees(ranges: Ranges, num_workers: int, num_layers: int, num_microbatches: int) -> Degrees:
    """Fill in and check the ranges.

    Raises:
        InvalidInputError: more pipelines are asked for than there are micro-batches.
        InfeasibleError: there are too few workers or layers for the ranges.
    """
    if ranges.min_dp > num_microbatches:
        raise InvalidInputError(
            f"asks for more pipelines than there are micro-batches ({num_microbatches}); every pipeline needs one",
            field="min_dp",
            value=ranges.min_dp,
        )
    if ranges.min_pp > num_layers:
        raise InvalidInputError(f"is more stages than the model has layers ({num_layers})", field="min_pp", value=ranges.min_pp)
    needed = ranges.min_dp * ranges.min_pp
    if needed > num_workers:
        raise InfeasibleError(
            f"{ranges.min_dp} pipelines of {ranges.min_pp} stages need {needed} workers; {num_workers} are left",
            field="workers",
            value=num_workers,
        )
    max_dp = min(ranges.max_dp or num_workers, num_workers // ranges.min_pp, num_microbatches)
    max_pp = min(ranges.max_pp or num_workers, num_workers, num_layers)
    return Degrees(dp=range(ranges.min_dp, max_dp + 1), pp=range(ranges.min_pp, max_pp + 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class EqualProblem:
    """Equal workers over equal links, and what is asked of them."""

    costs: Costs
    kind: WorkerKind
    num_workers: int
    num_microbatches: int
    allowed: Degrees
    schedule: Schedule
    link: LinkCost
    """The fastest between neighbouring stages, so that bounds hold."""
    reduction_link: Callable[[int], LinkCost]
    """The fastest that can pace a reduction over so many workers."""


class EqualSearch:
    """Search for equal workers. Exact in pipeline time for each number of pipelines (up to the splits' own gaps)."""

    def __init__(self, problem: EqualProblem) -> None:
        self._problem = problem
        self._partitioners: dict[int, Partitioner] = {}
        self._least_excess = 1.0
        """The least that prices added to a bound so far; what cannot win with so much is not priced."""

    @property
    def tolerance(self) -> float:
        """Relative differences below this are not pursued: rounding for equal layers, a fifth of a percent otherwise."""
        return self.partitioner(1).tolerance

    def by_promise(self) -> list[int]:
        """Numbers of pipelines, the most promising first: as if all were alike."""
        return sorted(self._problem.allowed.dp, key=lambda dp: (self._promise(dp), dp))

    def _promise(self, dp: int) -> float:
        problem = self._problem
        length = min(problem.num_workers // dp, problem.allowed.pp[-1])
        share = -(-problem.num_microbatches // dp)
        tail = self._tail_seconds(dp)
        return float(self.partitioner(1).least_seconds(length, problem.kind, problem.num_microbatches, tail)[share - 1])

    def arrange(self, dp: int, limit_seconds: float = math.inf) -> tuple[float, Arrangement | None]:
        """A lower bound on the step of `dp` pipelines, and the best arrangement; none where no step is below the limit.

        The objective is the pipelines' time and, on their first stages, the reduction that follows. Solves the knapsack
        over lengths with lower bounds, tightens the entries that its solution uses, and repeats until it uses tight
        ones only: that is the bound. Then the same with prices; where they equal the bounds the arrangement is optimal.
        """
        table, update = self._table(dp), self._update_seconds
        low, entries = self._settle(table, dp, 0.0, limit_seconds - update, table.tighten)
        bound = min(limit_seconds, low + update)
        if bound * self._least_excess >= limit_seconds:
            return bound, None
        _, entries = self._settle(table, dp, low, limit_seconds - update, table.price)
        if entries is None:
            return bound, None
        splits = [table.split(entry) for entry in entries]
        shapes = tuple(PipelineShape(split.cuts, count) for split, (_, count) in zip(splits, entries, strict=True))
        result = Arrangement(shapes, max(split.seconds for split in splits) + update)
        excess = result.seconds / bound
        self._least_excess = excess if self._least_excess == 1.0 else min(excess, self._least_excess)
        return bound, result

    def _settle(
        self, table: Timetable, dp: int, low: float, limit: float, refine: Callable[[Entry], bool]
    ) -> tuple[float, list[Entry] | None]:
        """Solve and refine what the solution uses until that changes nothing; infinity where the limit is out of reach."""
        while True:
            low, entries = self._solve(table, dp, low, limit)
            if entries is None:
                return math.inf, None
            changed = [refine(entry) for entry in dict.fromkeys(entries)]
            if not any(changed):
                return low, entries

    @property
    def _update_seconds(self) -> float:
        """The optimizer update takes at least this."""
        problem = self._problem
        longest = max(layer.optimizer_seconds for layer in problem.costs.profile.layers)
        return max(longest, problem.costs.sums.optimizer[-1] / problem.allowed.pp[-1]) / problem.kind.speed_ratio

    def partitioner(self, num_replicas: int) -> Partitioner:
        """Splits of layers whose optimizer state is shared by so many replicas."""
        problem = self._problem
        if num_replicas not in self._partitioners:
            self._partitioners[num_replicas] = Partitioner(problem.costs.sums, problem.schedule, problem.link, num_replicas)
        return self._partitioners[num_replicas]

    def _table(self, dp: int) -> Timetable:
        problem = self._problem
        replicas = dp if problem.costs.profile.optimizer_sharding is OptimizerSharding.ZERO1 else 1
        most = problem.num_microbatches - dp + 1
        return Timetable(self.partitioner(replicas), problem.kind, problem.allowed.pp, most, self._tail_seconds(dp))

    def _tail_seconds(self, dp: int) -> Floats:
        return tail_seconds(self._problem.costs.profile, self._problem.reduction_link(dp), dp)

    def _solve(self, table: Timetable, dp: int, low: float, limit: float) -> tuple[float, list[Entry] | None]:
        """The table's least value that admits an arrangement, at least `low`, and the arrangement's entries.

        Gallops from `low`, which is close once the table is tight, then bisects.
        """
        values = table.values(low * (1 - TOLERANCE), limit)
        last = self._lengths(table, dp, float(values[-1])) if len(values) else None
        if last is None:
            return low, None
        infeasible, step = -1, 1
        found = len(values) - 1, last
        while infeasible + 1 < found[0]:
            probe = min(infeasible + step, (infeasible + found[0]) // 2)
            lengths = self._lengths(table, dp, float(values[probe]))
            if lengths is None:
                infeasible, step = probe, step * 2
            else:
                found = probe, lengths
        target = float(values[found[0]])
        return target, self._fill(table, found[1], target)

    def _fill(self, table: Timetable, lengths: tuple[int, ...], target: float) -> list[Entry]:
        """Micro-batches for pipelines of these lengths, none slower than the target."""
        caps = table.caps(target * (1 + TOLERANCE))
        counts = trim(
            [int(caps[length - table.lengths.start]) for length in lengths],
            self._problem.num_microbatches,
            lambda k, m: table.at((lengths[k], m)),
        )
        return list(zip(lengths, counts, strict=True))

    def _lengths(self, table: Timetable, dp: int, target: float) -> tuple[int, ...] | None:
        caps = table.caps(target * (1 + TOLERANCE))
        knapsack = Knapsack(caps, table.lengths.start, self._problem.num_workers)
        return knapsack.lengths(dp, self._problem.num_microbatches)


def tail_seconds(profile: Profile, link: LinkCost, dp: int) -> Floats:
    """Reduction of the first n layers over `dp` holders, which follows their last backward pass. Shape [layers + 1]."""
    held = np.cumsum([0, *(layer.gradient_bytes for layer in profile.layers)])
    return np.array([ring_all_reduce_seconds(link, dp, float(count)) for count in held])


def kind_of(worker: Worker, profile: Profile) -> WorkerKind:
    """What the search knows of a worker."""
    device = profile.device
    usable = device.usable_bytes if worker.memory_bytes is None else worker.memory_bytes - device.reserved_bytes
    return WorkerKind(worker.speed_ratio, usable)
