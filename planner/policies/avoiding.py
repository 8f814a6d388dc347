"""Plans that leave hosts behind slow links out: where every reduction waits for one link, fewer workers train more."""

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from estimator.compiled import clock
from estimator.costs import Costs
from estimator.estimate import priced
from kintsugi.core.errors import InfeasibleError
from planner.arranging.request import Request
from planner.policies.found import Found, NothingFitsError

MOST_HOSTS = 4
"""Hosts that are tried without, those with the most slow links first; and so many are left out at the most."""

FELT = 0.02
"""By what share of a step slow links must lengthen it for anybody to look for a way around them."""

BEHIND = "its host's links are so slow that the job is faster without it"
"""Why a worker is idle that a slow link leads to."""


def around_slow_links(request: Request, search: Callable[[Request], Found]) -> Found:
    """The best of what `search` finds with all hosts and without some behind links that are slower than the profile's.

    Hosts are left out one by one, each time the one without which goodput (`Request.worth`) is highest, as long as it grows.

    Raises:
        InfeasibleError: nothing fits the ranges or memory.
        NothingFitsError: nothing fits memory.
    """
    started = clock()
    first = best = search(request)
    present = request
    for _ in range(MOST_HOSTS):
        if not _is_felt(request, best):
            break
        fewer, found = _with_one_host_less(present, best, search)
        if found is best:
            break
        present, best = fewer, found
    chosen = best if best is first else best.with_idle(request.workers, BEHIND).beside(first)
    return chosen.after(clock() - started)


def _is_felt(request: Request, found: Found) -> bool:
    """Whether the plan's step would be shorter without the links that differ."""
    costs = request.costs
    if not costs.cluster.links:
        return False
    alike = Costs(costs.profile, replace(costs.cluster, links=()))
    return found.estimate.iteration_seconds > priced(found.plan, alike).iteration_seconds * (1 + FELT)


def _behind(request: Request) -> list[str]:
    """Hosts of the request's workers with slow links between them, those with the most first."""
    cluster, usual = request.costs.cluster, request.costs.profile.network.inter_host
    present = {cluster.by_id[worker].host for worker in request.workers}
    slow = [
        link.between
        for link in cluster.links
        if (link.alpha_seconds > usual.alpha_seconds or link.beta_seconds_per_byte > usual.beta_seconds_per_byte)
        and present.issuperset(link.between)
    ]
    counts = Counter(host for between in slow for host in between)
    return [host for host, _ in counts.most_common(MOST_HOSTS)]


def _with_one_host_less(request: Request, best: Found, search: Callable[[Request], Found]) -> tuple[Request, Found]:
    """The request without the workers of that host without which the best is found; it as it is, where that is no better."""
    by_id, result = request.costs.cluster.by_id, (request, best)
    for host in _behind(request):
        worth = request.worth(result[1].estimate)
        fewer = replace(
            request, workers=tuple(worker for worker in request.workers if by_id[worker].host != host), least_worth=worth
        )
        with suppress(InfeasibleError, NothingFitsError):
            if fewer.workers and request.worth((found := search(fewer)).estimate) > worth:
                result = fewer, found
    return result
