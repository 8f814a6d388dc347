"""Plans on workers or links that differ, bettered by moving single workers: what arrangements without names cannot see."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from heapq import nsmallest
from itertools import pairwise

from kintsugi.core.plan import IdleWorker, Pipeline, Plan, Stage
from planner.arranging.degrees import degrees
from planner.arranging.lanes import Lanes, Timing, changes
from planner.arranging.request import Request
from planner.placing.placement import NOT_NEEDED
from planner.placing.survival import plan_exposure
from restorer.rounds import fastest_rounds

MOST_WORKERS = 16
"""In larger jobs nothing is refined."""

MOST_TRIED = 6
"""Of all changes, so many that promise most are priced in full before the plan is left as it is."""

SLACK = 0.02
"""By what share pipelines of a change may be through later than the plan's: not all is seen before it is priced in full."""

DOUBTFUL = 0.02
"""By what share a step must be above its bound for anybody to look for a shorter one in ways that take long."""


def is_refined(request: Request) -> bool:
    """Whether single workers matter, and are few enough to look at."""
    return _is_possible(request) and (bool(request.costs.cluster.links) or len(set(request.kinds)) > 1)


def is_doubtful(iteration_seconds: float, least_seconds: float) -> bool:
    """Whether a step is so much above its bound that a shorter one is worth a search."""
    return iteration_seconds > least_seconds * (1 + DOUBTFUL)


def is_worth_refining(request: Request, iteration_seconds: float, least_seconds: float) -> bool:
    """Whether a plan with such a step is looked at worker by worker; no step is shorter than `least_seconds`.

    Where hosts are shared nobody knows whether neighbours are on the same one until workers have names.
    """
    if is_refined(request):
        return True
    return is_doubtful(iteration_seconds, least_seconds) and not request.costs.cluster.has_equal_links and _is_possible(request)


def _is_possible(request: Request) -> bool:
    return len(request.workers) <= MOST_WORKERS and not request.settings.schedule.is_interleaved


def refined(request: Request, plan: Plan, goodput: float, goodput_above: Callable[[Plan, float], float | None]) -> Plan:
    """The plan, changed worker by worker as long as goodput grows by that: exchanged, moved, left out or taken in.

    Micro-batches and layers follow. A change that leaves replicas of more layers within one host or failure domain is not made.

    Args:
        request: what was asked for.
        plan: to start from; its workers hold one stage each.
        goodput: of that plan, in samples per second.
        goodput_above: of another plan; None where it is not above the given one.
    """
    refinery, best, is_better = _Refinery(request, plan), goodput, True
    while is_better:
        is_better = False
        for option in refinery.options(plan):
            if refinery.exposure(option) > refinery.exposure(plan):
                continue
            if (higher := goodput_above(option, best * (1 + 1e-9))) is not None:
                plan, best, is_better = option, higher, True
                break
    return plan


class _Refinery:
    """Changes plans worker by worker."""

    def __init__(self, request: Request, plan: Plan) -> None:
        self._request, self._costs = request, request.costs
        settings, profile = request.settings, request.costs.profile
        self._allowed = degrees(settings.ranges, len(request.workers), profile.num_layers, settings.num_microbatches)
        self._timing = Timing(request, plan.schedule)

    def options(self, plan: Plan) -> Iterator[Plan]:
        """Changed plans, those first whose pipelines are through first, as far as they could be faster than the plan."""
        lanes = tuple(tuple(stage.worker for stage in pipeline.stages if stage.worker) for pipeline in plan.pipelines)
        idle = [worker for worker in self._request.workers if worker not in set(plan.workers)]
        changed = {
            key: option for option in changes(lanes, idle, self._timing.likeness) if self._is_allowed(key := tuple(sorted(option)))
        }
        timed = ((self._timing.seconds(option), key) for key, option in changed.items())
        limit = min(self._timing.seconds(lanes) * (1 + SLACK), sys.float_info.max)
        for seconds, key in nsmallest(MOST_TRIED, timed):
            if seconds <= limit and (option := self._plan(plan, changed[key])) is not None:
                yield option

    def exposure(self, plan: Plan) -> float:
        """How much one host or failure domain can take with it."""
        return plan_exposure(plan, self._costs.cluster, self._request.workers)

    def _is_allowed(self, lanes: Lanes) -> bool:
        return len(lanes) in self._allowed.dp and all(len(lane) in self._allowed.pp for lane in lanes)

    def _plan(self, plan: Plan, lanes: Lanes) -> Plan | None:
        """The plan with other lanes; None where some lane's memory holds no share with which all are through together."""
        shares = self._timing.shares(lanes)
        cuts = [self._timing.cuts(len(lanes), lane, share) for lane, share in zip(lanes, shares, strict=True)]
        if not all(cuts):
            return None
        order = sorted(range(len(lanes)), key=lambda k: (-len(lanes[k]), -shares[k], self._costs.cluster.order[lanes[k][0]]))
        pipelines = tuple(
            Pipeline(
                num_microbatches=shares[k],
                stages=tuple(
                    Stage(layer_start=a, layer_stop=b, worker=worker)
                    for worker, (a, b) in zip(lanes[k], pairwise(cuts[k]), strict=True)
                ),
            )
            for k in order
        )
        used = {worker for lane in lanes for worker in lane}
        idle = tuple(IdleWorker(worker=worker, reason=NOT_NEEDED) for worker in self._request.workers if worker not in used)
        changed = replace(plan, pipelines=pipelines, idle_workers=idle, rounds=())
        return changed.amended(rounds=fastest_rounds(changed, self._costs))
