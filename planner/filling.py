"""Pipelines that are through with all micro-batches at the earliest, by a table of times that is refined where it matters."""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from planner.batches import trim
from planner.entries import Entry
from planner.knapsack import Knapsack
from planner.timetable import Timetable

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

    def settle(self, low: float, refine: Callable[[Entry], bool]) -> tuple[float, Groups | None]:
        """Solve and refine what the solution uses until that changes nothing; infinity where the horizon is out of reach.

        Args:
            low: no solution takes less, in seconds.
            refine: makes an entry of the table more exact; says whether it did.
        """
        while True:
            low, groups = self._solve(low)
            if groups is None:
                return math.inf, None
            changed = [refine(entry) for entry in sorted(groups)]
            if not any(changed):
                return low, groups

    def _solve(self, low: float) -> tuple[float, Groups | None]:
        """The table's least value that admits an arrangement, at least `low`, and how many pipelines of each entry it has.

        Gallops from `low`, which is close once the table is tight, then bisects.
        """
        values = self.table.values(low)
        infeasible, step = -1, 1
        feasible, best = len(values), None
        while infeasible + 1 < feasible:
            probe = min(infeasible + step, (infeasible + feasible) // 2)
            knapsack = self._knapsack(float(values[probe]))
            if knapsack.most_worth < self.num_microbatches:
                infeasible, step = probe, step * 2
            else:
                feasible, best = probe, knapsack
        if best is None:
            return low, None
        target = float(values[feasible])
        return target, self._fill(best.lengths(), target)

    def _fill(self, lengths: Counter[int], target: float) -> Groups:
        """Micro-batches for pipelines of these lengths, none slower than the target."""
        caps = self.table.caps(target * (1 + TOLERANCE))
        groups = {(length, int(caps[length - self.table.first_length])): times for length, times in lengths.items()}
        return trim(groups, self.num_microbatches, lambda length, count: self.table.at((length, count)))

    def _knapsack(self, target: float) -> Knapsack:
        caps = self.table.caps(target * (1 + TOLERANCE))
        return Knapsack(caps, self.table.first_length, self.num_workers, self.num_pipelines)
