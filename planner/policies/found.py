"""What a search for a new arrangement comes to."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from kintsugi.core.decision import Estimate, Migration, Search
from kintsugi.core.errors import InfeasibleError
from kintsugi.core.plan import IdleWorker, Plan
from planner.arranging.request import AnySearch, Request, shortage


@dataclass(frozen=True, slots=True)
class Found:
    """A plan with its price, how it is reached, and how it was found."""

    plan: Plan
    estimate: Estimate
    migration: Migration
    search: Search

    def with_idle(self, workers: Iterable[str], reason: str) -> "Found":
        """The same plan, in which those of `workers` that it does not name are idle."""
        named = {*self.plan.workers, *(idle.worker for idle in self.plan.idle_workers)}
        others = tuple(IdleWorker(worker=worker, reason=reason) for worker in workers if worker not in named)
        return replace(self, plan=self.plan.amended(idle_workers=(*self.plan.idle_workers, *others))) if others else self

    def after(self, elapsed_seconds: float) -> "Found":
        """The same plan, with how long the whole search took that led to it."""
        return replace(self, search=replace(self.search, elapsed_seconds=elapsed_seconds))

    def bettered(self, better: "Found", elapsed_seconds: float) -> "Found":
        """What was made of this plan, with the bound and the search of this one, which took so much longer."""
        seconds = better.estimate.iteration_seconds
        search = replace(self.search, elapsed_seconds=self.search.elapsed_seconds + elapsed_seconds)
        return replace(better, search=search.bounded(min(self.search.lower_bound_seconds, seconds), seconds))

    def beside(self, wider: "Found") -> "Found":
        """The same plan, with a bound that holds for what a wider search looked at, too."""
        least = min(wider.search.lower_bound_seconds, self.search.lower_bound_seconds, self.estimate.iteration_seconds)
        search = replace(self.search, candidates=wider.search.candidates + self.search.candidates)
        return replace(self, search=search.bounded(least, self.estimate.iteration_seconds))


class NothingFitsError(Exception):
    """No arrangement fits memory, or none is worth more than `Request.least_worth`.

    Why memory does not suffice is told only to those who ask, for to find out takes longer than the search.
    """

    def __init__(self, request: Request, search: AnySearch, least_seconds: float) -> None:
        super().__init__()
        self._request, self._search = request, search
        self.least_seconds = least_seconds
        """No step is shorter."""

    def as_error(self) -> InfeasibleError:
        """Why; searches for it."""
        return shortage(self._request, self._search)
