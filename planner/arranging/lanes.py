"""Pipelines as chains of named workers: how they may be changed by one worker, and about how long they take."""

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import combinations, pairwise

from estimator.arrays import Floats
from estimator.layers import StageTimes
from estimator.split import scheduled_times
from kintsugi.core.plan import Schedule
from kintsugi.core.profile import LinkCost
from planner.arranging.pace import Pace, busiest_seconds, by_speed, level_seconds, together
from planner.arranging.request import Request
from planner.arranging.stepping import Kind
from planner.batches import distribute, exchanged
from planner.pipelines.kinds import WorkerKind
from planner.pipelines.partition import Partitioner
from planner.pipelines.tails import tail_seconds
from planner.placing.links import Links

MOST_TIMED = 2000
"""Pipelines that are timed, at most."""

Lane = tuple[str, ...]
"""Workers of a pipeline, first stage first."""

Lanes = tuple[Lane, ...]

Likeness = tuple[tuple[WorkerKind, ...], tuple[LinkCost, ...]]
"""All that a lane's time depends on: its workers' kinds, and the links between neighbours."""


class Timing:
    """Times lanes; those that are alike are timed once, whatever their workers are called."""

    def __init__(self, request: Request, schedule: Schedule, *, reduction_link: LinkCost | None = None) -> None:
        self._costs, self._schedule = request.costs, schedule
        self._reduction_link = reduction_link
        self._num_microbatches = request.settings.num_microbatches
        self._links = Links(request.workers, request.costs)
        self._kinds = dict(zip(request.workers, request.kinds, strict=True))
        self._shared, self._partitioners = request.shared, dict[int, Partitioner]()
        self._tails: dict[int, Floats] = {}
        self._numbers: dict[Likeness, int] = {}
        self._number_of: dict[Lane, int] = {}
        self._alike: list[Lane] = []
        """One lane of each likeness, by number."""
        self._seconds: dict[tuple[int, ...], float] = {}
        self._known: dict[tuple[int, int, int], tuple[Pace, tuple[int, ...]]] = {}
        self._cuts: dict[tuple[int, tuple[WorkerKind, ...], int], tuple[int, ...]] = {}
        self._stepper = request.shared.stepper(request.costs, schedule, self._links.fastest)
        self._most_known = MOST_TIMED

    def begin(self) -> None:
        """Time as much again as at first."""
        self._most_known = len(self._known) + MOST_TIMED

    def seconds(self, lanes: Lanes) -> float:
        """About when the last pipeline is through with its reductions; infinite where something does not fit.

        Pipelines are timed for as many micro-batches as their speed is worth; more or fewer count as passes of the busiest stage.
        """
        alike = self.alike(lanes)
        if alike not in self._seconds:
            self._seconds[alike] = self._about([self._alike[number] for number in alike])
        return self._seconds[alike]

    def level_seconds(self, lanes: Lanes) -> float:
        """About when all pipelines would be through at once if micro-batches could be divided; infinite where some do not fit."""
        if len(self._known) > self._most_known or (paces := self._paces(lanes)) is None:
            return math.inf
        return max(level_seconds(paces, self._num_microbatches), *(pace.seconds_for(1) for pace in paces))

    def shares(self, lanes: Lanes) -> tuple[int, ...]:
        """Micro-batches of each lane, so that all are through together."""

        def seconds(k: int, num_microbatches: int) -> float:
            return self._pace(len(lanes), lanes[k], num_microbatches)[0].seconds

        paces = self._paces(lanes)
        if paces is None:
            return distribute(len(lanes), self._num_microbatches, seconds)
        return exchanged(together(paces, self._num_microbatches), seconds)

    def alike(self, lanes: Lanes) -> tuple[int, ...]:
        """Equal for lanes that are alike but for their order and their workers' names."""
        return tuple(sorted(map(self.likeness, lanes)))

    def step_seconds(self, lanes: Lanes) -> float:
        """A step over equal links, as the estimator reckons it of the plan; infinite where something does not fit."""
        shares, dp = self.shares(lanes), len(lanes)
        cuts = [self.cuts(dp, lane, share) for lane, share in zip(lanes, shares, strict=True)]
        if not all(cuts):
            return math.inf
        kinds = Counter(map(self._kind_of, lanes, cuts, shares))
        return self._stepper.seconds(kinds, self._links.pacing(dp), is_quick=False)

    def cuts(self, dp: int, lane: Lane, num_microbatches: int) -> tuple[int, ...]:
        """Stage boundaries of one of `dp` lanes."""
        return self._pace(dp, lane, num_microbatches)[1]

    def level_cuts(self, lanes: Lanes) -> list[tuple[int, ...]]:
        """Stage boundaries of each lane for as many micro-batches as its speed is worth; none where no split fits memory."""
        counts = self._counts(lanes)
        return [self.cuts(len(lanes), lane, count) for lane, count in zip(lanes, counts, strict=True)]

    def kind(self, worker: str) -> WorkerKind:
        """What a worker counts as."""
        return self._kinds[worker]

    def lane_kinds(self, lane: Lane) -> tuple[WorkerKind, ...]:
        """What the workers of a lane count as, whatever links are between them."""
        return tuple([self._kinds[worker] for worker in lane])

    def likeness(self, lane: Lane) -> int:
        """Equal for lanes that take equally long."""
        if lane not in self._number_of:
            cluster, network = self._costs.cluster, self._costs.profile.network
            links = tuple(cluster.link(a, b, network) for a, b in pairwise(lane))
            likeness = self.lane_kinds(lane), links
            number = self._number_of[lane] = self._numbers.setdefault(likeness, len(self._numbers))
            if number == len(self._alike):
                self._alike.append(lane)
        return self._number_of[lane]

    def _about(self, lanes: Sequence[Lane]) -> float:
        if len(self._known) > self._most_known or (paces := self._paces(lanes)) is None:
            return math.inf
        shares = together(paces, self._num_microbatches)
        return max(pace.seconds_for(share) for pace, share in zip(paces, shares, strict=True))

    def _paces(self, lanes: Sequence[Lane]) -> list[Pace] | None:
        """What is known of lanes from their times with what micro-batches their speed is worth; None where some do not fit."""
        dp = len(lanes)
        paces = [self._pace(dp, lane, count)[0] for lane, count in zip(lanes, self._counts(lanes), strict=True)]
        return None if any(math.isinf(pace.seconds) for pace in paces) else paces

    def _counts(self, lanes: Sequence[Lane]) -> tuple[int, ...]:
        """Micro-batches that the speeds of lanes are worth."""
        speeds = [sum(self._kinds[worker].speed_ratio for worker in lane) for lane in lanes]
        return by_speed(speeds, self._num_microbatches)

    def _pace(self, dp: int, lane: Lane, num_microbatches: int) -> tuple[Pace, tuple[int, ...]]:
        """The objective of one of `dp` pipelines over its own links, and its stage boundaries."""
        key = dp, self.likeness(lane), num_microbatches
        if key not in self._known:
            self._known[key] = self._timed(dp, lane, num_microbatches)
        return self._known[key]

    def _timed(self, dp: int, lane: Lane, num_microbatches: int) -> tuple[Pace, tuple[int, ...]]:
        cuts, tail = self._cuts_for(dp, self.lane_kinds(lane), num_microbatches), self._tail(dp)
        if not cuts:
            return Pace(num_microbatches, math.inf, math.inf, self._num_microbatches), ()
        stages = [self._costs.stage(worker, a, b) for worker, (a, b) in zip(lane, pairwise(cuts), strict=True)]
        ends = self._ends(lane, stages, cuts, num_microbatches)
        seconds = max(end + float(tail[b] - tail[a] + tail[0]) for end, (a, b) in zip(ends, pairwise(cuts), strict=True))
        return Pace(num_microbatches, seconds, busiest_seconds(stages), self._num_microbatches), cuts

    def _ends(self, lane: Lane, stages: Sequence[StageTimes], cuts: tuple[int, ...], num_microbatches: int) -> Sequence[float]:
        """When the stages of a lane are through over its own links."""
        if self._costs.cluster.has_equal_links:
            return self._stepper.stage_ends(self._kind_of(lane, cuts, num_microbatches))
        boundaries = zip(lane, lane[1:], cuts[1:-1], strict=False)
        delays = [self._costs.boundary_seconds(a, b, cut) for a, b, cut in boundaries]
        return scheduled_times(self._schedule, stages, delays, num_microbatches).stage_end_seconds

    def _kind_of(self, lane: Lane, cuts: tuple[int, ...], num_microbatches: int) -> Kind:
        return Kind(cuts, num_microbatches, tuple([self._kinds[worker].speed_ratio for worker in lane]))

    def _cuts_for(self, dp: int, kinds: tuple[WorkerKind, ...], num_microbatches: int) -> tuple[int, ...]:
        """Stage boundaries over the fastest links, whichever links a lane of such workers has; none where no split fits memory."""
        key = dp, kinds, num_microbatches
        if key not in self._cuts:
            partitioner = self._partitioner(dp)
            split = partitioner.best(partitioner.attain(kinds, num_microbatches, self._tail(dp)))
            self._cuts[key] = () if split is None else split.cuts
        return self._cuts[key]

    def _tail(self, dp: int) -> Floats:
        if dp not in self._tails:
            self._tails[dp] = tail_seconds(self._costs.profile, self._reduction_link or self._links.pacing(dp), dp)
        return self._tails[dp]

    def _partitioner(self, dp: int) -> Partitioner:
        replicas = self._costs.profile.optimizer_shards(dp)
        if replicas not in self._partitioners:
            asked = self._costs, self._schedule, self._links.fastest, replicas
            self._partitioners[replicas] = self._shared.partitioner(*asked)
        return self._partitioners[replicas]


