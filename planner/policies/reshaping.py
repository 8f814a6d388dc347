"""Dynamic parallelism: the arrangement of the workers that are left with the best goodput."""

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from heapq import nlargest

from estimator.compiled import clock
from estimator.estimate import after_transition, priced
from estimator.goodput import migration_seconds
from estimator.passes import passes_of
from estimator.schedule import ORDERS, require_known
from kintsugi.core.decision import Estimate, Migration, Search
from kintsugi.core.errors import InfeasibleError
from kintsugi.core.plan import IdleWorker, Pipeline, Plan, Schedule
from planner.arranging.arrangement import Arrangement
from planner.arranging.degrees import degrees
from planner.arranging.pursuit import pursue
from planner.arranging.refining import Refinery, is_continued, is_descended, is_refined, is_worth_refining, is_worth_refining_last
from planner.arranging.request import AnySearch, Request, Sided, counted_alike, search_for
from planner.arranging.search import FEW
from planner.arranging.sided import are_apart
from planner.placing.placement import NOT_NEEDED, Layout, place
from planner.placing.spreading import is_spread, most_confined
from planner.policies.avoiding import around_slow_links
from planner.policies.found import Found, NothingFitsError
from planner.policies.shortening import shortened
from restorer.migration import plan_migration
from restorer.rounds import fastest_rounds

MOST_PRICED = 4
"""So many arrangements are placed and priced in full before only clear improvements are."""

MOST_REFINED, MOST_REFINED_OVER_LINKS, MOST_REFINED_BESIDE = 3, 8, 4
"""So many plans, the best of each number of pipelines and way to place, are bettered worker by worker.

The second holds where links differ, the third in the search that is made beside that one by sides of slow links.
"""

NEAR = 0.02
"""By what share less goodput an arrangement may promise than the best one if both are bettered worker by worker."""

BETTERED = 0.2
"""By what share of goodput a plan may be worse than one that is known to be bettered worker by worker all the same."""

CLEAR = 2e-3
"""Relative difference in goodput that is worth the full price of another arrangement after `MOST_PRICED`."""

PROVEN_IDLE = "no arrangement with this worker has a shorter step"
"""Why a worker is idle where no step at all can be shorter."""

LATER = 2.0
"""Multiple of a transition after which the next failure is taken to come where all come before the transition is over."""

WITHOUT_SIDES = tuple(layout for layout in Layout if layout is not Layout.PLANNED)
"""Ways to name the workers of arrangements that say nothing of sides of slow links."""

ROUNDING = 1e-9
"""Gap below which a step is its bound."""


def reshape(request: Request) -> Found:
    """The best arrangement under the job's schedule, or under the best of all schedules where the job leaves it open.

    Where failures come so soon that none is worth anything, it is the one that is worth most over its transition alone and, where
    that leaves nothing either, if the next failure came later (as `policy.choose` decides between policies).

    Raises:
        InvalidInputError: the schedule is not available.
        InfeasibleError: nothing fits the ranges or memory.
    """
    started, asked = clock(), request
    found = _reshaped(asked)
    if _worth(asked, found) == 0.0:
        asked = replace(asked, charges_restarts=False)
        found = _reshaped(asked)
    if _worth(asked, found) == 0.0:
        later = LATER * found.estimate.reconfiguration_seconds
        found = _reshaped(replace(asked, settings=replace(asked.settings, mtbf_seconds=later)))
    if asked is request:
        return found
    price = after_transition(found.estimate, found.estimate.reconfiguration_seconds, request.settings.mtbf_seconds)
    return replace(found, estimate=price).after(clock() - started)


def _reshaped(request: Request) -> Found:
    """The arrangement that is worth most; any, where none is worth anything."""
    if request.settings.schedule is not Schedule.AUTO:
        require_known(request.settings.schedule)
        return _with_proof(_best(request, (request.settings.schedule,))[0])
    started = clock()
    found = _best(request, tuple(ORDERS))
    best = max(found, key=partial(_worth, request))
    least = min(item.search.lower_bound_seconds for item in found)
    search = replace(best.search, elapsed_seconds=clock() - started, candidates=sum(item.search.candidates for item in found))
    return _with_proof(replace(best, search=search.bounded(least, best.estimate.iteration_seconds)))


def _best(request: Request, schedules: Sequence[Schedule]) -> list[Found]:
    """The best of each schedule under which something fits; raises InfeasibleError, the first's, where nothing does."""
    found, refusals = [], []
    for schedule in schedules:
        asked = replace(request, settings=replace(request.settings, schedule=schedule))
        try:
            found.append(_side_by_side(asked))
        except (InfeasibleError, NothingFitsError) as error:
            refusals.append(error)
    if not found:
        first = refusals[0]
        raise first.as_error() if isinstance(first, NothingFitsError) else first
    return found


