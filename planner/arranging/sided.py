"""Arrangements for which it is known on which side of slow links, or rack, every worker is."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property

from planner.arranging.arrangement import Arrangement
from planner.arranging.assembling import Assembly
from planner.arranging.grouping import Kinds
from planner.arranging.request import Request
from planner.arranging.search import EqualSearch
from planner.arranging.siding import has_ways, ways
from planner.arranging.unequal import UnequalSearch
from planner.pipelines.kinds import crews
from planner.placing.paths import along_path, sides


def sides_of(request: Request) -> Sequence[Sequence[str]]:
    """Workers on each side of slow links."""
    return sides(along_path(request.workers, request.costs), request.costs)


def are_apart(request: Request) -> bool:
    """Whether slow links lie between few enough groups of workers for arrangements by these."""
    return bool(request.costs.cluster.links) and has_ways(sides_of(request))


class SidedSearch:
    """Arrangements that suit the sides of slow links, beside those that another search finds without a look at these."""

    def __init__(self, request: Request, search: EqualSearch | UnequalSearch) -> None:
        self._request, self._search = request, search

    def arrangements(self, dp: int, limit_seconds: float) -> Iterator[Arrangement]:
        """Those of `dp` pipelines whose step may be below the limit."""
        for crew in self._crews:
            for way in ways(crew, dp, self._search.problem.allowed.pp):
                groups = [tuple(seat.kind for seat in seats) for seats in way]
                found = self._assembly.of(groups, [tuple(seat.side for seat in seats) for seats in way])
                if found is not None and found.least_seconds < limit_seconds:
                    yield found.timed if isinstance(self._search, UnequalSearch) else replace(found.timed, kinds=None)

    @cached_property
    def _crews(self) -> Sequence[Sequence[Kinds]]:
        """What all workers count as, and those without the slowest or the smallest, by side."""
        kind_of = dict(zip(self._request.workers, self._request.kinds, strict=True))
        if isinstance(self._search, UnequalSearch):
            kind_of = {worker: self._search.levels[kind] for worker, kind in kind_of.items()}
        apart = sides_of(self._request)
        return [
            [tuple(kind_of[worker] for worker in side if kind_of[worker] in crew) for side in apart]
            for crew in map(set, crews(kind_of.values()))
        ]

    @cached_property
    def _assembly(self) -> Assembly:
        search = self._search
        if isinstance(search, UnequalSearch):
            return search.assembly
        return Assembly(search.problem, len(self._request.workers), search.partitioner)
