"""Seeing to it that deadlines are logged when they pass, whichever process of the service is there to see it."""

from collections.abc import Awaitable, Callable, Sequence

import anyio
from anyio.abc import TaskGroup
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
    """Waits for the next deadline of all jobs and has it logged, again and again until it is closed; each job's for itself.

    Every process on a database does so: of several that log the same deadline one is first, and the others find it done.
    """

    def __init__(
        self, agenda: Agenda, now: Callable[[], str], expire: Callable[[str], Awaitable[object]], *, at_a_time: int
    ) -> None:
        """`expire` logs a job's deadlines that have passed, of `at_a_time` jobs at the same time; `now` is RFC 3339, UTC."""
        self._agenda = agenda
        self._now = now
        self._expire = expire
        self._turns = anyio.CapacityLimiter(at_a_time)
        self._being_logged: set[str] = set()
        self._earlier = anyio.Event()
        self._next_at: str | None = None
        self._closed = False
        self._looked_at = END_OF_TIME
        self._outage = Outage("log deadlines")
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
        async with anyio.create_task_group() as tasks:
            while not self._closed:
                self._earlier = anyio.Event()
                try:
                    self._log(await run_sync(self._agenda.due, self._until()), tasks)
                    self._next_at = await run_sync(self._agenda.next_after, self._looked_at)
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

    def _log(self, jobs: Sequence[str], tasks: TaskGroup) -> None:
        """Begin to log the deadlines of those jobs of which that is not under way."""
        for job in jobs:
            if job not in self._being_logged:
                self._being_logged.add(job)
                tasks.start_soon(self._log_one, job)

    async def _log_one(self, job: str) -> None:
        """Log a job's deadlines as far as they have passed, or tell whoever reads the service's log why not."""
        try:
            async with self._turns:
                if self._closed:
                    return
                await self._expire(job)
        except Exception as error:  # one job's misfortune is not the others'
            if isinstance(error, UnavailableError) and error.field == DATABASE_FIELD:  # which is everybody's
                self._outage.goes_on(error)
            else:
                self._refused.goes_on(job, error)
        else:
            self._outage.is_over()
            self._refused.is_over(job)
        finally:
            self._being_logged.discard(job)

    def _pause_seconds(self) -> float:
        if self._next_at is None:
            return LOOK_SECONDS
        return min(LOOK_SECONDS, max(0.0, seconds_between(self._now(), self._next_at)))
