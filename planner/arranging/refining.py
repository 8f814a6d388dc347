"""Plans on workers or links that differ, bettered by moving single workers: what arrangements without names cannot see."""

import math
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, partial
from heapq import nsmallest
from itertools import islice, pairwise
from operator import itemgetter

from kintsugi.core.plan import IdleWorker, Pipeline, Plan, Stage
from planner.arranging.degrees import degrees
from planner.arranging.descending import Descent
from planner.arranging.lanes import Lanes, Timing, changes, distinct_changes
from planner.arranging.request import Request
from planner.arranging.search import FEW
from planner.placing.placement import NOT_NEEDED
from planner.placing.survival import exposure, plan_exposure
from restorer.rounds import fastest_rounds

MOST_WORKERS = 16
"""In larger jobs nothing is refined but, over links that differ, the best plan of all: of up to `planner.arranging.search.FEW`.

First plans are refined so of up to `MOST_WITHIN_RACKS`, after they have been bettered by their times alone.
"""

MOST_TRIED = 6
"""Of all changes, so many that promise most are priced in full before the plan is left as it is."""

MOST_NAMED = 2
"""So many of the ways to name the workers of a change are tried."""

MOST_WITHIN_RACKS = 64
"""In larger jobs no pipelines within racks are bettered, and no plan is in the end."""

MOST_DESCENDED = 2
"""Numbers of pipelines within racks that are bettered by their times alone."""

MOST_FUTILE = 2
"""So many changes in a row that are worth no more end the descent from the best plan of all."""

MOST_GAIN = 0.1
"""By what share pipelines may be worth less than others are in the end to be bettered by their times alone, too."""

LEAST_GAIN = 1e-9
"""By what share goodput must grow at least: less is rounding."""

SLACK = 0.02
"""By what share pipelines of a change may be through later than the plan's: not all is seen before it is priced in full."""

DOUBTFUL = 0.02
"""By what share a step must be above its bound for anybody to look for a shorter one in ways that take long."""

_Valued = tuple[float, Plan]
"""What a plan is worth, and the plan."""


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


def is_worth_refining_last(request: Request, iteration_seconds: float, least_seconds: float) -> bool:
    """Whether the best of all plans over links that differ is bettered, in a job of more workers than have several bettered."""
    most = MOST_WITHIN_RACKS if request.holdings.plan is None else FEW
    return MOST_WORKERS < len(request.workers) <= most and _is_doubtful_over_links(request, iteration_seconds, least_seconds)


def is_descended(request: Request, iteration_seconds: float, least_seconds: float) -> bool:
    """Whether pipelines within racks are bettered by their times alone, beside a plan of such a step: a first one."""
    is_first, is_in_reach = request.holdings.plan is None, len(request.workers) <= MOST_WITHIN_RACKS
    return is_first and is_in_reach and _is_doubtful_over_links(request, iteration_seconds, least_seconds)


def is_continued(request: Request, iteration_seconds: float, least_seconds: float) -> bool:
    """Whether the best of all plans is bettered by its times alone: a first one of more workers than have several refined."""
    return len(request.workers) > MOST_WORKERS and is_descended(request, iteration_seconds, least_seconds)


def _is_doubtful_over_links(request: Request, iteration_seconds: float, least_seconds: float) -> bool:
    can_be_changed = bool(request.costs.cluster.links) and not request.settings.schedule.is_interleaved
    return can_be_changed and is_doubtful(iteration_seconds, least_seconds)


def _is_possible(request: Request) -> bool:
    return len(request.workers) <= MOST_WORKERS and not request.settings.schedule.is_interleaved


