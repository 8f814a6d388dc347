"""What a search for a new arrangement comes to."""

from dataclasses import dataclass

from kintsugi.core.decision import Estimate, Migration, Search
from kintsugi.core.errors import InfeasibleError
from kintsugi.core.plan import Plan
from planner.arranging.request import AnySearch, Request, shortage


@dataclass(frozen=True, slots=True)
class Found:
    """A plan with its price, how it is reached, and how it was found."""

    plan: Plan
    estimate: Estimate
    migration: Migration
    search: Search


class NothingFitsError(Exception):
    """No arrangement fits memory; why is told only to those who ask, for to find out takes longer than the search."""

    def __init__(self, request: Request, search: AnySearch) -> None:
        super().__init__()
        self._request, self._search = request, search

    def told(self) -> InfeasibleError:
        """Why; searches for it."""
        return shortage(self._request, self._search)
