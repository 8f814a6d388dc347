"""Dynamic parallelism: the arrangement of the workers that are left with the best goodput."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from estimator.costs import Costs
from estimator.estimate import after_transition, estimate
from estimator.goodput import (
    effective_time_ratio,
    goodput_samples_per_second,
    migration_seconds,
    throughput_samples_per_second,
)
from estimator.schedule import ORDERS, require_known
from kintsugi.core.decision import Estimate, Migration, Search
from kintsugi.core.errors import InfeasibleError
from kintsugi.core.job import JobSettings
from kintsugi.core.plan import Plan, Policy, Schedule
from kintsugi.core.profile import OptimizerSharding
from planner.arrangement import Arrangement
from planner.degrees import degrees
from planner.interleaving import InterleavedProblem, InterleavedSearch
from planner.kinds import kind_of
from planner.links import Links
from planner.placement import Holdings, least_migration_seconds, place
from planner.search import EqualProblem, EqualSearch
from planner.shortage import memory_error
from planner.unequal import UnequalProblem, UnequalSearch
from restorer.migration import plan_migration

MOST_PRICED = 4
"""So many arrangements are placed and priced in full before only clear improvements are."""

MOST_EAGER = 6
"""After so many numbers of pipelines only those are pursued that may be faster by more than the search's tolerance."""

MOST_SLACK = 2
"""After twice as many, by more than twice the tolerance; not more."""

MOST_PURSUED = 48
"""Numbers of pipelines that are pursued; what is left then has a closed-form bound."""

AnySearch = EqualSearch | UnequalSearch | InterleavedSearch

CLEAR = 2e-3
"""Relative difference in goodput that is worth the full price of another arrangement after `MOST_PRICED`."""


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
    options, least = _options(request, search)
    best: Found | None = None
    priced = 0
    for option in sorted(options, key=lambda option: -option.most_goodput):
        slack = 1.0 if priced < MOST_PRICED else 1 + CLEAR
        if best is not None and option.most_goodput <= best.estimate.goodput_samples_per_second * slack:
            break
        found = realise(request, option.arrangement)
        priced += 1
        if best is None or found.estimate.goodput_samples_per_second > best.estimate.goodput_samples_per_second:
            best = found
    if best is None:
        raise _shortage(request, search)
    least = min(least, best.estimate.iteration_seconds)
    gap = best.estimate.iteration_seconds / least - 1
    found_by = Search(lower_bound_seconds=least, gap_ratio=gap, elapsed_seconds=time.perf_counter() - started, candidates=priced)
    return replace(best, search=found_by)


@dataclass(frozen=True, slots=True)
class _Option:
    """An arrangement and the most goodput that it can have, in samples per second."""

    arrangement: Arrangement
    most_goodput: float


def _options(request: Request, search: AnySearch) -> tuple[list[_Option], float]:
    """The fastest arrangement of every number of pipelines that could win, and a lower bound on any step in seconds."""
    options: list[_Option] = []
    bounds, pursued, limit = [math.inf], 0, math.inf
    degrees = search.by_promise()
    while degrees and pursued < MOST_PURSUED:
        dp, *degrees = degrees
        bound, arrangement = search.arrange(dp, limit)
        bounds.append(bound)
        pursued += bound < limit
        if arrangement is None:
            continue
        options.append(_option(request, search, arrangement))
        even = search.even(dp, limit)
        if even is not None and even.shapes != arrangement.shapes:
            options.append(_option(request, search, even))
        slack = search.tolerance * min(MOST_SLACK, pursued // MOST_EAGER)
        lower = _longest_step_to_win(request, max(option.most_goodput for option in options)) * (1 - slack + search.optimism)
        if lower < limit:
            limit, hopeful = lower, search.could_win(degrees, lower)
            bounds += [limit] * (len(hopeful) < len(degrees))
            degrees = hopeful
    return options, min(*bounds, _least_step(search, degrees, limit))


def _least_step(search: AnySearch, degrees: Sequence[int], limit: float) -> float:
    """None of these numbers of pipelines has a shorter step; in seconds, infinite for none."""
    shares = (1 - 2**power * CLEAR for power in range(9))
    return next((share * limit for share in shares if not search.could_win(degrees, share * limit)), 0.0) if degrees else math.inf


def _option(request: Request, search: AnySearch, arrangement: Arrangement) -> _Option:
    return _Option(arrangement, _most_goodput(request, search.step_seconds(arrangement), arrangement))


def _most_goodput(request: Request, seconds: float, arrangement: Arrangement) -> float:
    """Goodput with this step when no more than what must be moved for the arrangement is moved."""
    settings, profile = request.settings, request.costs.profile
    throughput = throughput_samples_per_second(settings.num_microbatches, profile.microbatch_size, seconds)
    if request.holdings.plan is None:
        return throughput
    moving = least_migration_seconds(arrangement, request.holdings, request.costs)
    return goodput_samples_per_second(throughput, migration_seconds(profile.recovery, moving), settings.mtbf_seconds)


def _search(request: Request) -> AnySearch:
    profile, cluster, settings = request.costs.profile, request.costs.cluster, request.settings
    allowed = degrees(settings.ranges, len(request.workers), profile.num_layers, settings.num_microbatches)
    kinds = tuple(kind_of(cluster.by_id[worker], profile) for worker in request.workers)
    links = Links(request.workers, cluster, profile.network)
    if settings.schedule is Schedule.INTERLEAVED:
        interleaved = InterleavedProblem(
            costs=request.costs,
            kinds=kinds,
            num_microbatches=settings.num_microbatches,
            allowed=allowed,
            link=links.fastest,
            reduction_link=links.pacing,
        )
        return InterleavedSearch(interleaved)
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


def _shortage(request: Request, search: AnySearch) -> InfeasibleError:
    if isinstance(search, InterleavedSearch):
        return search.shortage()
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


def realise(request: Request, arrangement: Arrangement) -> Found:
    """An arrangement with named workers, its price, and how it is reached; a first plan has no transition."""
    costs, previous = request.costs, request.holdings.plan
    plan = place(
        arrangement,
        request.workers,
        request.holdings,
        costs,
        schedule=request.settings.schedule,
        generation=request.generation,
        policy=request.policy,
    )
    price, migration = estimate(plan, costs.profile, costs.cluster), Migration()
    if previous is not None:
        migration = plan_migration(previous, plan, costs.profile, costs.cluster, request.holdings.survivors)
        seconds = migration_seconds(costs.profile.recovery, migration.makespan_seconds)
        price = after_transition(price, seconds, request.settings.mtbf_seconds)
    return Found(plan, price, migration, Search(lower_bound_seconds=0.0, gap_ratio=0.0, elapsed_seconds=0.0))


def _longest_step_to_win(request: Request, goodput: float) -> float:
    """Step that has this goodput when nothing moves: equation 8 solved for the step; in seconds."""
    if goodput == 0.0:
        return math.inf
    settings, profile = request.settings, request.costs.profile
    seconds = settings.num_microbatches * profile.microbatch_size / goodput
    if request.holdings.plan is None:
        return seconds
    return seconds * effective_time_ratio(migration_seconds(profile.recovery, 0.0), settings.mtbf_seconds)