class Refinery:
    """Changes plans of one request worker by worker."""

    def __init__(self, request: Request) -> None:
        self._request, self._costs = request, request.costs
        settings, profile = request.settings, request.costs.profile
        self._allowed = degrees(settings.ranges, len(request.workers), profile.num_layers, settings.num_microbatches)

    def refined(self, plan: Plan, goodput: float, goodput_above: Callable[[Plan, float], float | None]) -> Plan:
        """The plan, changed worker by worker as long as goodput grows by that: exchanged, moved, left out or taken in.

        Micro-batches and layers follow. A change that leaves replicas of more layers within one host or failure domain is not made.

        Args:
            plan: to start from; its workers hold one stage each.
            goodput: of that plan, in samples per second.
            goodput_above: of another plan; None where it is not above the given one.
        """
        best, is_better = goodput * (1 + LEAST_GAIN), True
        self._timing.begin()
        while is_better:
            is_better = False
            for option in self._options(plan, best):
                if self._exposure(option) > self._exposure(plan):
                    continue
                if (higher := goodput_above(option, best)) is not None:
                    plan, best, is_better = option, higher * (1 + LEAST_GAIN), True
                    break
        return plan

    def descended(self, plan: Plan, below_seconds: float, worth_above: Callable[[Plan, float], float | None]) -> Plan | None:
        """The best plan of pipelines within racks whose workers are changed by their times as long as it is worth more.

        Of all numbers of pipelines that promise a step below a time those are changed that are worth most as they are, one for
        each rack among them. None where there is none.

        Args:
            plan: that is known; replicas of no more layers are left within one host or failure domain.
            below_seconds: that pipelines may be through before, as if micro-batches could be divided.
            worth_above: what a plan is worth; None where that is not above an amount.
        """
        descent, valued, ends = self._descent, partial(self._valued, plan, worth_above), list[_Valued]()
        starts = [(lanes, known) for lanes in descent.promising(below_seconds) if (known := valued(lanes, 0.0))]
        starts.sort(key=lambda start: (len(start[0]) != descent.num_sides, -start[1][0]))
        for lanes, known in starts[:MOST_DESCENDED]:
            if all(known[0] > end[0] * (1 - MOST_GAIN) for end in ends):
                ends.append(_last(known, descent.descending(lanes), valued, most_futile=1))
        return max(ends, key=itemgetter(0))[1] if ends else None

    def continued(self, plan: Plan, worth: float, worth_above: Callable[[Plan, float], float | None]) -> Plan:
        """A plan whose workers are changed by the times of its pipelines alone as long as it is worth more.

        Args:
            plan: to start from; its workers hold one stage each.
            worth: of that plan.
            worth_above: as for `descended`.
        """
        lanes, most = lanes_of(plan), self._exposure(plan)
        timing = self._descent.timing(lanes)
        steps = self._descent.descending(lanes, lambda option: self._exposure_of(timing, option) <= most)
        return _last((worth, plan), steps, partial(self._valued, plan, worth_above), most_futile=MOST_FUTILE)[1]

    def _valued(self, plan: Plan, worth_above: Callable[[Plan, float], float | None], lanes: Lanes, least: float) -> _Valued | None:
        """What certain lanes come to; None where that is not worth more, or one host or domain can take more with it."""
        option = plan_of(self._request, self._descent.timing(lanes), lanes)
        if option is None or self._exposure(option) > self._exposure(plan):
            return None
        worth = worth_above(option, least)
        return None if worth is None else (worth, option)

    def _exposure_of(self, timing: Timing, lanes: Lanes) -> float:
        """About how much one host or failure domain can take with it."""
        pipelines = [
            [(tuple(range(a, b)), worker) for worker, (a, b) in zip(lane, pairwise(cuts), strict=True)]
            for lane, cuts in zip(lanes, timing.level_cuts(lanes), strict=True)
        ]
        return exposure(pipelines, self._costs.cluster, self._request.workers)

    @cached_property
    def _descent(self) -> Descent:
        return Descent(self._request, self._allowed)

    @cached_property
    def _timing(self) -> Timing:
        return Timing(self._request, self._request.settings.schedule)

    def _options(self, plan: Plan, goodput: float) -> Iterator[Plan]:
        """Changed plans, those first whose pipelines are through first, as far as they could have more goodput."""
        lanes = lanes_of(plan)
        idle = [worker for worker in self._request.workers if worker not in set(plan.workers)]
        promising = self._promising_kinds if self._costs.cluster.has_equal_links else self._promising
        for option in islice(promising(lanes, idle, goodput), MOST_TRIED):
            if (changed := plan_of(self._request, self._timing, option)) is not None:
                yield changed

    def _promising(self, lanes: Lanes, idle: Sequence[str], _: float) -> Iterator[Lanes]:
        """The first of all changes."""
        options = changes(lanes, idle, self._timing.lane_kinds)
        changed = {key: option for option in options if self._is_allowed(key := _key(option))}
        yield from (changed[key] for key in self._soonest(lanes, changed.items()))

    def _promising_kinds(self, lanes: Lanes, idle: Sequence[str], goodput: float) -> Iterator[Lanes]:
        """The same where lanes that are alike take equally long, whoever their workers are: such changes are timed once.

        The step is known before workers have names, so names, of which state and domains depend, are given to better ones alone.
        """
        timing, by_kind = self._timing, defaultdict[tuple[int, ...], dict[Lanes, Lanes]](dict)
        options = (lanes, *distinct_changes(lanes, idle, timing.likeness, timing.kind))
        first = {timing.alike(option): option for option in options}
        kinds = {_key(option): option for option in first.values() if self._is_allowed(option)}
        for key in self._soonest(lanes, kinds.items()):
            step = timing.step_seconds(kinds[key])
            if math.isinf(step) or self._request.worth_of_step(step, len(key)) <= goodput:
                continue
            for option in changes(lanes, idle, timing.likeness) if not by_kind else ():
                by_kind[timing.alike(option)][_key(option)] = option
            yield from (option for _, option in sorted(by_kind[timing.alike(key)].items())[:MOST_NAMED])

    def _soonest(self, lanes: Lanes, changed: Iterable[tuple[Lanes, Lanes]]) -> list[Lanes]:
        """Keys of the changes that are through first, as far as they may be before the lanes are."""
        limit = min(self._timing.seconds(lanes) * (1 + SLACK), sys.float_info.max)
        timed = ((self._timing.seconds(option), key) for key, option in changed)
        return [key for seconds, key in nsmallest(MOST_TRIED, timed) if seconds <= limit]

    def _exposure(self, plan: Plan) -> float:
        """How much one host or failure domain can take with it."""
        return plan_exposure(plan, self._costs.cluster, self._request.workers)

    def _is_allowed(self, lanes: Lanes) -> bool:
        return len(lanes) in self._allowed.dp and all(len(lane) in self._allowed.pp for lane in lanes)