def changes(lanes: Lanes, idle: Sequence[str], likeness: Callable[[Lane], Hashable]) -> Iterator[Lanes]:
    """All lanes that come of one change: two workers exchanged, or one moved to any place, left out, taken in or set apart.

    Two workers of a lane are exchanged in all lanes that are alike, too: none of these makes a step shorter by itself.

    Args:
        lanes: to be changed.
        idle: workers that may be taken in.
        likeness: equal for lanes that are alike.
    """
    places = [(k, i) for k, lane in enumerate(lanes) for i in range(len(lane))]
    for index, (k, i) in enumerate(places):
        yield from (_exchanged(lanes, (k, i), place) for place in places[index + 1 :])
        yield from (_put(lanes, (k, i), (worker,)) for worker in idle)
        without = _put(lanes, (k, i), ())
        yield without
        yield from _joined(without, lanes[k][i])
    for worker in idle:
        yield from _joined(lanes, worker)
    kinds = [likeness(lane) for lane in lanes]
    for kind in dict.fromkeys(kinds):
        alike = [k for k, other in enumerate(kinds) if other == kind]
        if len(alike) > 1:
            for pair in combinations(range(len(lanes[alike[0]])), 2):
                yield _exchanged_in_all(lanes, alike, pair)


def distinct_changes(
    lanes: Lanes, idle: Sequence[str], likeness: Callable[[Lane], int], kind: Callable[[str], WorkerKind]
) -> Iterator[Lanes]:
    """One at least of those `changes` over equal links that come to lanes which are alike, and few others.

    Workers of one kind are not exchanged, of lanes that are alike the first gives, takes and moves its workers, and of workers
    of one kind that stand together the first moves away, and others come behind the last.
    """
    kinds = [likeness(lane) for lane in lanes]
    spares = list({kind(worker): worker for worker in reversed(idle)}.values())
    yield from _distinct_exchanges(lanes, kinds, kind)
    for k, i in _first_places(lanes, kinds):
        own = kind(lanes[k][i])
        yield from (_put(lanes, (k, i), (spare,)) for spare in spares if kind(spare) != own)
        if i == 0 or kind(lanes[k][i - 1]) != own:
            without = _put(lanes, (k, i), ())
            yield without
            yield from _joined_anew(without, lanes[k][i], likeness, kind)
    for worker in spares:
        yield from _joined_anew(lanes, worker, likeness, kind)


