"""Plans that leave hosts behind slow links out: where every reduction waits for one link, fewer workers train more."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from estimator.compiled import clock
from estimator.costs import Costs
from estimator.estimate import priced
from kintsugi.core.errors import InfeasibleError
from planner.arranging.refining import MOST_WORKERS, is_doubtful
from planner.arranging.request import Request
from planner.policies.found import Found, NothingFitsError

MOST_HOSTS = 4
"""Hosts that are tried without in turn, those with the most slow links first; and so many are taken away one after the other."""

FELT = 0.02
"""By what share of a step slow links must lengthen it for anybody to look for a way around them."""

BEHIND = "its host's links are so slow that the job is faster without it"
"""Why a worker is idle that a slow link leads to."""


Search = Callable[[Request], Found]


def around_slow_links(request: Request, search: Search) -> Found:
    """The best of what `search` finds with all hosts and without some behind links that are slower than the profile's.

    First those with the most slow links are taken away one after the other, and once more those with slow links to the most
    workers, which are others where hosts have unequally many. Then, from the best of that and from all hosts on, always the
    one without which goodput (`Request.worth`) is highest, as long as it grows.

    Raises:
        InfeasibleError: nothing fits the ranges or memory.
        NothingFitsError: nothing fits memory.
    """
    started = clock()
    first = search(request)
    known = _Known(request, first, len(request.workers), first.search.lower_bound_seconds)
    if known.is_felt:
        for by_workers in (False, True):
            known.without_the_worst(request, search, by_workers=by_workers)
        for start in (known.present, request):
            known.one_by_one(start, search)
    best = known.found
    chosen = best if best is first else best.with_idle(request.workers, BEHIND).beside(first)
    return chosen.after(clock() - started)


@dataclass(slots=True)
class _Known:
    """The best that is known, and for which workers it was found."""

    present: Request
    found: Found
    num_workers: int
    """On all hosts."""
    least_seconds: float
    """No step of these is shorter."""
    tried: set[Sequence[str]] = field(default_factory=set)

    @property
    def is_felt(self) -> bool:
        """Whether the plan's step would be shorter without the links that differ, or may be long because they keep workers idle."""
        costs, seconds = self.present.costs, self.found.estimate.iteration_seconds
        if not costs.cluster.links:
            return False
        if len(self.found.plan.workers) < self.num_workers and is_doubtful(seconds, self.least_seconds):
            return True
        alike = Costs(costs.profile, replace(costs.cluster, links=()))
        return seconds > priced(self.found.plan, alike).iteration_seconds * (1 + FELT)

    def without_the_worst(self, present: Request, search: Search, *, by_workers: bool) -> None:
        """Look without hosts that have the most slow links, taken away one by one until none is slow."""
        for _ in range(MOST_HOSTS):
            if not (behind := _behind(present, by_workers=by_workers)):
                break
            present = _without(present, behind[0])
            self._look(present, search)

    def one_by_one(self, present: Request, search: Search) -> None:
        """Look without each of the hosts that have the most slow links, and go on without the one that is missed least."""
        before = None
        while self.found is not before and self.is_felt:
            before = self.found
            for host in _behind(present):
                self._look(_without(present, host), search)
            present = self.present

    def _look(self, fewer: Request, search: Search) -> None:
        """Whatever was tried before was worth no more than what was known then."""
        if not fewer.workers or fewer.workers in self.tried:
            return
        self.tried.add(fewer.workers)
        worth = fewer.worth(self.found.estimate)
        with suppress(InfeasibleError, NothingFitsError):
            found = search(replace(fewer, least_worth=worth))
            if fewer.worth(found.estimate) > worth:
                self.present, self.found = fewer, found


def _behind(request: Request, *, by_workers: bool = False) -> list[str]:
    """Hosts of the request's workers with slow links between them, those with the most, or to the most workers, first.

    In jobs that are too large to be refined none with less than half of the most, and none of racks: where slow links are those
    between groups of hosts, another group has no more of them without one of its hosts.
    """
    cluster, usual = request.costs.cluster, request.costs.profile.network.inter_host
    slow: dict[str, set[str]] = {cluster.by_id[worker].host: set() for worker in request.workers}
    for link in cluster.links:
        one, other = link.between
        is_slow = link.alpha_seconds > usual.alpha_seconds or link.beta_seconds_per_byte > usual.beta_seconds_per_byte
        if is_slow and one in slow and other in slow:
            slow[one].add(other)
            slow[other].add(one)
    weights = Counter(cluster.by_id[worker].host for worker in request.workers) if by_workers else dict.fromkeys(slow, 1)
    far = {host: sum(weights[other] for other in others) for host, others in slow.items() if others}
    worst = sorted(far, key=lambda host: -far[host])[:MOST_HOSTS]
    if len(request.workers) <= MOST_WORKERS:
        return worst
    return [] if _are_racks(slow) else [host for host in worst if 2 * far[host] >= far[worst[0]]]


def _are_racks(slow: Mapping[str, Collection[str]]) -> bool:
    """Whether hosts are in groups of two at least, with slow links to just those of all other groups."""
    groups = Counter(frozenset(slow.keys() - others) for others in slow.values())
    return all(len(group) == count > 1 for group, count in groups.items())


def _without(request: Request, host: str) -> Request:
    by_id = request.costs.cluster.by_id
    return replace(request, workers=tuple(worker for worker in request.workers if by_id[worker].host != host))