def _last(known: _Valued, steps: Iterable[Lanes], valued: Callable[[Lanes, float], _Valued | None], *, most_futile: int) -> _Valued:
    """The best that steps come to until so many in a row are worth no more."""
    num_futile = 0
    for lanes in steps:
        better = valued(lanes, known[0])
        known, num_futile = (better, 0) if better else (known, num_futile + 1)
        if num_futile == most_futile:
            break
    return known


def lanes_of(plan: Plan) -> Lanes:
    """The living workers of a plan's pipelines, each of which holds one stage."""
    return tuple(tuple(stage.worker for stage in pipeline.stages if stage.worker) for pipeline in plan.pipelines)


def plan_of(request: Request, timing: Timing, lanes: Lanes) -> Plan | None:
    """The plan of certain lanes; None where some lane's memory holds no share with which all are through together."""
    costs, shares = request.costs, timing.shares(lanes)
    cuts = [timing.cuts(len(lanes), lane, share) for lane, share in zip(lanes, shares, strict=True)]
    if not all(cuts):
        return None
    order = sorted(range(len(lanes)), key=lambda k: (-len(lanes[k]), -shares[k], costs.cluster.order[lanes[k][0]]))
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
    plan = Plan(
        generation=request.generation,
        policy=request.policy,
        schedule=request.settings.schedule,
        pipelines=pipelines,
        idle_workers=tuple(IdleWorker(worker=worker, reason=NOT_NEEDED) for worker in request.workers if worker not in used),
    )
    return plan.amended(rounds=fastest_rounds(plan, costs))


def _key(lanes: Lanes) -> Lanes:
    """The same for lanes in any order."""
    return tuple(sorted(lanes))
