"""Seeing to it that deadlines are logged when they pass, whichever process of the service is there to see it."""

from collections.abc import Awaitable, Callable

import anyio
from anyio.to_thread import run_sync

from api.jobs.clock import seconds_between
from api.outages import Outage, Outages
from api.storage.agenda import Agenda
from api.storage.engines import DATABASE_FIELD
from kintsugi.core.errors import UnavailableError

END_OF_TIME = "9999"
"""After every moment."""
LOOK_SECONDS = 1.0
"""How often deadlines that other processes left behind are looked for."""


class Deadlines:
    """Waits for the next deadline of all jobs and has it logged, again and again until it is closed.

    Every process on a database does so: of several that log the same deadline one is first, and the others find it done.
    """

    def __init__(self, agenda: Agenda, now: Callable[[], str], expire: Callable[[str], Awaitable[object]]) -> None:
        self._agenda = agenda
        self._now = now
        self._expire = expire
        self._earlier = anyio.Event()
        self._next_at: str | None = None
        self._closed = False
        self._looked_at = END_OF_TIME
        self._refused = Outages("log a deadline")

    def expect(self, at: str) -> None:
        """Be ready at `at` (RFC 3339, UTC); to be called in the event loop."""
        if self._next_at is None or at < self._next_at:
            self._earlier.set()

    def close(self) -> None:
        """End the waiting."""
        self._closed = True
        self._earlier.set()

    async def run(self) -> None:
        """Log deadlines as they pass."""
        outage = Outage("look for deadlines")
        while not self._closed:
            self._earlier = anyio.Event()
            try:
                are_logged = [await self._log_one(job) for job in await run_sync(self._agenda.due, self._until())]
                self._next_at = await run_sync(self._agenda.next_at) if all(are_logged) else None
                outage.is_over()
            except UnavailableError as error:
                self._next_at = None  # it may have passed, and would be looked for again without a pause
                outage.goes_on(error)
            with anyio.move_on_after(self._pause_seconds()):
                await self._earlier.wait()

    def _until(self) -> str:
        """Up to when deadlines are looked at: the present, or all of them where the clock may have been set back meanwhile."""
        before, self._looked_at = self._looked_at, self._now()
        return self._looked_at if before <= self._looked_at else END_OF_TIME

    async def _log_one(self, job: str) -> bool:
        """Whether a job's deadlines are logged as far as they have passed."""
        try:
            await self._expire(job)
        except Exception as error:  # one job's misfortune is not the others'
            if isinstance(error, UnavailableError) and error.field == DATABASE_FIELD:  # which is everybody's
                raise
            self._refused.goes_on(job, error)
            return False
        self._refused.is_over(job)
        return True

    def _pause_seconds(self) -> float:
        if self._next_at is None:
            return LOOK_SECONDS
        return min(LOOK_SECONDS, max(0.0, seconds_between(self._now(), self._next_at)))
