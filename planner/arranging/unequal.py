"""Arrangements of workers that differ in speed or memory: found as if they were equal, and given to the workers that there are."""

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice, product, zip_longest

from planner.arranging.arrangement import Arrangement
from planner.arranging.assembling import Assembled, Assembly
from planner.arranging.grouping import Kinds, dealt, evenly_roomy, in_turn, just_fitting, roomiest_first
from planner.arranging.ordering import MOST_WORKERS, fits
from planner.arranging.problem import EqualProblem, Problem
from planner.arranging.search import EqualSearch
from planner.pipelines.kinds import WorkerKind, crews, levels
from planner.pipelines.partition import Partitioner

MOST_TRIED = 128
"""Arrangements that are tried by room alone where no others fit memory."""

TOLERANCE = 2e-3
"""What is found may be as far from the best there is."""


@dataclass(frozen=True, slots=True)
class _Crew:
    """Workers that may be used, and the search for as many that are equal."""

    kinds: Kinds
    """Fastest first."""
    search: EqualSearch
    allowed: range
    """Numbers of pipelines."""


class UnequalSearch:
    """Heuristic search with a proven bound: that of as many workers of the highest speed and the largest memory.

    Lengths of pipelines are those of as many equal workers, all or without the slowest or smallest. Alike workers share a
    pipeline, and layers and micro-batches follow speed.
    """

    most_pursued = 24
    """Numbers of pipelines; what is left then has a closed-form bound."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.levels = levels(set(problem.kinds))
        self._best = WorkerKind(max(kind.speed_ratio for kind in problem.kinds), max(kind.usable_bytes for kind in problem.kinds))
        ideal = problem.alike(len(problem.kinds), self._best)
        assert ideal is not None
        self._ideal = EqualSearch(ideal)
        self._crews = list(self._crews_of(ideal))
        self.assembly = Assembly(problem, len(problem.kinds), self._ideal.partitioner, self.levels)
        self._fitting: dict[tuple[Kinds, int], list[list[Kinds]]] = {}
        """Workers in so many pipelines that are as short as fits memory."""

    def _crews_of(self, ideal: EqualProblem) -> Iterator[_Crew]:
        """All workers, and those that are left without the slowest or the smallest, as large as the largest and as the smallest."""
        for crew in crews(self.levels[kind] for kind in self.problem.kinds):
            sizes = {kind.usable_bytes for kind in crew}
            for size in sorted({max(sizes), min(sizes)}):
                alike = self.problem.alike(len(crew), WorkerKind(self._best.speed_ratio, size))
                if alike is not None:
                    search = self._ideal if alike == ideal else EqualSearch(alike)
                    yield _Crew(crew, search, alike.allowed.dp)

    @property
    def tolerance(self) -> float:
        """Relative differences below this are not pursued."""
        return max(TOLERANCE, self._ideal.tolerance)

    @property
    def optimism(self) -> float:
        """By what share a step may turn out longer than `step_seconds` says once workers have names: where their links differ."""
        return self._ideal.optimism

    def by_promise(self) -> list[int]:
        """Numbers of pipelines, the most promising for all workers or for one of the crews first."""
        promising = zip_longest(self._ideal.by_promise(), *(crew.search.by_promise() for crew in self._crews))
        return list(dict.fromkeys(dp for rank in promising for dp in rank if dp is not None))

    def could_win(self, degrees: Sequence[int], limit_seconds: float) -> list[int]:
        """Those numbers of pipelines for which a step below the limit is not ruled out."""
        return self._ideal.could_win(degrees, limit_seconds) if limit_seconds > self.floor_seconds else []

    @property
    def floor_seconds(self) -> float:
        """No step is shorter: the work divided by all speeds, or one micro-batch's way at the highest speed."""
        speeds, sums = [kind.speed_ratio for kind in self.problem.kinds], self.problem.costs.sums
        waited = sums.backward_input if self.problem.schedule.is_split else sums.backward
        one_way = (sums.forward[-1] + waited[-1]) / max(speeds)
        whole = float(sums.forward[-1] + sums.backward[-1])
        return max(whole * self.problem.num_microbatches / sum(speeds), one_way)

    def arrange(self, dp: int, limit_seconds: float = math.inf) -> tuple[float, Arrangement | None]:
        """A lower bound on the step of `dp` pipelines, and the best arrangement; none where no step is below the limit."""
        least, of_ideal = self._ideal.arrange(dp, limit_seconds)
        bound = max(self.floor_seconds, least)
        if bound >= limit_seconds:
            return bound, None
        return bound, self._best_of(dp, lambda own: of_ideal if own is self._ideal else own.arrange(dp, limit_seconds)[1])

    def even(self, dp: int, limit_seconds: float = math.inf, *, num_lengths: int = 2) -> Arrangement | None:
        """The best arrangement of `dp` pipelines of so many lengths around the mean."""
        return self._best_of(dp, lambda search: search.even(dp, limit_seconds, num_lengths=num_lengths))

    def of_lengths(self, dp: int, kept: Collection[int], limit_seconds: float = math.inf) -> Arrangement | None:
        """The best arrangement of `dp` pipelines whose lengths are among some."""
        return self._best_of(dp, lambda search: search.of_lengths(dp, kept, limit_seconds))

    def by_room(self) -> Iterator[Arrangement]:
        """Of pipelines that are about as roomy as each other, of few workers and of more: where nothing else fits memory."""
        kinds = roomiest_first(tuple(self.levels[kind] for kind in self.problem.kinds))
        lengths, degrees = self.problem.allowed.pp, self.problem.allowed.dp
        if not any(self.assembly.split(degrees[-1], kinds[:length], 1) for length in lengths):  # nor does any other pipeline fit
            return
        tried = (
            self.assembly.of(tuple(map(roomiest_first, evenly_roomy(kinds[:total], dp, lengths))))
            for dp in self.by_promise()
            for total in range(dp * lengths[0], min(len(kinds), dp * lengths[-1]) + 1)
        )
        yield from (option.timed for option in islice(tried, MOST_TRIED) if option is not None)

    def step_seconds(self, arrangement: Arrangement) -> float:
        """Step of an arrangement over the fastest links, reductions, commit and update included."""
        return arrangement.seconds

    def _best_of(self, dp: int, ask: Callable[[EqualSearch], Arrangement | None]) -> Arrangement | None:
        """The best of what comes of the arrangements of equal workers that a question has, one for each crew."""
        best: Arrangement | None = None
        for crew in self._crews:
            found = ask(crew.search) if dp in crew.allowed else None
            for option in self._given(crew.kinds, found) if found is not None else ():
                if best is None or option.least_seconds < best.seconds:
                    best = option.timed if best is None or option.timed.seconds < best.seconds else best
        return best

    def _given(self, kinds: Kinds, found: Arrangement) -> Iterator[Assembled]:
        """Pipelines of these lengths, workers given to the longest or the shortest first, alike ones together or dealt out.

        Where memory differs also of other lengths: about as roomy as each other, or as short as fits.
        """
        lengths = tuple(shape.num_stages for shape in found.shapes)
        ways = [way(kinds, order) for order in dict.fromkeys((lengths, lengths[::-1])) for way in (in_turn, dealt)]
        for groups in (*ways, *self._by_memory(kinds, len(lengths), sum(lengths))):
            if (option := self.assembly.of(tuple(map(roomiest_first, groups)))) is not None:
                yield option

    def _by_memory(self, kinds: Kinds, dp: int, num_used: int) -> list[list[Kinds]]:
        """Workers of `dp` pipelines by memory, where that differs."""
        if len({kind.usable_bytes for kind in kinds}) == 1:
            return []
        if (kinds, dp) not in self._fitting:
            self._fitting[kinds, dp] = list(self._just_fitting(roomiest_first(kinds), dp))
        return [evenly_roomy(roomiest_first(kinds[:num_used]), dp, self.problem.allowed.pp), *self._fitting[kinds, dp]]

    def _just_fitting(self, kinds: Kinds, dp: int) -> Iterator[list[Kinds]]:
        """Pipelines as short as fits their share of the micro-batches; of few workers also one alone, the smallest first too."""
        share = -(-self.problem.num_microbatches // dp)
        partitioner = self.partitioner(self.problem.costs.profile.optimizer_shards(dp))
        is_small = len(kinds) <= MOST_WORKERS
        for order, count in product((kinds, kinds[::-1]), dict.fromkeys((share, 1))) if is_small else ((kinds, share),):
            yield from just_fitting(order, dp, self.problem.allowed.pp, partial(fits, partitioner, num_microbatches=count))

    def partitioner(self, num_replicas: int) -> Partitioner:
        """Splits of layers whose optimizer state is shared by so many replicas."""
        return self._ideal.partitioner(num_replicas)
