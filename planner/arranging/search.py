"""DP x PP with asymmetric pipelines: the fastest plan over every multiset of lengths, split of micro-batches and of layers."""

import math
from collections import Counter
from collections.abc import Collection, Iterator, Sequence

import numpy as np

from estimator.arrays import Ints
from planner.arranging.arrangement import Arrangement, PipelineShape
from planner.arranging.ceilings import Ceilings
from planner.arranging.degrees import turning_points_first
from planner.arranging.filling import Filling
from planner.arranging.knapsack import lengths_worth
from planner.arranging.polishing import polished
from planner.arranging.problem import EqualProblem
from planner.arranging.stepping import Kind
from planner.pipelines.entries import Entries
from planner.pipelines.partition import Partitioner
from planner.pipelines.relaxation import Lengths, can_finish, caps, promises, which_can_finish, widest_stages
from planner.pipelines.tails import least_tails
from planner.pipelines.timetable import Timetable

RELAXED_STEP, MARGIN = 1.01, 1.1
"""How exactly the least relaxed time is found, and how far above it tables go at first."""

SHORTEST_SECONDS = 1e-12
"""Where searching for a time begins though forward and input passes take none: no doubling leaves 0."""

SMALL = 64
"""In a job of no more workers splits are polished; no more numbers of pipelines are all pursued."""

FEW = 32
"""In a job of no more workers, where links differ, more numbers of pipelines and more ways to name workers are looked at."""

MOST_PURSUED = 48
"""Of more numbers of pipelines than `SMALL`."""

UNEVEN, UNKNOWN, UNKNOWN_OF_FEW = 0.02, 0.1, 0.25
"""By what share a step may turn out longer than over the fastest links: where hosts are shared, or links are stated one by one.

The last in jobs of no more than `FEW` workers. Steps are often half as long again, but other numbers of pipelines are few there.
"""


