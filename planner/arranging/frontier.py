"""Arrangements by the most goodput that they can have, each reckoned no further than its place among the others needs."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush

from planner.arranging.arrangement import Arrangement
from planner.arranging.request import AnySearch, Request
from planner.placing.placement import least_migration_seconds


@dataclass(frozen=True, slots=True)
class Option:
    """An arrangement and the most goodput that it can have, in samples per second."""

    arrangement: Arrangement
    most_goodput: float


@dataclass(frozen=True, slots=True)
class Frontier:
    """What was found so far; the least migration is reckoned of those alone that are first without it."""

    request: Request
    search: AnySearch
    _found: list[tuple[Arrangement, float]] = field(default_factory=list, init=False)
    """With their steps in seconds."""
    _queue: list[tuple[float, int, bool]] = field(default_factory=list, init=False)
    """A heap of negative goodputs, places in `_found`, and whether that is with the least migration."""

    def add(self, arrangement: Arrangement) -> None:
        """Put an arrangement in its place."""
        seconds = self.search.step_seconds(arrangement)
        heappush(self._queue, (-self._goodput(arrangement, seconds, 0.0), len(self._found), self.request.holdings.plan is None))
        self._found.append((arrangement, seconds))

    @property
    def most_goodput(self) -> float:
        """Of all options, in samples per second; negative infinity where there is none."""
        self._settle()
        return -self._queue[0][0] if self._queue else -float("inf")

    def leading(self, count: int) -> list[Option]:
        """Those with most goodput, the first one first; they stay."""
        places = [self._next() for _ in range(min(count, len(self._queue)))]
        for place in places:
            heappush(self._queue, place)
        return [self._option(place) for place in places]

    def descending(self) -> Iterator[Option]:
        """All options, most goodput first, as long as more are asked for; they are taken."""
        while self._queue:
            yield self._option(self._next())

    def _option(self, place: tuple[float, int, bool]) -> Option:
        return Option(self._found[place[1]][0], -place[0])

    def _next(self) -> tuple[float, int, bool]:
        self._settle()
        return heappop(self._queue)

    def _settle(self) -> None:
        """Reckon the first one's migration until that leaves it the first."""
        while self._queue and not self._queue[0][2]:
            _, place, _ = heappop(self._queue)
            arrangement, seconds = self._found[place]
            moving = least_migration_seconds(arrangement, self.request.holdings, self.request.costs)
            heappush(self._queue, (-self._goodput(arrangement, seconds, moving), place, True))

    def _goodput(self, arrangement: Arrangement, seconds: float, moving_seconds: float) -> float:
        """With this step, when moving what must be moved takes so long."""
        return self.request.worth_of_step(seconds, len(arrangement.shapes), moving_seconds)
