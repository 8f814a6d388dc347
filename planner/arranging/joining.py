"""Reductions that wait for each other: bounds and arrangements by how many layers the largest first stage holds.

A layer is reduced once it is through everywhere, and a worker reduces one layer at a time. Let c be the layers of the
largest first stage of all pipelines. Its worker reduces layers [0, c), and those up to x <= c only after every pipeline
has passed layer x - 1 for the last time: no step ends before any stage's last backward pass and the reductions of all layers
below c up to the stage's last. So short pipelines, whose first stages are large, make long ones wait. Which c an arrangement
has is not known beforehand: each is tried, and the least of their bounds is one for all arrangements.
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, replace

from kintsugi.core.plan import Schedule
from planner.arranging.arrangement import Arrangement
from planner.arranging.ceilings import Ceilings, OneByOne
from planner.arranging.search import EqualSearch
from planner.pipelines.entries import Entries
from planner.pipelines.kinds import ANY, Firsts
from planner.pipelines.relaxation import caps

MOST_JOINED = 64
"""Workers up to which this is worth its time."""


MOST_WORK = 2048
"""Bounds that are found for one decision before it stays with those it has."""

WORK_OF_SPLIT = 8
"""What a split takes to find, in bounds."""


@dataclass(slots=True)
class Effort:
    """Work that is left for one decision, counted in bounds on single pipelines: the same on every machine."""

    left: int = MOST_WORK

    @property
    def is_spent(self) -> bool:
        """Whether nothing is left."""
        return self.left <= 0

    def spend(self, entries: Entries) -> None:
        """Take off what was found out about pipelines."""
        self.left -= entries.num_bounds + WORK_OF_SPLIT * entries.num_splits


class _KnownFirsts(EqualSearch):
    """A search that knows something of the first stages, and shares what it tabulates with one that does not."""

    def __init__(self, whole: EqualSearch, firsts: Firsts) -> None:
        self.__dict__.update(whole.__dict__)
        self._firsts = firsts
        self._entries_of = {}

    def is_below(self, dp: int, limit_seconds: float) -> bool:
        """Whether bounds on single pipelines leave a step of `dp` pipelines below the limit."""
        limit = limit_seconds - self._after_seconds(dp)
        return self._is_reachable(dp, caps(self._lengths(dp), limit), limit)

    def spend(self, dp: int, effort: Effort) -> None:
        """Take off what was found out about pipelines of which there are `dp`."""
        effort.spend(self._entries(dp))

    def _ceilings(self, dp: int) -> Iterator[Ceilings]:
        """Its own alone, for others hold for any first stages; every bound is work."""
        yield OneByOne(self._entries(dp), self._problem.allowed.pp)

    def _entries(self, dp: int) -> Entries:
        if dp not in self._entries_of:
            self._entries_of[dp] = replace(super()._entries(dp), firsts=self._firsts)
        return self._entries_of[dp]

    def _least_update(self, dp: int) -> float:
        optimizer = self._problem.costs.sums.optimizer
        return max(super()._least_update(dp), float(optimizer[self._firsts.common]) / self._problem.kind.speed_ratio)


def join(search: EqualSearch, dp: int, limit_seconds: float, effort: Effort) -> tuple[float, list[Arrangement]]:
    """A lower bound on the step of `dp` pipelines, the limit where none is below it, and arrangements that may be.

    Nothing is looked at, and the bound is 0, under GPipe and in jobs of more than `MOST_JOINED` workers; the bound is 0
    too where the work that is left does not suffice.

    Args:
        search: for equal workers.
        dp: number of pipelines.
        limit_seconds: longer steps do not matter.
        effort: work that may be done.
    """
    problem = _KnownFirsts(search, ANY).problem
    if dp == 1 or problem.schedule is Schedule.GPIPE or problem.num_workers > MOST_JOINED:
        return 0.0, []
    bounds, found = [limit_seconds], list[Arrangement]()

    def is_below(firsts: Firsts) -> bool:
        if effort.is_spent:
            return True
        known = _KnownFirsts(search, firsts)
        result = known.is_below(dp, limit_seconds)
        known.spend(dp, effort)
        return result

    counts = range(1, problem.costs.profile.num_layers + 1)
    least = bisect_left(counts, True, key=lambda most: is_below(Firsts(most, 0)))
    beyond = bisect_left(counts, True, lo=least, key=lambda common: not is_below(Firsts(ANY.most, common)))
    for common in counts[least:beyond]:
        if effort.is_spent:
            return 0.0, found
        known = _KnownFirsts(search, Firsts(common, common))
        bound, arrangement = known.arrange(dp, limit_seconds)
        known.spend(dp, effort)
        bounds.append(bound)
        found += [arrangement] if arrangement is not None else []
    return min(bounds), found
