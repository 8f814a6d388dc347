"""Assignments that leave as few groups of slots as possible within one unit: branch and bound over assignment problems.

The relaxation lets groups lie where they like: an assignment problem, which takes microseconds. Where its solution has all of a
group in one unit, cases are told apart: by the first slots of the group that lie elsewhere, or all stay, at a penalty. Land and
Doig, *An Automatic Method of Solving Discrete Programming Problems* (1960), best bound first.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count

import numpy as np
from scipy.optimize import linear_sum_assignment

from estimator.arrays import Floats, Ints, Mask

MOST_ASSIGNMENTS = 1_000
"""Assignment problems that are solved for one answer."""

MOST_CELLS = 2_000_000
"""Entries of the cost matrices of all of them together."""


@dataclass(frozen=True, slots=True)
class _Node:
    """Some of all assignments, and the best of them by the relaxation."""

    cost: Floats
    """Infinite where a slot's place is ruled out. Shape [slots, workers]."""
    is_paid: Mask
    """Groups that are in a unit at their penalty. Shape [groups, units]."""
    bound: float
    """None of these assignments costs less."""
    workers: Ints
    """Of the relaxation. Shape [slots]."""
    is_unpaid: Mask
    """Groups that it leaves in a unit, and that are not paid for. Shape [groups, units]."""


@dataclass(frozen=True, slots=True)
class Separation:
    """Slots that are to be assigned to workers, each worker to one slot at most."""

    cost: Floats
    """Of a worker in a slot, infinite where it does not fit. Shape [slots, workers]."""
    types: Ints
    """Slots of one type cost the same and are in the same groups. Shape [slots]."""
    units: Mask
    """Which workers may be lost as one. Shape [workers, units]."""
    groups: Mask
    """Which slots hold something together. Shape [groups, slots]."""
    penalties: Floats
    """What it costs that all slots of a group are in a unit. Shape [groups, units]."""

    def solve(self) -> Ints | None:
        """The worker of every slot at the least cost, penalties included; None where nothing fits, or the search is cut short.

        Exact. O(slots^2 * workers) for each assignment problem; most take the first alone, or some dozens.
        """
        left, number = min(MOST_ASSIGNMENTS, MOST_CELLS // max(1, self.cost.size)), count()
        opened: list[tuple[float, int, int, _Node]] = []
        cases: Iterator[_Node | None] = iter([self._node(self.cost, np.zeros(self.penalties.shape, dtype=bool))])
        while left > 0:
            for node in cases:
                left -= 1
                if node is not None:
                    heappush(opened, (node.bound, int(node.is_unpaid.sum()), next(number), node))
            if not opened:
                return None
            best = heappop(opened)[-1]
            if not best.is_unpaid.any():
                return best.workers
            cases = self._cases(best)
        return None

    def _node(self, cost: Floats, is_paid: Mask) -> _Node | None:
        """The relaxation of some assignments; None where there are none."""
        try:
            slots, workers = linear_sum_assignment(cost)
        except ValueError:
            return None
        if len(slots) < len(cost):
            return None
        num_outside = self.groups.astype(np.int64) @ ~self.units[workers]
        bound = float(cost[slots, workers].sum() + self.penalties[is_paid].sum())
        return _Node(cost, is_paid, bound, workers, (num_outside == 0) & ~is_paid)

    def _cases(self, node: _Node) -> Iterator[_Node | None]:
        """The assignments of a node, told apart by the group in a unit that gives the fewest cases."""
        options = [(self._alike(node, group), group, unit) for group, unit in np.argwhere(node.is_unpaid).tolist()]
        alike, group, unit = min(options, key=lambda option: len(option[0]))
        inside, inner = self.units[:, unit], node.cost
        for slots in alike:
            outer = inner.copy()
            outer[slots[-1], inside] = np.inf
            yield self._node(outer, node.is_paid)
            inner = inner.copy()
            inner[np.ix_(np.array(slots), ~inside)] = np.inf
        is_paid = node.is_paid.copy()
        is_paid[group, unit] = True
        yield self._node(inner, is_paid)

    def _alike(self, node: _Node, group: int) -> Sequence[Sequence[int]]:
        """The slots of a group, those together that may exchange workers: whichever of them lies elsewhere, it may be the last."""
        result: dict[tuple[int, bytes], list[int]] = {}
        for slot in np.flatnonzero(self.groups[group]).tolist():
            result.setdefault((int(self.types[slot]), node.cost[slot].tobytes()), []).append(slot)
        return list(result.values())
