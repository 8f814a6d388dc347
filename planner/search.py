"""DP x PP with asymmetric pipelines: the fastest plan over every multiset of lengths, split of micro-batches and of layers."""

from dataclasses import dataclass

import numpy as np

from estimator.communication import ring_all_reduce_seconds
from estimator.costs import Costs
from kintsugi.core.cluster import Worker
from kintsugi.core.errors import InfeasibleError, InvalidInputError
from kintsugi.core.job import Ranges
from kintsugi.core.plan import Schedule
from kintsugi.core.profile import LinkCost, OptimizerSharding, Profile
from planner.batches import trim
from planner.knapsack import best_lengths
from planner.partition import Partitioner, WorkerKind
from planner.timetable import Timetable

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
    pipeline_seconds: float
    bound_seconds: float
    """No arrangement with as many pipelines has a shorter pipeline time."""


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


class EqualSearch:
    """Search for equal workers. Exact in pipeline time for each number of pipelines (up to the splits' own gaps)."""

    def __init__(
        self,
        costs: Costs,
        kind: WorkerKind,
        num_workers: int,
        num_microbatches: int,
        allowed: Degrees,
        schedule: Schedule,
        link: LinkCost,
    ) -> None:
        self._costs, self._kind, self._link, self._schedule = costs, kind, link, schedule
        self._num_workers, self._num_microbatches, self._allowed = num_workers, num_microbatches, allowed
        self._tables: dict[int, Timetable] = {}

    @property
    def num_refined(self) -> int:
        """Pipelines whose layers were split and timed."""
        return sum(table.num_refined for table in self._tables.values())

    def by_bound(self) -> list[tuple[float, int]]:
        """Numbers of pipelines with a lower bound on their iteration time, the most promising first."""
        return sorted((self.least_iteration_seconds(dp), dp) for dp in self._allowed.dp)

    def least_iteration_seconds(self, dp: int, pipeline_seconds: float = 0.0) -> float:
        """No plan with `dp` pipelines has a shorter iteration.

        Work and bubbles spread evenly: a pipeline of p workers takes at least (1 + (m - 1) / p) times one micro-batch's
        way, so M - dp <= (T / way - 1) * workers.
        """
        sums = self._costs.sums
        way = (sums.forward[-1] + sums.backward[-1]) / self._kind.speed_ratio
        workers = min(self._num_workers, dp * self._allowed.pp[-1])
        spread = way * (1 + (self._num_microbatches - dp) / workers)
        return max(spread, pipeline_seconds) + self._least_tail_seconds(dp)

    def _least_tail_seconds(self, dp: int) -> float:
        """What follows the last backward pass at least: it is one of layer 0, whose gradients then are reduced, and the update."""
        profile = self._costs.profile
        reduction = ring_all_reduce_seconds(self._link, dp, profile.layers[0].gradient_bytes)
        update = max(self._costs.sums.optimizer[-1] / self._allowed.pp[-1], *(layer.optimizer_seconds for layer in profile.layers))
        return reduction + update / self._kind.speed_ratio

    def arrange(self, dp: int) -> Arrangement | None:
        """The arrangement of `dp` pipelines with the shortest pipeline time; None where memory does not suffice.

        Solves the knapsack over lengths with lower bounds, refines the entries that its solution uses, and repeats
        until the solution uses exact entries only: then no other is better.
        """
        table = self._table(dp)
        while True:
            solution = self._solve(table, dp)
            if solution is None:
                return None
            fresh = [entry for entry in dict.fromkeys(solution) if not table.is_exact(*entry)]
            if not fresh:
                break
            for entry in fresh:
                table.split(*entry)
        splits = [(table.split(*entry), entry[1]) for entry in solution]
        shapes = tuple(PipelineShape(split.cuts, count) for split, count in splits if split is not None)
        return Arrangement(
            shapes,
            max(split.pipeline_seconds for split, _ in splits if split is not None),
            max(split.bound_seconds for split, _ in splits if split is not None),
        )

    def shortage(self) -> str:
        """Why memory does not suffice: the stage that lacks most in the most roomy split, and how many workers would do."""
        return "no split of the layers fits memory within the ranges"

    def _table(self, dp: int) -> Timetable:
        replicas = dp if self._costs.profile.optimizer_sharding is OptimizerSharding.ZERO1 else 1
        if replicas not in self._tables:
            partitioner = Partitioner(self._costs.sums, self._schedule, self._link, replicas)
            most = self._num_microbatches - self._allowed.dp.start + 1
            self._tables[replicas] = Timetable(partitioner, self._kind, self._allowed.pp, most)
        return self._tables[replicas]

    def _solve(self, table: Timetable, dp: int) -> list[tuple[int, int]] | None:
        """Lengths and micro-batches with the least greatest entry of the table: bisection over its values."""
        values = np.unique(table.seconds)
        values = values[np.isfinite(values)]
        low, high, found = 0, len(values), None
        while low < high:
            middle = (low + high) // 2
            lengths = self._lengths(table, dp, float(values[middle]))
            if lengths is None:
                low = middle + 1
            else:
                high, found = middle, (float(values[middle]), lengths)
        if found is None:
            return None
        target, lengths = found
        caps = self._caps(table, target)
        first = table.lengths.start
        counts = trim(
            [int(caps[length - first]) for length in lengths],
            self._num_microbatches,
            lambda k, m: float(table.seconds[lengths[k] - first, m - 1]),
        )
        return list(zip(lengths, counts, strict=True))

    def _caps(self, table: Timetable, target: float) -> np.ndarray:
        """Most micro-batches that a pipeline of each length can take within `target` seconds."""
        return (table.seconds <= target * (1 + TOLERANCE)).sum(axis=1)

    def _lengths(self, table: Timetable, dp: int, target: float) -> tuple[int, ...] | None:
        return best_lengths(self._caps(table, target), table.lengths.start, dp, self._num_workers, self._num_microbatches)


def kind_of(worker: Worker, profile: Profile) -> WorkerKind:
    """What the search knows of a worker."""
    device = profile.device
    usable = device.usable_bytes if worker.memory_bytes is None else worker.memory_bytes - device.reserved_bytes
    return WorkerKind(worker.speed_ratio, usable)
