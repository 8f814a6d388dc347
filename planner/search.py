"""DP x PP with asymmetric pipelines: the fastest plan over every multiset of lengths, split of micro-batches and of layers."""

import math
from dataclasses import dataclass

from estimator.communication import ring_all_reduce_seconds
from estimator.costs import Costs
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


class EqualSearch:
    """Search for equal workers. Exact in pipeline time for each number of pipelines (up to the splits' own gaps)."""

    def __init__(self, problem: EqualProblem) -> None:
        self._problem = problem
        self._tables: dict[int, Timetable] = {}

    def by_bound(self) -> list[tuple[float, int]]:
        """Numbers of pipelines with a lower bound on their iteration time, the most promising first."""
        return sorted((self.least_iteration_seconds(dp), dp) for dp in self._problem.allowed.dp)

    def least_iteration_seconds(self, dp: int, pipeline_seconds: float = 0.0) -> float:
        """No plan with `dp` pipelines has a shorter iteration.

        Work and bubbles spread evenly: a pipeline of p workers takes at least (1 + (m - 1) / p) times one micro-batch's
        way, so M - dp <= (T / way - 1) * workers.
        """
        sums = self._problem.costs.sums
        way = (sums.forward[-1] + sums.backward[-1]) / self._problem.kind.speed_ratio
        workers = min(self._problem.num_workers, dp * self._problem.allowed.pp[-1])
        spread = way * (1 + (self._problem.num_microbatches - dp) / workers)
        return max(spread, pipeline_seconds) + self.least_tail_seconds(dp)

    def least_tail_seconds(self, dp: int) -> float:
        """What follows the last backward pass at least: it is one of layer 0, whose gradients then are reduced, and the update."""
        profile = self._problem.costs.profile
        reduction = ring_all_reduce_seconds(self._problem.link, dp, profile.layers[0].gradient_bytes)
        update = max(
            self._problem.costs.sums.optimizer[-1] / self._problem.allowed.pp[-1],
            *(layer.optimizer_seconds for layer in profile.layers),
        )
        return reduction + update / self._problem.kind.speed_ratio

    def arrange(self, dp: int, limit_seconds: float = math.inf) -> Arrangement | None:
        """The arrangement of `dp` pipelines with the shortest pipeline time; None where none is within the limit.

        Solves the knapsack over lengths with lower bounds, tightens the entries that its solution uses, and repeats
        until the solution uses prices only: then no other is better.
        """
        table = self._table(dp)
        low = 0.0
        while True:
            low, entries = self._solve(table, dp, low, limit_seconds)
            if entries is None:
                return None
            changed = [table.tighten(entry) for entry in dict.fromkeys(entries)]
            if not any(changed):
                break
        splits = [(table.split(entry), entry[1]) for entry in entries]
        return Arrangement(
            shapes=tuple(PipelineShape(split.cuts, count) for split, count in splits),
            pipeline_seconds=max(split.pipeline_seconds for split, _ in splits),
            bound_seconds=max(split.bound_seconds for split, _ in splits),
        )

    def shortage(self) -> str:
        """Why memory does not suffice: the stage that lacks most in the most roomy split, and how many workers would do."""
        return "no split of the layers fits memory within the ranges"

    def _table(self, dp: int) -> Timetable:
        problem = self._problem
        replicas = dp if problem.costs.profile.optimizer_sharding is OptimizerSharding.ZERO1 else 1
        if replicas not in self._tables:
            partitioner = Partitioner(problem.costs.sums, problem.schedule, problem.link, replicas)
            most = problem.num_microbatches - problem.allowed.dp.start + 1
            self._tables[replicas] = Timetable(partitioner, problem.kind, problem.allowed.pp, most)
        return self._tables[replicas]

    def _solve(self, table: Timetable, dp: int, low: float, limit: float) -> tuple[float, list[Entry] | None]:
        """The table's least value that admits an arrangement, at least `low`, and the arrangement's entries.

        Gallops from `low`, which is close once the table is tight, then bisects.
        """
        values = table.values(low * (1 - TOLERANCE), limit)
        infeasible, probe, step = -1, 0, 1
        found: tuple[int, tuple[int, ...]] | None = None
        while infeasible + 1 < (found[0] if found else len(values)):
            probe = min(probe, len(values) - 1)
            lengths = self._lengths(table, dp, float(values[probe]))
            if lengths is None:
                infeasible, step = probe, step * 2
            else:
                found = probe, lengths
            probe = infeasible + step if found is None else (infeasible + found[0]) // 2
        if found is None:
            return low, None
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


def kind_of(worker: Worker, profile: Profile) -> WorkerKind:
    """What the search knows of a worker."""
    device = profile.device
    usable = device.usable_bytes if worker.memory_bytes is None else worker.memory_bytes - device.reserved_bytes
    return WorkerKind(worker.speed_ratio, usable)
