"""Shorter pipelines than links at their best suggest: where hosts are far from each other, a pipeline within one may train more.

A search takes neighbouring stages to talk over the fastest link that there is, and reductions of tied layers not to wait for any.
Of a plan that turns out much longer than that once its workers have names, the length of its pipelines is put in doubt.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from estimator.compiled import clock
from estimator.costs import Costs
from estimator.estimate import priced
from kintsugi.core.profile import LinkCost
from planner.arranging.refining import is_doubtful
from planner.arranging.request import Request
from planner.policies.found import Found, NothingFitsError

HELD_UP = 0.15
"""By what share the step must also be longer than it would be over free links: what that leaves out costs time in every search."""

_FREE = LinkCost(alpha_seconds=0.0, beta_seconds_per_byte=0.0)


def shortened(request: Request, search: Callable[[Request], Found]) -> Found:
    """The best of what `search` finds with pipelines of any length and, where that is far from its bound, with shorter ones.

    They have at most as many workers then as the plan's longest has, half as many, a quarter and so on, or as a host has.

    Raises:
        InfeasibleError: nothing fits the ranges or memory.
        NothingFitsError: nothing fits memory.
    """

    def worth(found: Found) -> float:
        return request.worth(found.estimate)

    started = clock()
    first = best = search(request)
    least = first.search.lower_bound_seconds
    is_worth_it = is_doubtful(first.estimate.iteration_seconds, least) and _is_held_up(request, first)
    for longest in _shorter(request, first) if is_worth_it else ():
        if not is_doubtful(best.estimate.iteration_seconds, least):
            break
        try:
            found = search(_with_at_most(request, longest, worth(best)))
        except NothingFitsError as error:
            least = error.least_seconds
        else:
            best, least = max(best, found, key=worth), found.search.lower_bound_seconds  # of still shorter ones, too
    chosen = best if best is first else best.beside(first)
    return chosen.after(clock() - started)


def _is_held_up(request: Request, found: Found) -> bool:
    """Whether the plan's step would be much shorter if messages and reductions took no time: else shorter pipelines win little."""
    profile, cluster = request.costs.profile, request.costs.cluster
    network = replace(profile.network, intra_host=_FREE, inter_host=_FREE)
    free = Costs(replace(profile, network=network), replace(cluster, links=()))
    return found.estimate.iteration_seconds > priced(found.plan, free).iteration_seconds * (1 + HELD_UP)


def _shorter(request: Request, found: Found) -> list[int]:
    """Limits of a pipeline's workers that are tried, falling: below what the ranges allow, up to what the plan's longest has."""
    by_id, ranges = request.costs.cluster.by_id, request.settings.ranges
    longest = max(pipeline.num_workers for pipeline in found.plan.pipelines)
    halves = (longest >> times for times in range(longest.bit_length()))
    on_a_host = max(Counter(by_id[worker].host for worker in request.workers).values())
    most = min(longest, (ranges.max_pp or len(request.workers)) - 1)
    return sorted((length for length in {on_a_host, *halves} if ranges.min_pp <= length <= most), reverse=True)


def _with_at_most(request: Request, longest: int, least_worth: float) -> Request:
    """The request with pipelines of so many workers at the most, for plans that are worth more than one that is known."""
    settings = request.settings
    shorter = replace(settings, ranges=replace(settings.ranges, max_pp=longest))
    return replace(request, settings=shorter, least_worth=max(request.least_worth, least_worth))