def _first_places(lanes: Lanes, kinds: Sequence[int]) -> list[tuple[int, int]]:
    """Those of the first of lanes that are alike."""
    return [(k, i) for k, lane in enumerate(lanes) if kinds.index(kinds[k]) == k for i in range(len(lane))]


def _distinct_exchanges(lanes: Lanes, kinds: Sequence[int], kind: Callable[[str], WorkerKind]) -> Iterator[Lanes]:
    """Workers of two kinds exchanged, in all lanes that are alike at once, too."""
    seen, all_places = set[tuple[int, int, int, int, bool]](), [(m, j) for m, lane in enumerate(lanes) for j in range(len(lane))]
    for k, i in _first_places(lanes, kinds):
        for m, j in all_places:
            pair = k, i, kinds[m], j, m == k
            if (m == k and j <= i) or kind(lanes[k][i]) == kind(lanes[m][j]) or pair in seen:
                continue
            seen.add(pair)
            yield _exchanged(lanes, (k, i), (m, j))
            if m == k and kinds.count(kinds[k]) > 1:
                yield _exchanged_in_all(lanes, [other for other, number in enumerate(kinds) if number == kinds[k]], (i, j))


def _joined_anew(lanes: Lanes, worker: str, likeness: Callable[[Lane], int], kind: Callable[[str], WorkerKind]) -> Iterator[Lanes]:
    """`_joined` to the first of lanes that are alike, behind workers of its kind that stand together."""
    kinds, own = [likeness(lane) for lane in lanes], kind(worker)
    for k, i in _first_places(lanes, kinds):
        if kind(lanes[k][i]) != own:
            yield (*lanes[:k], (*lanes[k][:i], worker, *lanes[k][i:]), *lanes[k + 1 :])
    for k, lane in enumerate(lanes):
        if kinds.index(kinds[k]) == k:
            yield (*lanes[:k], (*lane, worker), *lanes[k + 1 :])
    yield (*lanes, (worker,))


def _exchanged_in_all(lanes: Lanes, alike: Sequence[int], places: tuple[int, int]) -> Lanes:
    """Two workers of each of several lanes exchanged."""
    for k in alike:
        lanes = _exchanged(lanes, (k, places[0]), (k, places[1]))
    return lanes


def _exchanged(lanes: Lanes, one: tuple[int, int], other: tuple[int, int]) -> Lanes:
    first, second = lanes[one[0]][one[1]], lanes[other[0]][other[1]]
    return _put(_put(lanes, one, (second,)), other, (first,))


def _put(lanes: Lanes, place: tuple[int, int], workers: Lane) -> Lanes:
    """Other workers in one place; a lane without workers is gone."""
    k, i = place
    lane = (*lanes[k][:i], *workers, *lanes[k][i + 1 :])
    return (*lanes[:k], *((lane,) if lane else ()), *lanes[k + 1 :])


def _joined(lanes: Lanes, worker: str) -> Iterator[Lanes]:
    """The worker in every place between others, and in a lane of its own."""
    for k, lane in enumerate(lanes):
        for i in range(len(lane) + 1):
            yield (*lanes[:k], (*lane[:i], worker, *lane[i:]), *lanes[k + 1 :])
    yield (*lanes, (worker,))
