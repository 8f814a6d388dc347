"""DP x PP with asymmetric pipelines: the fastest plan over every multiset of lengths, split of micro-batches and of layers."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

import numpy as np

from estimator.costs import Costs
from estimator.pipeline import Floats
from kintsugi.core.cluster import Worker
from kintsugi.core.errors import InfeasibleError, InvalidInputError
from kintsugi.core.job import Ranges
from kintsugi.core.plan import Schedule
from kintsugi.core.profile import LinkCost, OptimizerSharding, Profile
from planner.batches import trim
from planner.knapsack import Knapsack
from planner.minimax import Ints
from planner.partition import Partitioner, WorkerKind
from planner.relaxation import Lengths, can_finish, caps, promises, which_can_finish, widest_stages
from planner.stepping import Step, Stepper
from planner.timetable import Entry, Timetable
from planner.zero_bubble import partitioner_for

TOLERANCE = 1e-9
"""Relative difference below which two times are the same."""

RELAXED_STEP, MARGIN = 1.01, 1.1
"""How exactly the least relaxed time is found, and how far above it tables go at first."""

Groups = Counter[Entry]
"""How many pipelines of each length and number of micro-batches there are."""


@dataclass(frozen=True, slots=True)
class PipelineShape:
    """One pipeline without names: its stage boundaries and its micro-batches."""

    cuts: tuple[int, ...]
    num_microbatches: int

    @property
    def num_stages(self) -> int:
        """Length of the pipeline."""
        return len(self.cuts) - 1


@dataclass(frozen=True)
class Arrangement:
    """Pipelines without names, longest first, and what is known of their time."""

    shapes: tuple[PipelineShape, ...]
    seconds: float
    """The objective: the pipelines, on their first stages the reduction that follows, and the update."""
    kinds: tuple[WorkerKind, ...] | None = None
    """Kind of worker that each slot was planned for; None where all workers are equal."""
    is_descending: bool = False
    """Whether every worker reduces its last layers first."""

    @cached_property
    def groups(self) -> Counter[PipelineShape]:
        """How many pipelines there are of each shape."""
        result: Counter[PipelineShape] = Counter()
        for shape, run in groupby(self.shapes):
            result[shape] += len(list(run))
        return result


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
        self._most: dict[int, Ints] = {}

        self._gradient_bytes = np.cumsum([0.0, *(layer.gradient_bytes for layer in problem.costs.profile.layers)])
        self._outline = self.partitioner(1).outline(problem.kind.speed_ratio)
        updates = np.array(problem.costs.sums.optimizer, dtype=np.float64) / problem.kind.speed_ratio
        self._widest_updates = widest_stages(updates)
        self._tails: dict[int, Floats] = {}

    @property
    def tolerance(self) -> float:
        """Relative differences below this are not pursued: rounding for equal layers, a fifth of a percent otherwise."""
        return self.partitioner(1).tolerance

    @property
    def optimism(self) -> float:
        """By what share a step may turn out longer than `step` says once workers have names: where their links differ."""
        return 0.0 if self._problem.costs.cluster.is_uniform else 0.1

    def by_promise(self) -> list[int]:
        """Numbers of pipelines, the most promising first: as if micro-batches and pipelines could be divided."""
        problem, lengths = self._problem, self._problem.allowed.pp
        widest = self._outline.widest[lengths.start : lengths.stop]
        held = np.minimum(np.searchsorted(self._outline.both, widest), len(self._gradient_bytes) - 1)
        tails = np.array([self._tail_seconds(dp)[held] + self._after_seconds(dp) for dp in problem.allowed.dp])
        numbers = np.array(problem.allowed.dp)
        seconds = promises(self._outline, lengths.start, numbers, tails, (problem.num_workers, problem.num_microbatches))
        return [int(dp) for dp in numbers[np.argsort(seconds, kind="stable")]]

    def could_win(self, degrees: Sequence[int], limit_seconds: float) -> list[int]:
        """Those numbers of pipelines for which a step below the limit is not ruled out by closed-form bounds."""
        problem = self._problem
        if not degrees or math.isinf(limit_seconds):
            return list(degrees)
        targets = np.array([limit_seconds - self._after_seconds(dp) for dp in degrees])
        offers = np.stack([self._most_microbatches(dp) for dp in degrees]), np.stack([self._tail_seconds(dp) for dp in degrees])
        is_possible = which_can_finish(
            self._outline,
            (self._first_length, *offers),
            (np.array(degrees), targets),
            (problem.num_workers, problem.num_microbatches),
        )
        return [dp for dp, possible in zip(degrees, is_possible.tolist(), strict=True) if possible]

    def arrange(self, dp: int, limit_seconds: float = math.inf) -> tuple[float, Arrangement | None]:
        """A lower bound on the step of `dp` pipelines, and the best arrangement; none where no step is below the limit.

        The objective is the pipelines' time and, on their first stages, the reduction that follows. Solves the knapsack
        over lengths with lower bounds, tightens the entries that its solution uses, and repeats until it uses tight
        ones only: that is the bound. Then the same with prices; where they equal the bounds the arrangement is optimal.
        """
        return self._among(dp, self._lengths(dp), limit_seconds)

    def even(self, dp: int, limit_seconds: float = math.inf) -> Arrangement | None:
        """The best arrangement of `dp` pipelines that differ by one stage at most: few shapes, so reductions wait less."""
        own = self._lengths(dp)
        shortest = min(self._problem.num_workers // dp, self._problem.allowed.pp[-1])
        most = np.zeros_like(own.most)
        kept = slice(shortest - own.first, shortest - own.first + 2)
        most[kept] = own.most[kept]
        return self._among(dp, own._replace(most=most), limit_seconds)[1]

    def _among(self, dp: int, lengths: Lengths, limit_seconds: float) -> tuple[float, Arrangement | None]:
        """`arrange` with some lengths."""
        limit = limit_seconds - self._after_seconds(dp)
        within = lengths.most.copy() if math.isinf(limit) else caps(lengths, limit)
        if not self._is_reachable(dp, lengths, within, limit):
            return limit_seconds, None
        horizon = self._relaxed_seconds(dp, lengths, limit)
        low = horizon / RELAXED_STEP
        while True:
            horizon = min(limit, horizon * MARGIN)
            low, arrangement = self._within(dp, lengths, low, horizon)
            if arrangement is not None or horizon >= limit:
                return min(limit_seconds, low + self._after_seconds(dp)), arrangement

    def step(self, arrangement: Arrangement) -> Step:
        """Step of an arrangement over the fastest links, reductions, commit and update included."""
        problem = self._problem
        pipelines = Counter({(shape.cuts, shape.num_microbatches): times for shape, times in arrangement.groups.items()})
        stepper = Stepper(problem.costs, problem.schedule, problem.kind.speed_ratio, problem.link)
        return stepper.step(pipelines, problem.reduction_link(len(arrangement.shapes)))

    def _is_reachable(self, dp: int, lengths: Lengths, most: Ints, limit: float) -> bool:
        """Whether a solution is left when every entry that it uses is tightened. Lowers `most` where bounds rule entries out."""
        partitioner, kind = self.partitioner(self._replicas(dp)), self._problem.kind
        known: set[Entry] = set()
        while True:
            knapsack = Knapsack(most, self._first_length, self._problem.num_workers, dp)
            if knapsack.most_worth < self._problem.num_microbatches:
                return False
            entries = {(length, int(most[length - self._first_length])) for length in knapsack.lengths()} - known
            for length, count in sorted(entries):
                attained = partitioner.attain((kind,) * length, count, lengths.tail, lengths.least_update)
                if attained.seconds > limit:
                    most[length - self._first_length] -= 1
                else:
                    known.add((length, count))
            if entries <= known:
                return True

    def _within(self, dp: int, lengths: Lengths, low: float, horizon: float) -> tuple[float, Arrangement | None]:
        """The bound, at least `low`, and the best arrangement within a horizon; only its objective counts what comes after."""
        partitioner, update = self.partitioner(self._replicas(dp)), self._after_seconds(dp)
        table = Timetable(partitioner, self._problem.kind, lengths, horizon)
        low, groups = self._settle(table, dp, low, table.tighten)
        if groups is None or low > horizon:
            return horizon, None
        seconds, groups = self._settle(table, dp, low, table.price)
        if groups is None or seconds > horizon:
            return low, None
        shapes: list[PipelineShape] = []
        for entry, times in sorted(groups.items(), reverse=True):
            shapes += [PipelineShape(table.split(entry).cuts, entry[1])] * times
        return low, Arrangement(tuple(shapes), max(table.split(entry).seconds for entry in groups) + update)

    def _settle(self, table: Timetable, dp: int, low: float, refine: Callable[[Entry], bool]) -> tuple[float, Groups | None]:
        """Solve and refine what the solution uses until that changes nothing; infinity where the horizon is out of reach."""
        while True:
            low, groups = self._solve(table, dp, low)
            if groups is None:
                return math.inf, None
            changed = [refine(entry) for entry in sorted(groups)]
            if not any(changed):
                return low, groups

    @property
    def _first_length(self) -> int:
        return self._problem.allowed.pp[0]

    def _can_finish(self, dp: int, lengths: Lengths, target: float) -> bool:
        return can_finish(lengths, target, self._problem.num_workers, dp, self._problem.num_microbatches)

    def _tail_seconds(self, dp: int) -> Floats:
        if dp not in self._tails:
            self._tails[dp] = self._reductions(dp)
        return self._tails[dp]

    def _reductions(self, dp: int) -> Floats:
        """The least that reducing the first n layers takes. Shape [layers + 1].

        Where the last layer is tied to the first, both ends of every pipeline reduce them together, apart from the rest.
        """
        problem, held = self._problem, self._gradient_bytes
        ends = problem.costs.profile.tie_groups[0]
        if ends[-1] < len(held) - 2 or ends[-1] == 0 or self._first_length < 2:
            return ring_seconds(problem.reduction_link(dp), dp, held)
        tied = float(sum(problem.costs.profile.layers[layer].gradient_bytes for layer in ends))
        result = ring_seconds(problem.reduction_link(dp), dp, held - held[1])
        result[:2] = 0.0
        result[1:] += ring_seconds(problem.reduction_link(2 * dp), 2 * dp, np.array([tied]))[0]
        return result

    def _lengths(self, dp: int) -> Lengths:
        return Lengths(
            self._outline, self._first_length, self._most_microbatches(dp), self._tail_seconds(dp), self._least_update(dp)
        )

    def _relaxed_seconds(self, dp: int, lengths: Lengths, limit: float) -> float:
        """A time in which `dp` pipelines might be through, at most RELAXED_STEP of the least such time (or the limit)."""
        target = min(limit, float(self._outline.both[-1]))
        while target < limit and not self._can_finish(dp, lengths, target):
            target *= 2
        low, high = target / 2, min(target, limit)
        while high > low * RELAXED_STEP:
            middle = math.sqrt(low * high)
            low, high = (low, middle) if self._can_finish(dp, lengths, middle) else (middle, high)
        return high

    def _after_seconds(self, dp: int) -> float:
        """The commit and the longest update take at least this."""
        return self._problem.costs.commit_seconds(dp * self._first_length) + self._least_update(dp)

    def _least_update(self, dp: int) -> float:
        """The longest update takes at least this: some pipeline is no longer than the mean."""
        return float(self._widest_updates[min(self._problem.num_workers // dp, self._problem.allowed.pp[-1])])

    def partitioner(self, num_replicas: int) -> Partitioner:
        """Splits of layers whose optimizer state is shared by so many replicas."""
        problem = self._problem
        if num_replicas not in self._partitioners:
            kind = partitioner_for(problem.schedule)
            self._partitioners[num_replicas] = kind(problem.costs.sums, problem.schedule, problem.link, num_replicas)
        return self._partitioners[num_replicas]

    def _replicas(self, dp: int) -> int:
        return dp if self._problem.costs.profile.optimizer_sharding is OptimizerSharding.ZERO1 else 1

    def _most_microbatches(self, dp: int) -> Ints:
        """Most micro-batches that fit the memory of a pipeline of each length beside dp - 1 others. Shape [lengths]."""
        replicas, problem = self._replicas(dp), self._problem
        if replicas not in self._most:
            partitioner = self.partitioner(replicas)
            self._most[replicas] = np.array(
                [partitioner.most_microbatches(length, problem.kind, problem.num_microbatches) for length in problem.allowed.pp]
            )
        return np.minimum(self._most[replicas], problem.num_microbatches - dp + 1)

    def _solve(self, table: Timetable, dp: int, low: float) -> tuple[float, Groups | None]:
        """The table's least value that admits an arrangement, at least `low`, and how many pipelines of each entry it has.

        Gallops from `low`, which is close once the table is tight, then bisects.
        """
        values = table.values(low)
        infeasible, step = -1, 1
        feasible, best = len(values), None
        while infeasible + 1 < feasible:
            probe = min(infeasible + step, (infeasible + feasible) // 2)
            knapsack = self._knapsack(table, dp, float(values[probe]))
            if knapsack.most_worth < self._problem.num_microbatches:
                infeasible, step = probe, step * 2
            else:
                feasible, best = probe, knapsack
        if best is None:
            return low, None
        target = float(values[feasible])
        return target, self._fill(table, best.lengths(), target)

    def _fill(self, table: Timetable, lengths: Counter[int], target: float) -> Groups:
        """Micro-batches for pipelines of these lengths, none slower than the target."""
        caps = table.caps(target * (1 + TOLERANCE))
        groups = {(length, int(caps[length - table.first_length])): times for length, times in lengths.items()}
        return trim(groups, self._problem.num_microbatches, lambda length, count: table.at((length, count)))

    def _knapsack(self, table: Timetable, dp: int, target: float) -> Knapsack:
        return Knapsack(table.caps(target * (1 + TOLERANCE)), table.first_length, self._problem.num_workers, dp)


def tail_seconds(profile: Profile, link: LinkCost, dp: int) -> Floats:
    """Reduction of the first n layers over `dp` holders, which follows their last backward pass. Shape [layers + 1]."""
    return ring_seconds(link, dp, np.cumsum([0.0, *(layer.gradient_bytes for layer in profile.layers)]))


def ring_seconds(link: LinkCost, num_workers: int, num_bytes: Floats) -> Floats:
    """Ring all-reduces of several sizes, in seconds. Shape of `num_bytes`."""
    if num_workers < 2:
        return np.zeros(len(num_bytes))
    return 2 * (num_workers - 1) * (link.alpha_seconds + num_bytes / num_workers * link.beta_seconds_per_byte)


def kind_of(worker: Worker, profile: Profile) -> WorkerKind:
    """What the search knows of a worker."""
    device = profile.device
    usable = device.usable_bytes if worker.memory_bytes is None else worker.memory_bytes - device.reserved_bytes
    return WorkerKind(worker.speed_ratio, usable)
