"""Pages of a job's log that may be waited for, the same for every kind of entry."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fastapi import Request, Response

from api.deps import Desk, reply
from api.jobs.history import Entry
from api.waiting.presence import while_there
from kintsugi.core.membership import Event
from kintsugi.core.messages import EventPage, Report, ReportPage


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """One kind of entries, and the pages that show them."""

    kind: type[Event] | type[Report]
    page: Callable[..., EventPage | ReportPage]
    """From the service, a job, a cursor, the most items and a log number to what is there now."""
    last: Callable[[Sequence[Entry]], EventPage | ReportPage]
    """From entries to a page that nothing follows yet."""

    async def answer(
        self, desk: Desk, request: Request, job: str, *, cursor: str | None, after: int | None, wait_seconds: float, limit: int
    ) -> Response:
        """What is there; behind `after`, where that is nothing, as soon as there is something, or nothing after `wait_seconds`.

        Raises:
            InvalidInputError: the wait is too long, or the cursor is of another list.
            NotFoundError: there is no such job.
            TooManyRequestsError: as many clients wait already as may.
        """
        desk.check_wait(wait_seconds)
        page = await desk.read(self.page, desk.service, job, cursor, limit, after)
        if page == self.last(()) and after is not None and wait_seconds > 0:
            with desk.access.places.one(), while_there(request):
                page = self.last(await desk.streams.awaited(job, self.kind, after, limit, wait_seconds))
        return reply(page)
