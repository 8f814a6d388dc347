"""Pipelines that are through with all micro-batches at the earliest, by a table of times that is refined where it matters."""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from estimator.arrays import Floats, Ints
from estimator.compiled import compiled
from planner.arranging.knapsack import lengths_worth
from planner.batches import trim
from planner.pipelines.entries import Entry
from planner.pipelines.timetable import Timetable, caps_within, values_from

TOLERANCE = 1e-9
"""Relative difference below which two times are the same."""

Groups = Counter[Entry]
"""How many pipelines of each length and number of micro-batches there are."""


@dataclass(frozen=True, slots=True)
class Filling:
    """So many pipelines over so many workers, some of whom may stay idle."""

    table: Timetable
    num_workers: int
    num_pipelines: int
    num_microbatches: int

    def settle(self, low: float, refine: Callable[[Entry], bool], groups: Groups | None = None) -> tuple[float, Groups | None]:
        """Solve and refine what the solution uses until that changes nothing; infinity where the horizon is out of reach.

        Args:
            low: no solution takes less, in seconds.
            refine: makes an entry of the table more exact; says whether it did.
            groups: the table's solution as it is, where that is known; `low` is its value then.
        """
        while True:
            if groups is None:
                low, groups = self._solve(low)
            if groups is None:
                return math.inf, None
            changed = [refine(entry) for entry in sorted(groups)]
            if not any(changed):
                return low, groups
            groups = None

    def _solve(self, low: float) -> tuple[float, Groups | None]:
        """The table's least value that admits an arrangement, at least `low`, and how many pipelines of each entry it has."""
        work = self.table.first_length, self.num_workers, self.num_pipelines
        target, caps, times = _least(self.table.seconds, low, work, self.num_microbatches)
        if not len(times):
            return low, None
        counted = enumerate(zip(caps.tolist(), times.tolist(), strict=True), start=self.table.first_length)
        groups = {(length, cap): count for length, (cap, count) in counted if count}
        return target, trim(groups, self.num_microbatches, lambda length, count: self.table.at((length, count)))


@compiled
def _least(seconds: Floats, low: float, work: tuple[int, int, int], total: int) -> tuple[float, Ints, Ints]:
    """The least value, at least `low`, within which so many micro-batches can be finished; none slower, caps, and how many.

    Caps are the most micro-batches of a pipeline of each length, shape [lengths] like the numbers of pipelines; these are
    empty where no value will do. Gallops from `low`, which is close once the table is tight, then bisects.

    Args:
        seconds: of each length and number of micro-batches.
        low: least value that counts.
        work: the first length, workers, and pipelines, as for `knapsack.lengths_worth`.
        total: micro-batches of all pipelines.
    """
    caps, times = _finished_within(seconds, low, work, total)
    if len(times):
        return low, caps, times
    values = values_from(seconds, low)
    infeasible, feasible, step = 0, len(values), 1
    while infeasible + 1 < feasible:
        probe = min(infeasible + step, (infeasible + feasible) // 2)
        within, lengths = _finished_within(seconds, values[probe], work, total)
        if len(lengths):
            feasible, caps, times = probe, within, lengths
        else:
            infeasible, step = probe, step * 2
    return (values[feasible] if len(times) else low), caps, times


@compiled
def _finished_within(seconds: Floats, target: float, work: tuple[int, int, int], total: int) -> tuple[Ints, Ints]:
    """Caps by a time, and how many pipelines of each length finish so many micro-batches or more; empty where none do."""
    caps = caps_within(seconds, target * (1 + TOLERANCE))
    return caps, lengths_worth(caps, *work, total)