def _side_by_side(request: Request) -> Found:
    """The best under the job's schedule, arrangements by sides of slow links among them.

    Where plans are bettered worker by worker these are looked for last: they take nobody's place among those that are bettered.

    Raises:
        InfeasibleError: nothing fits the ranges.
        NothingFitsError: nothing fits memory.
    """
    if not (is_refined(request) and request.costs.cluster.links):

        def on_all(asked: Request) -> Found:
            found = _under_schedule(asked)
            return _within_racks(request, found) if asked is request else found

        return _refined_last(request, around_slow_links(request, partial(shortened, search=on_all)))
    started = clock()
    found = around_slow_links(replace(request, sided=Sided.NOT), partial(shortened, search=_under_schedule))
    found = _within_racks(request, found)
    if not are_apart(request):
        return found
    with suppress(NothingFitsError):
        beside = partial(_under_schedule, most_over_links=MOST_REFINED_BESIDE)
        other = shortened(replace(request, least_worth=_worth(request, found), sided=Sided.ALONE), beside)
        found = max(found, other.beside(found), key=partial(_worth, request))
    return found.after(clock() - started)


def _within_racks(request: Request, found: Found) -> Found:
    """The plan, or a better one of pipelines within racks, where a first plan's step may be shorter than it is."""
    started = clock()
    if not is_descended(request, found.estimate.iteration_seconds, found.search.lower_bound_seconds):
        return found
    below, best = found.estimate.iteration_seconds * (1 + BETTERED), found
    descended = Refinery(request).descended(found.plan, below, partial(_worth_above, request))
    if descended is not None and _worth(request, other := _found(request, descended)) > _worth(request, found):
        known = found if is_refined(request) else _refined(Refinery(request), request, found)
        best = max(known, _refined(Refinery(request), request, other), key=partial(_worth, request))
    return found.bettered(best, clock() - started)


def _refined_last(request: Request, found: Found) -> Found:
    """The plan bettered worker by worker where that takes too long for the best of several plans."""
    started = clock()
    if not is_worth_refining_last(request, found.estimate.iteration_seconds, found.search.lower_bound_seconds):
        return found
    refinery = Refinery(request)
    best = _refined(refinery, request, found)
    if is_continued(request, found.estimate.iteration_seconds, found.search.lower_bound_seconds):
        plan = refinery.continued(found.plan, _worth(request, found), partial(_worth_above, request))
        if plan is not found.plan:
            best = max(best, _refined(refinery, request, _found(request, plan)), key=partial(_worth, request))
    return found.bettered(best, clock() - started)


def _with_proof(found: Found) -> Found:
    """The plan, whose idle workers are said to be of no use where the bound proves it."""
    if not found.plan.idle_workers or found.search.gap_ratio > ROUNDING:
        return found
    idle = tuple(IdleWorker(worker=idle.worker, reason=PROVEN_IDLE) for idle in found.plan.idle_workers)
    return replace(found, plan=found.plan.amended(idle_workers=idle))


def _under_schedule(request: Request, most_over_links: int = MOST_REFINED_OVER_LINKS) -> Found:
    """Search every number of pipelines, the most promising first, for arrangements that could still win.

    Each number's fastest arrangement is placed, priced with its migration, and compared by equation 8 (`Request.worth`).
    Where links differ it is placed in several ways: whoever moves the least may end up behind a slow one.

    Args:
        request: what is asked for.
        most_over_links: plans that are bettered worker by worker where links differ.

    Raises:
        InfeasibleError: nothing fits the ranges.
        NothingFitsError: nothing fits memory.
    """
    started = clock()
    if is_refined(request):  # what is worth less may be bettered
        request = replace(request, least_worth=request.least_worth * (1 - BETTERED))
    search = search_for(request)
    placed, num_priced, least = _placed(request, search)
    for alike in counted_alike(request):
        with suppress(InfeasibleError):
            others, num_others, _ = _placed(alike, search_for(alike))
            placed += [found.with_idle(request.workers, NOT_NEEDED) for found in others]
            num_priced += num_others
    if not placed:
        raise NothingFitsError(request, search, least)
    most = most_over_links if request.costs.cluster.links else MOST_REFINED
    worth = partial(_worth, request)
    promising = nlargest(most, placed, key=worth)
    refinery = Refinery(request)

    def is_worth_it(found: Found) -> bool:
        return worth(found) > request.least_worth and is_worth_refining(request, found.estimate.iteration_seconds, least)

    best = max([_refined(refinery, request, found) if is_worth_it(found) else found for found in promising], key=worth)
    least = min(least, best.estimate.iteration_seconds, _confined_bound(request, best.plan))
    told = replace(best.search, elapsed_seconds=clock() - started, candidates=num_priced)
    return replace(best, search=told.bounded(least, best.estimate.iteration_seconds))