class EqualSearch:
    """Search for equal workers. Exact in pipeline time for each number of pipelines (up to the splits' own gaps)."""

    floor_seconds = 0.0
    """No step is shorter, whatever is pursued."""

    def __init__(self, problem: EqualProblem) -> None:
        self._problem = problem
        self._partitioners: dict[int, Partitioner] = {}
        self._most: dict[int, Ints] = {}
        self._entries_of: dict[int, Entries] = {}
        self._shared: dict[range, Ceilings] = {}
        self._outline = self.partitioner(self._replicas(problem.allowed.dp[-1])).outline(problem.kind, problem.allowed.pp)
        updates = np.array(problem.costs.sums.optimizer, dtype=np.float64) / problem.kind.speed_ratio
        self._widest_updates = widest_stages(updates)
        allowed = problem.allowed
        self._tails = least_tails(problem.costs.profile, allowed.dp, allowed.pp.start, problem.reduction_link)
        self._stepper = problem.shared.stepper(problem.costs, problem.schedule, problem.link)

    @property
    def problem(self) -> EqualProblem:
        """That is searched for."""
        return self._problem

    @property
    def most_pursued(self) -> int:
        """Numbers of pipelines, all in small jobs; what is left then has a closed-form bound."""
        num_degrees = len(self._problem.allowed.dp)
        return num_degrees if num_degrees <= SMALL else MOST_PURSUED

    @property
    def tolerance(self) -> float:
        """Relative differences below this are not pursued: rounding for equal layers, a fifth of a percent otherwise."""
        return self.partitioner(1).tolerance

    @property
    def optimism(self) -> float:
        """By what share a step may turn out longer than `step_seconds` says once workers have names: where their links differ."""
        cluster = self._problem.costs.cluster
        if cluster.has_equal_links:
            return 0.0
        if not cluster.links:
            return UNEVEN
        return UNKNOWN_OF_FEW if self._problem.num_workers <= FEW else UNKNOWN

    def by_promise(self) -> list[int]:
        """Numbers of pipelines, the most promising first: as if micro-batches and pipelines could be divided.

        Where not all are pursued, some from everywhere come before the others.
        """
        problem, lengths = self._problem, self._problem.allowed.pp
        widest = self._outline.fitting[lengths.start : lengths.stop]
        held = np.minimum(np.searchsorted(self._outline.both, widest), problem.costs.profile.num_layers)
        after = np.array([self._after_seconds(dp) for dp in problem.allowed.dp])
        tails = self._tails[:, held] + after[:, None]
        numbers = np.array(problem.allowed.dp)
        offers = lengths.start, self._most_of(numbers), tails
        seconds = promises(self._outline, offers, numbers, (problem.num_workers, problem.num_microbatches))
        promising: list[int] = numbers[np.argsort(seconds, kind="stable")].tolist()
        if len(promising) <= SMALL:
            return promising
        return turning_points_first(promising, problem.num_workers, problem.num_microbatches)

    def could_win(self, degrees: Sequence[int], limit_seconds: float) -> list[int]:
        """Those numbers of pipelines for which a step below the limit is not ruled out by closed-form bounds."""
        problem = self._problem
        if not degrees or math.isinf(limit_seconds):
            return list(degrees)
        targets = np.array([limit_seconds - self._after_seconds(dp) for dp in degrees])
        numbers = np.array(degrees)
        is_possible = which_can_finish(
            self._outline,
            (self._first_length, self._most_of(numbers), self._tails[numbers - problem.allowed.dp.start]),
            (numbers, targets),
            (problem.num_workers, problem.num_microbatches),
        )
        return [dp for dp, possible in zip(degrees, is_possible.tolist(), strict=True) if possible]

    def arrange(self, dp: int, limit_seconds: float = math.inf) -> tuple[float, Arrangement | None]:
        """A lower bound on the step of `dp` pipelines, and the best arrangement; none where no step is below the limit.

        The objective is the pipelines' time and, on their first stages, the reduction that follows. Solves the knapsack
        over lengths with lower bounds, tightens the entries that its solution uses, and repeats until it uses tight
        ones only: that is the bound. Then the same with prices; where they equal the bounds the arrangement is optimal.
        """
        bound, arrangement = self._among(dp, self._lengths(dp), limit_seconds)
        if dp == 1:
            bound = max(bound, min(limit_seconds, self._single_bound()))
        return bound, arrangement

    def _single_bound(self) -> float:
        """No step of a single pipeline is shorter: after its last pass comes the longest update of as many stages as it has."""
        problem, tail = self._problem, self._tails[1 - self._problem.allowed.dp.start]
        partitioner, least = self.partitioner(1), math.inf
        for length, most in zip(problem.allowed.pp, self._most_microbatches(1).tolist(), strict=True):
            if most >= problem.num_microbatches:
                update = float(self._widest_updates[length])
                attained = partitioner.attain((problem.kind,) * length, problem.num_microbatches, tail, update)
                least = min(least, attained.seconds + problem.costs.commit_seconds(length) + update)
        return least

    def even(self, dp: int, limit_seconds: float = math.inf, *, num_lengths: int = 2) -> Arrangement | None:
        """The best arrangement of `dp` pipelines of so many lengths around the mean: few shapes, so reductions wait less.

        Where a large job has none, one length less is tried, too: for the pipeline that is left with the fewest micro-batches.
        """
        allowed = self._problem.allowed
        shortest = min(self._problem.num_workers // dp, allowed.pp[-1])
        found = self.of_lengths(dp, range(shortest, shortest + num_lengths), limit_seconds)
        if found is None and num_lengths > 1 and len(allowed.dp) > SMALL:
            found = self.of_lengths(dp, range(shortest - 1, shortest + num_lengths), limit_seconds)
        return found

    def of_lengths(self, dp: int, kept: Collection[int], limit_seconds: float = math.inf) -> Arrangement | None:
        """The best arrangement of `dp` pipelines whose lengths are among some."""
        own = self._lengths(dp)
        is_kept = np.isin(np.arange(own.first, own.first + len(own.most)), list(kept))
        return self._among(dp, own._replace(most=np.where(is_kept, own.most, 0)), limit_seconds)[1]

    def _among(self, dp: int, lengths: Lengths, limit_seconds: float) -> tuple[float, Arrangement | None]:
        """`arrange` with some lengths."""
        limit = limit_seconds - self._after_seconds(dp)
        within = lengths.most.copy() if math.isinf(limit) else caps(lengths, limit)
        if not self._is_reachable(dp, within, limit):
            return limit_seconds, None
        horizon, margin = self._relaxed_seconds(dp, lengths, limit), MARGIN
        low = horizon / RELAXED_STEP
        while True:
            horizon = min(limit, horizon * margin)
            low, arrangement = self._within(dp, lengths, low, horizon)
            if arrangement is not None or horizon >= limit:
                return min(limit_seconds, low + self._after_seconds(dp)), arrangement
            margin *= margin  # soon infinite: memory that fits no split is out of reach of any time

    def step_seconds(self, arrangement: Arrangement) -> float:
        """Step of an arrangement over the fastest links, reductions, commit and update included."""
        problem, speed = self._problem, self._problem.kind.speed_ratio
        groups = arrangement.groups.items()
        pipelines = Counter(
            {Kind(shape.cuts, shape.num_microbatches, (speed,) * shape.num_stages): times for shape, times in groups}
        )
        return self._stepper.seconds(pipelines, problem.reduction_link(len(arrangement.shapes)))

    def polish(self, arrangement: Arrangement) -> Arrangement:
        """The arrangement with other splits where its step becomes shorter by that, in small jobs."""
        dp = len(arrangement.shapes)
        if self._problem.num_workers > SMALL or dp < 2:
            return arrangement
        entries, after = self._entries(dp), self._after_seconds(dp)

        def nearby(shape: PipelineShape, seconds: float) -> list[tuple[int, ...]]:
            return entries.nearby((shape.num_stages, shape.num_microbatches), shape.cuts, seconds - after)

        return polished(arrangement, self.step_seconds, nearby)

    def _is_reachable(self, dp: int, most: Ints, limit: float) -> bool:
        """Whether a solution is left when every entry that it uses is tightened. Lowers `most` where bounds rule entries out."""
        return all(self._can_reach(dp, most, limit, ceilings) for ceilings in self._ceilings(dp))

    def _can_reach(self, dp: int, most: Ints, limit: float, ceilings: Ceilings) -> bool:
        """`_is_reachable` by certain ceilings."""
        work = self._first_length, self._problem.num_workers, dp, self._problem.num_microbatches
        ceilings.lower(most, limit)
        while len(places := np.flatnonzero(lengths_worth(most, *work))):
            used = most[places]
            entries = zip((places + self._first_length).tolist(), used.tolist(), strict=True)
            most[places] = [ceilings.most_within(entry, limit) for entry in entries]
            if np.array_equal(most[places], used):
                return True
        return False

    def _within(self, dp: int, lengths: Lengths, low: float, horizon: float) -> tuple[float, Arrangement | None]:
        """The bound, at least `low`, and the best arrangement within a horizon; only its objective counts what comes after."""
        update, table = self._after_seconds(dp), Timetable(self._entries(dp), lengths, horizon)
        filling = Filling(table, self._problem.num_workers, dp, self._problem.num_microbatches)
        low, groups = filling.settle(low, table.tighten)
        if groups is not None and low <= horizon:
            low, groups = filling.settle(low, table.prove, groups)
        if groups is None or low > horizon:
            return horizon, None
        seconds, groups = filling.settle(low, table.price, groups)
        if groups is None or seconds > horizon:
            return low, None
        shapes: list[PipelineShape] = []
        for entry, times in sorted(groups.items(), reverse=True):
            shapes += [PipelineShape(table.split(entry).cuts, entry[1])] * times
        return low, Arrangement(tuple(shapes), max(table.split(entry).seconds for entry in groups) + update)

    def _ceilings(self, dp: int) -> Iterator[Ceilings]:
        """Of one of `dp` pipelines: those that hold for up to twice as few and as many of them, too, and then its own.

        The first are found once for all these numbers, and rule most of those out that cannot win.
        """
        allowed, power = self._problem.allowed, 1 << dp.bit_length()
        alike = range(max(allowed.dp.start, power // 2), min(allowed.dp.stop, power))
        if len(alike) > 1:
            yield self._shared_ceilings(alike)
        yield Ceilings(self._entries(dp), allowed.pp)

    def _shared_ceilings(self, numbers: range) -> Ceilings:
        """Of one of several pipelines, whichever of these numbers there are: with the least that follows its passes."""
        if numbers not in self._shared:
            first, last = numbers[0] - self._problem.allowed.dp.start, numbers[-1] - self._problem.allowed.dp.start
            tail, partitioner = self._tails[first : last + 1].min(axis=0), self.partitioner(self._replicas(numbers[-1]))
            entries = Entries(partitioner, self._problem.kind, tail, self._least_update(numbers[-1]))
            self._shared[numbers] = Ceilings(entries, self._problem.allowed.pp)
        return self._shared[numbers]

    def _entries(self, dp: int) -> Entries:
        """What is known of one of `dp` pipelines."""
        if dp not in self._entries_of:
            problem, tail = self._problem, self._tails[dp - self._problem.allowed.dp.start]
            self._entries_of[dp] = Entries(self.partitioner(self._replicas(dp)), problem.kind, tail, self._least_update(dp))
        return self._entries_of[dp]

    @property
    def _first_length(self) -> int:
        return self._problem.allowed.pp[0]

    def _can_finish(self, dp: int, lengths: Lengths, target: float) -> bool:
        return can_finish(lengths, target, self._problem.num_workers, dp, self._problem.num_microbatches)

    def _lengths(self, dp: int) -> Lengths:
        return Lengths(
            self._outline,
            self._first_length,
            self._most_microbatches(dp),
            self._tails[dp - self._problem.allowed.dp.start],
            self._least_update(dp),
        )

    def _relaxed_seconds(self, dp: int, lengths: Lengths, limit: float) -> float:
        """A time in which `dp` pipelines might be through, at most RELAXED_STEP of the least such time (or the limit)."""
        target = min(limit, max(float(self._outline.both[-1]), SHORTEST_SECONDS))
        while target < limit and not self._can_finish(dp, lengths, target):
            target *= 2
        low, high = target / 2, min(target, limit)
        while high > low * RELAXED_STEP and low > 0:
            middle = math.sqrt(low) * math.sqrt(high)
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
            asked = problem.costs, problem.schedule, problem.link, num_replicas
            self._partitioners[num_replicas] = problem.shared.partitioner(*asked)
        return self._partitioners[num_replicas]

    def _replicas(self, dp: int) -> int:
        return self._problem.costs.profile.optimizer_shards(dp)

    def _most_microbatches(self, dp: int) -> Ints:
        """Most micro-batches that fit the memory of a pipeline of each length beside dp - 1 others. Shape [lengths]."""
        most: Ints = self._most_of(np.array([dp]))[0]
        return most

    def _most_of(self, degrees: Ints) -> Ints:
        """`_most_microbatches` of several numbers of pipelines. Shape [degrees, lengths]."""
        fitting = np.array([self._most_fitting(self._replicas(dp)) for dp in degrees.tolist()])
        most: Ints = np.minimum(fitting, self._problem.num_microbatches - degrees[:, None] + 1)
        return most

    def _most_fitting(self, replicas: int) -> Ints:
        """Most micro-batches that fit the memory of a pipeline of each length, of so many. Shape [lengths]."""
        if replicas not in self._most:
            partitioner, problem = self.partitioner(replicas), self._problem
            self._most[replicas] = np.array(
                [partitioner.most_microbatches(length, problem.kind, problem.num_microbatches) for length in problem.allowed.pp]
            )
        return self._most[replicas]
