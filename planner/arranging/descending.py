"""Pipelines of which each lies on one side of slow links, in a rack, bettered by their times alone.

What arrangements without names cannot see is that every reduction goes from rack to rack then, while messages do not: layers are
split, and workers put in order, for these links. Changes are not priced, so that many of them can be made.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence

from estimator.communication import slowest_link
from kintsugi.core.profile import LinkCost
from planner.arranging.degrees import Degrees
from planner.arranging.lanes import Lane, Lanes, Timing, changes
from planner.arranging.request import Request
from planner.arranging.siding import Seats, by_pipelines, has_ways
from planner.pipelines.kinds import WorkerKind
from planner.placing.paths import along_path, sides

LEAST_GAIN = 1e-4
"""By what share pipelines must be through sooner for a change to be made."""

MOST_ROUNDS = 24
"""So often all changes are looked at."""


class Descent:
    """Looks for pipelines of one request."""

    def __init__(self, request: Request, allowed: Degrees) -> None:
        self._request, self._allowed = request, allowed
        path = along_path(request.workers, request.costs)
        self._place = {worker: place for place, worker in enumerate(path)}
        self._sides = sides(path, request.costs)
        self._kinds = dict(zip(request.workers, request.kinds, strict=True))
        self._timings: dict[LinkCost, Timing] = {}

    @property
    def num_sides(self) -> int:
        """Of slow links."""
        return len(self._sides)

    def promising(self, below_seconds: float) -> list[Lanes]:
        """The best pipelines by racks of each number, those first that are through first as if micro-batches could be divided.

        Only such as may be through before a time.
        """
        best: dict[int, tuple[float, Lanes]] = {}
        for lanes in self._by_racks():
            seconds = self.timing(lanes).level_seconds(lanes)
            if seconds < min(below_seconds, best[len(lanes)][0] if len(lanes) in best else below_seconds):
                best[len(lanes)] = seconds, lanes
        return [lanes for _, lanes in sorted(best.values())]

    def timing(self, lanes: Lanes) -> Timing:
        """What times such pipelines: with reductions over the slowest link between their first stages."""
        costs = self._request.costs
        link = slowest_link([lane[0] for lane in lanes], costs.cluster, costs.profile.network)
        if link not in self._timings:
            self._timings[link] = Timing(self._request, self._request.settings.schedule, reduction_link=link)
        return self._timings[link]

    def descending(self, lanes: Lanes, is_allowed: Callable[[Lanes], bool] = lambda _: True) -> Iterator[Lanes]:
        """As many pipelines, changed as long as they are through sooner: each time by all changes that shorten different ones.

        Args:
            lanes: to start from.
            is_allowed: whether pipelines may be changed to others; asked of those alone that are through sooner.
        """
        timing = self.timing(lanes)
        timing.begin()
        seconds = timing.level_seconds(lanes)
        for _ in range(MOST_ROUNDS):
            before, least = lanes, seconds * (1 - LEAST_GAIN)
            for own, option in sorted((own, option) for own, option in self._changed(timing, before) if own < least):
                if (both := option if lanes is before else _both(before, lanes, option)) is None:
                    continue
                sooner = own if both is option else timing.level_seconds(both)
                if sooner < seconds and is_allowed(both):
                    lanes, seconds = both, sooner
            if lanes is before:
                break
            yield lanes

    def _by_racks(self) -> Iterator[Lanes]:
        """Several pipelines, each of neighbours of one rack."""
        if has_ways(self._sides):
            kinds = [tuple(self._kinds[worker] for worker in side) for side in self._sides]
            for dp in range(max(2, self._allowed.dp.start), self._allowed.dp.stop):
                yield from dict.fromkeys(self._named(way) for way in by_pipelines(kinds, dp, self._allowed.pp))

    def _named(self, way: Sequence[Seats]) -> Lanes:
        left = defaultdict[tuple[int, WorkerKind], deque[str]](deque)
        for side, workers in enumerate(self._sides):
            for worker in workers:
                left[side, self._kinds[worker]].append(worker)
        lanes = ([left[seat].popleft() for seat in seats] for seats in way)
        return tuple(tuple(sorted(lane, key=self._place.__getitem__)) for lane in lanes)

    def _changed(self, timing: Timing, lanes: Lanes) -> Iterator[tuple[float, Lanes]]:
        """Each change that leaves as many pipelines once, and when these are through."""
        used, known = {worker for lane in lanes for worker in lane}, set[tuple[int, ...]]()
        idle = [worker for worker in self._request.workers if worker not in used]
        for option in changes(lanes, idle, timing.lane_kinds):
            if len(option) != len(lanes) or not all(len(lane) in self._allowed.pp for lane in option):
                continue
            if (alike := timing.alike(option)) not in known:
                known.add(alike)
                yield timing.level_seconds(option), option


def _both(lanes: Lanes, one: Lanes, other: Lanes) -> Lanes | None:
    """Lanes with the changes of both; None where both change the same lane, or take the same worker in."""
    result: list[Lane] = []
    for lane, first, second in zip(lanes, one, other, strict=True):
        if lane not in (first, second):
            return None
        result.append(second if first == lane else first)
    workers = [worker for lane in result for worker in lane]
    return tuple(result) if len(set(workers)) == len(workers) else None
