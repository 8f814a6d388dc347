"""Plans on workers or links that differ, bettered by moving single workers: what arrangements without names cannot see."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from heapq import nsmallest
from itertools import pairwise

from estimator.split import scheduled_times
from kintsugi.core.plan import IdleWorker, Pipeline, Plan, Stage
from kintsugi.core.profile import OptimizerSharding
from planner.arranging.degrees import degrees
from planner.arranging.request import Request
from planner.batches import distribute
from planner.pipelines.kinds import kind_of
from planner.pipelines.partition import Partitioner
from planner.pipelines.tails import tail_seconds
from planner.pipelines.zero_bubble import partitioner_for
from planner.placing.links import Links
from planner.placing.placement import NOT_NEEDED
from planner.placing.survival import exposure
from restorer.rounds import fastest_rounds

MOST_WORKERS = 16
"""In larger jobs nothing is refined."""

MOST_TIMED = 2000
"""Pipelines that are timed, at most."""

MOST_TRIED = 6
"""Of all changes, so many that promise most are priced in full before the plan is left as it is."""

Lane = tuple[str, ...]
"""Workers of a pipeline, first stage first."""

Lanes = tuple[Lane, ...]


def refined(request: Request, plan: Plan, goodput: Callable[[Plan], float]) -> Plan:
    """The plan, changed worker by worker as long as goodput grows by that: exchanged, moved, left out or taken in.

    Micro-batches and layers follow. A change that leaves replicas of more layers within one host or failure domain is not made.

    Args:
        request: what was asked for.
        plan: to start from; its workers hold one stage each.
        goodput: of a plan, in samples per second.
    """
    if len(request.workers) > MOST_WORKERS:
        return plan
    cluster, profile = request.costs.cluster, request.costs.profile
    kinds = {kind_of(cluster.by_id[worker], profile) for worker in request.workers}
    if len(kinds) == 1 and not cluster.links:
        return plan
    refinery, best, is_better = _Refinery(request, plan), goodput(plan), True
    while is_better:
        is_better = False
        for option in refinery.options(plan):
            if refinery.exposure(option) <= refinery.exposure(plan) and goodput(option) > best * (1 + 1e-9):
                plan, best, is_better = option, goodput(option), True
                break
    return plan


class _Refinery:
    """Times pipelines of named workers."""

    def __init__(self, request: Request, plan: Plan) -> None:
        self._request, self._costs, self._schedule = request, request.costs, plan.schedule
        settings, profile = request.settings, request.costs.profile
        self._allowed = degrees(settings.ranges, len(request.workers), profile.num_layers, settings.num_microbatches)
        self._links = Links(request.workers, request.costs.cluster, profile.network)
        self._partitioners: dict[int, Partitioner] = {}
        self._timed: dict[tuple[int, Lane, int], tuple[float, tuple[int, ...]]] = {}

    def options(self, plan: Plan) -> Iterator[Plan]:
        """Changed plans, those first whose pipelines are through first, as far as they could be faster than the plan."""
        lanes = tuple(tuple(stage.worker for stage in pipeline.stages if stage.worker) for pipeline in plan.pipelines)
        idle = [worker for worker in self._request.workers if worker not in set(plan.workers)]
        changed = {key: option for option in _changes(lanes, idle) if self._is_allowed(key := tuple(sorted(option)))}
        timed = [(self._seconds(option), key) for key, option in sorted(changed.items())]
        for seconds, key in nsmallest(MOST_TRIED, timed):
            if math.isfinite(seconds):
                yield self._plan(plan, changed[key])

    def exposure(self, plan: Plan) -> float:
        """How much one host or failure domain can take with it."""
        holding = ([(stage.layers, stage.worker) for stage in pipeline.stages if stage.worker] for pipeline in plan.pipelines)
        pipelines = [[(tuple(layers), worker) for layers, worker in stages] for stages in holding]
        return exposure(pipelines, self._costs.cluster, self._request.workers)

    def _is_allowed(self, lanes: Lanes) -> bool:
        return len(lanes) in self._allowed.dp and all(len(lane) in self._allowed.pp for lane in lanes)

    def _seconds(self, lanes: Lanes) -> float:
        """About when the last pipeline is through with its reductions; infinite where something does not fit.

        Pipelines are timed for as many micro-batches as their speed is worth; more or fewer count as passes of the busiest stage.
        """
        if len(self._timed) > MOST_TIMED:
            return math.inf
        dp, total = len(lanes), self._request.settings.num_microbatches
        speeds = [sum(self._costs.cluster.by_id[worker].speed_ratio for worker in lane) for lane in lanes]
        counts = [max(1, round(total * speed / sum(speeds))) for speed in speeds]
        timed = [self._time(dp, lane, count) for lane, count in zip(lanes, counts, strict=True)]
        if any(math.isinf(seconds) for seconds, _ in timed):
            return math.inf
        busiest = [self._busiest_seconds(lane, cuts) for lane, (_, cuts) in zip(lanes, timed, strict=True)]

        def about(k: int, num_microbatches: int) -> float:
            return timed[k][0] + (num_microbatches - counts[k]) * busiest[k]

        shares = distribute(dp, total, about)
        return max(about(k, share) for k, share in enumerate(shares))

    def _busiest_seconds(self, lane: Lane, cuts: tuple[int, ...]) -> float:
        """What one micro-batch takes on the busiest worker."""
        stages = [self._costs.stage(worker, a, b) for worker, (a, b) in zip(lane, pairwise(cuts), strict=True)]
        return max(stage.forward_seconds + stage.backward_seconds for stage in stages)

    def _shares(self, lanes: Lanes) -> tuple[int, ...]:
        total = self._request.settings.num_microbatches
        return distribute(len(lanes), total, lambda k, m: self._time(len(lanes), lanes[k], m)[0])

    def _time(self, dp: int, lane: Lane, num_microbatches: int) -> tuple[float, tuple[int, ...]]:
        """The objective of one of `dp` pipelines over its own links, and its stage boundaries."""
        key = dp, lane, num_microbatches
        if key not in self._timed:
            self._timed[key] = self._split(*key)
        return self._timed[key]

    def _split(self, dp: int, lane: Lane, num_microbatches: int) -> tuple[float, tuple[int, ...]]:
        costs = self._costs
        kinds = [kind_of(costs.cluster.by_id[worker], costs.profile) for worker in lane]
        tail = tail_seconds(costs.profile, self._links.pacing(dp), dp)
        split = self._partitioner(dp).best(self._partitioner(dp).attain(kinds, num_microbatches, tail))
        if split is None:
            return math.inf, ()
        ranges = list(pairwise(split.cuts))
        stages = [costs.stage(worker, a, b) for worker, (a, b) in zip(lane, ranges, strict=True)]
        delays = [costs.boundary_seconds(a, b, cut) for a, b, cut in zip(lane, lane[1:], split.cuts[1:-1], strict=False)]
        ends = scheduled_times(self._schedule, stages, delays, num_microbatches).stage_end_seconds
        return max(end + float(tail[b] - tail[a] + tail[0]) for end, (a, b) in zip(ends, ranges, strict=True)), split.cuts

    def _partitioner(self, dp: int) -> Partitioner:
        replicas = dp if self._costs.profile.optimizer_sharding is OptimizerSharding.ZERO1 else 1
        if replicas not in self._partitioners:
            made = partitioner_for(self._schedule)(self._costs.sums, self._schedule, self._links.fastest, replicas)
            self._partitioners[replicas] = made
        return self._partitioners[replicas]

    def _plan(self, plan: Plan, lanes: Lanes) -> Plan:
        shares = self._shares(lanes)
        order = sorted(range(len(lanes)), key=lambda k: (-len(lanes[k]), -shares[k], self._costs.cluster.order[lanes[k][0]]))
        pipelines = tuple(
            Pipeline(
                num_microbatches=shares[k],
                stages=tuple(
                    Stage(layer_start=a, layer_stop=b, worker=worker)
                    for worker, (a, b) in zip(lanes[k], pairwise(self._time(len(lanes), lanes[k], shares[k])[1]), strict=True)
                ),
            )
            for k in order
        )
        used = {worker for lane in lanes for worker in lane}
        idle = tuple(IdleWorker(worker=worker, reason=NOT_NEEDED) for worker in self._request.workers if worker not in used)
        changed = replace(plan, pipelines=pipelines, idle_workers=idle, rounds=())
        return changed.amended(rounds=fastest_rounds(changed, self._costs))


def _changes(lanes: Lanes, idle: Sequence[str]) -> Iterator[Lanes]:
    """All lanes that come of one change: two workers exchanged, or one moved to any place, left out, taken in or set apart."""
    places = [(k, i) for k, lane in enumerate(lanes) for i in range(len(lane))]
    for index, (k, i) in enumerate(places):
        yield from (_exchanged(lanes, (k, i), place) for place in places[index + 1 :])
        yield from (_put(lanes, (k, i), (worker,)) for worker in idle)
        without = _put(lanes, (k, i), ())
        yield without
        yield from _joined(without, lanes[k][i])
    for worker in idle:
        yield from _joined(lanes, worker)


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