def _placed(request: Request, search: AnySearch) -> tuple[list[Found], int, float]:
    """The best plan of each number of pipelines and layout, how many were priced in full, and a lower bound on any step.

    There is no plan where nothing fits memory.
    """
    frontier, least = pursue(request, search)
    worth = partial(_worth, request)
    least_slack = 1 - NEAR if is_refined(request) else 1.0
    bests: dict[tuple[Layout, int], Found] = {}
    known: set[tuple[Pipeline, ...]] = set()
    num_priced = 0

    def known_worth() -> float:
        return max([request.least_worth, *map(worth, bests.values())])

    for option in frontier.descending():
        slack = least_slack if num_priced < MOST_PRICED else 1 + CLEAR
        if bests and option.most_goodput <= known_worth() * slack:
            break
        if request.sided is Sided.ALONE and option.arrangement.sides is None:
            continue
        num_priced += 1
        for layout in _layouts(request, option.arrangement):
            laid = _laid_out(request, option.arrangement, layout)
            if request.costs.cluster.links:
                if laid.pipelines in known:
                    continue
                known.add(laid.pipelines)
            plan, price = _ordered(request, laid)
            if bests and not is_refined(request) and _most_worth(request, price) < known_worth():
                continue
            found, key = _reached(request, plan, price), (layout, len(option.arrangement.shapes))
            bests[key] = max(bests.get(key, found), found, key=worth)
    return list(bests.values()), num_priced, least


def _worth(request: Request, found: Found) -> float:
    return request.worth(found.estimate)


def _confined_bound(request: Request, plan: Plan) -> float:
    """No step is shorter where some host may have all replicas of a layer, as in the plan; in seconds, infinite where none has."""
    costs, settings, workers = request.costs, request.settings, request.workers
    if is_spread(plan, costs.cluster, workers):
        return math.inf
    allowed = degrees(settings.ranges, len(workers), costs.profile.num_layers, settings.num_microbatches)
    most = max(plan.dp, most_confined(workers, costs.cluster, allowed))
    few = replace(request, settings=replace(settings, ranges=replace(settings.ranges, max_dp=most)))
    return pursue(few, search_for(few, is_spread=False))[1]


def _refined(refinery: Refinery, request: Request, found: Found) -> Found:
    """The plan bettered worker by worker."""
    plan = refinery.refined(found.plan, _worth(request, found), partial(_worth_above, request))
    return found if plan is found.plan else _found(request, plan)


def _worth_above(request: Request, plan: Plan, least: float) -> float | None:
    """What a plan is worth where that is more than `least`; of a plan whose step alone is not, nobody asks what moves for it."""
    price = priced(plan, request.costs)
    if _most_worth(request, price) <= least:
        return None
    worth = _worth(request, _reached(request, plan, price))
    return worth if worth > least else None


def _layouts(request: Request, arrangement: Arrangement) -> tuple[Layout, ...]:
    """By what workers are named; only where links differ there is more than one way, and fewer in large jobs, which take longer."""
    if not request.costs.cluster.links:
        return (Layout.HELD,)
    if arrangement.sides is not None:
        return (Layout.PLANNED,) if request.holdings.plan is None else (Layout.HELD, Layout.PLANNED)
    return WITHOUT_SIDES if len(request.workers) <= FEW else (Layout.HELD, Layout.WHOLE_PIPELINES, Layout.WHOLE_STAGES)


def realise(request: Request, arrangement: Arrangement) -> Found:
    """An arrangement with named workers, its price, and how it is reached; a first plan has no transition."""
    return _reached(request, *_ordered(request, _laid_out(request, arrangement)))


def _laid_out(request: Request, arrangement: Arrangement, layout: Layout = Layout.HELD) -> Plan:
    """An arrangement with named workers."""
    return place(
        arrangement,
        request.workers,
        request.holdings,
        request.costs,
        schedule=request.settings.schedule,
        generation=request.generation,
        policy=request.policy,
        layout=layout,
    )


def _ordered(request: Request, plan: Plan) -> tuple[Plan, Estimate]:
    """A plan with its reductions in order, and its price without a transition."""
    passes = passes_of(plan, request.costs)
    ordered = plan.amended(rounds=fastest_rounds(plan, request.costs, passes=passes))
    return ordered, priced(ordered, request.costs, passes=passes)


def _found(request: Request, plan: Plan) -> Found:
    """A plan with its price, and how it is reached."""
    return _reached(request, plan, priced(plan, request.costs))


def _most_worth(request: Request, price: Estimate) -> float:
    """What a plan is worth with this price of its steps when nothing has to move for it."""
    return request.worth(price if request.holdings.plan is None else _after_moving(request, price, 0.0))


def _reached(request: Request, plan: Plan, price: Estimate) -> Found:
    """A plan with its price, of which that of the transition is still missing, and how it is reached."""
    costs, previous, migration = request.costs, request.holdings.plan, Migration()
    if previous is not None:
        migration = plan_migration(previous, plan, costs.profile, costs.cluster, request.holdings.sources)
        price = _after_moving(request, price, migration.makespan_seconds)
    return Found(plan, price, migration, Search(lower_bound_seconds=0.0, gap_ratio=0.0, elapsed_seconds=0.0))


def _after_moving(request: Request, price: Estimate, makespan_seconds: float) -> Estimate:
    seconds = migration_seconds(request.costs.profile.recovery, makespan_seconds)
    return after_transition(price, seconds, request.settings.mtbf_seconds)
