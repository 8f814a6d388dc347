"""Dynamic parallelism: the arrangement of the workers that are left with the best goodput."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from estimator.costs import Costs
from estimator.estimate import after_transition, estimate
from estimator.goodput import effective_time_ratio, migration_seconds
from estimator.schedule import ORDERS, require_known
from kintsugi.core.errors import InfeasibleError
from kintsugi.core.job import JobSettings
from kintsugi.core.plan import Estimate, Migration, Plan, Policy, Schedule, Search
from kintsugi.core.profile import OptimizerSharding
from planner.links import Links
from planner.placement import Holdings, place
from planner.search import Arrangement, EqualProblem, EqualSearch, degrees, kind_of
from planner.shortage import memory_error
from planner.unequal import UnequalProblem, UnequalSearch
from restorer.migration import plan_migration

WORTHWHILE = 0.01
"""Relative gain in the price of a step for which the search goes on among numbers of pipelines that promise no shorter one."""

MOST_SPECULATIVE = 3
"""So many plans are priced before only shorter steps are looked for."""


@dataclass(frozen=True, slots=True)
class Found:
    """A plan with its price, how it is reached, and how it was found."""

    plan: Plan
    estimate: Estimate
    migration: Migration
    search: Search


@dataclass(frozen=True, slots=True)
class Request:
    """What a new arrangement is asked for."""

    costs: Costs
    settings: JobSettings
    workers: Sequence[str]
    """That may be used, in cluster order."""
    holdings: Holdings
    generation: int
    policy: Policy


def reshape(request: Request) -> Found:
    """The best arrangement under the job's schedule, or under the best of all schedules where the job leaves it open.

    Raises:
        InvalidInputError: the schedule is not available.
        InfeasibleError: nothing fits the ranges or memory.
    """
    if request.settings.schedule is not Schedule.AUTO:
        require_known(request.settings.schedule)
        return _under_schedule(request)
    found, refusal = [], None
    for schedule in ORDERS:
        try:
            found.append(_under_schedule(replace(request, settings=replace(request.settings, schedule=schedule))))
        except InfeasibleError as error:
            refusal = refusal or error
    if not found:
        assert refusal is not None
        raise refusal
    best = max(found, key=lambda item: item.estimate.goodput_samples_per_second)
    least = min(item.search.lower_bound_seconds for item in found)
    search = Search(
        lower_bound_seconds=least,
        gap_ratio=best.estimate.iteration_seconds / least - 1,
        elapsed_seconds=sum(item.search.elapsed_seconds for item in found),
        candidates=sum(item.search.candidates for item in found),
    )
    return replace(best, search=search)


def _under_schedule(request: Request) -> Found:
    """Search every number of pipelines, the most promising first, for arrangements that could still win.

    Each number's fastest arrangement is placed, priced with its migration, and compared by equation 8.

    Raises:
        InfeasibleError: nothing fits the ranges or memory.
    """
    started = time.perf_counter()
    search = _search(request)
    best: Found | None = None
    bounds, limit, priced = [math.inf], math.inf, 0
    for dp in search.by_promise():
        bound, arrangement = search.arrange(dp, limit)
        bounds.append(bound)
        if arrangement is None:
            continue
        found = _price(request, _place(request, arrangement))
        priced += 1
        slack = WORTHWHILE if priced < MOST_SPECULATIVE else 1.0
        seconds = max(arrangement.seconds * (1 - search.tolerance), found.estimate.iteration_seconds * (1 - slack))
        limit = min(limit, _longest_step_to_win(request, found, seconds))
        if best is None or found.estimate.goodput_samples_per_second > best.estimate.goodput_samples_per_second:
            best = found
    if best is None:
        raise _shortage(request, search)
    least = min(*bounds, best.estimate.iteration_seconds)
    gap = best.estimate.iteration_seconds / least - 1
    found_by = Search(lower_bound_seconds=least, gap_ratio=gap, elapsed_seconds=time.perf_counter() - started, candidates=priced)
    return replace(best, search=found_by)


def _search(request: Request) -> EqualSearch | UnequalSearch:
    profile, cluster, settings = request.costs.profile, request.costs.cluster, request.settings
    allowed = degrees(settings.ranges, len(request.workers), profile.num_layers, settings.num_microbatches)
    kinds = tuple(kind_of(cluster.by_id[worker], profile) for worker in request.workers)
    links = Links(request.workers, cluster, profile.network)
    if len(set(kinds)) > 1:
        unequal = UnequalProblem(
            costs=request.costs,
            kinds=kinds,
            num_microbatches=settings.num_microbatches,
            allowed=allowed,
            schedule=settings.schedule,
            link=links.fastest,
            reduction_link=links.between_hosts,
        )
        return UnequalSearch(unequal)
    equal = EqualProblem(
        costs=request.costs,
        kind=kinds[0],
        num_workers=len(kinds),
        num_microbatches=settings.num_microbatches,
        allowed=allowed,
        schedule=settings.schedule,
        link=links.fastest,
        reduction_link=links.pacing,
    )
    return EqualSearch(equal)


def _shortage(request: Request, search: EqualSearch | UnequalSearch) -> InfeasibleError:
    profile, cluster = request.costs.profile, request.costs.cluster
    ranges = request.settings.ranges
    kinds = [kind_of(cluster.by_id[worker], profile) for worker in request.workers]
    replicas = ranges.min_dp if profile.optimizer_sharding is OptimizerSharding.ZERO1 else 1
    return memory_error(
        search.partitioner(replicas),
        max(kinds, key=lambda kind: kind.usable_bytes),
        num_layers=profile.num_layers,
        num_workers=len(kinds),
        num_microbatches=request.settings.num_microbatches,
        ranges=ranges,
    )


def _place(request: Request, arrangement: Arrangement) -> Plan:
    return place(
        arrangement,
        request.workers,
        request.holdings,
        request.costs,
        schedule=request.settings.schedule,
        generation=request.generation,
        policy=request.policy,
    )


def _price(request: Request, plan: Plan) -> Found:
    """The plan with its migration and goodput; a first plan has no transition."""
    costs, previous = request.costs, request.holdings.plan
    price, migration = estimate(plan, costs.profile, costs.cluster), Migration()
    if previous is not None:
        migration = plan_migration(previous, plan, costs.profile, costs.cluster, request.holdings.survivors)
        seconds = migration_seconds(costs.profile.recovery, migration.makespan_seconds)
        price = after_transition(price, seconds, request.settings.mtbf_seconds)
    return Found(plan, price, migration, Search(lower_bound_seconds=0.0, gap_ratio=0.0, elapsed_seconds=0.0))


def _longest_step_to_win(request: Request, found: Found, seconds: float) -> float:
    """Step that matches the goodput of one of `seconds` after the reconfiguration of `found`, if nothing has to move for it.

    Equation 8 solved for the step; in seconds.
    """
    if request.holdings.plan is None:
        return seconds
    mtbf, recovery = request.settings.mtbf_seconds, request.costs.profile.recovery
    share = effective_time_ratio(found.estimate.reconfiguration_seconds, mtbf)
    best_share = effective_time_ratio(migration_seconds(recovery, 0.0), mtbf)
    return seconds * best_share / share if share > 0 else math.inf
