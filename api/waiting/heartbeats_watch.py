"""Listens to heartbeats and tells the log who fell silent."""

import math
import time
from collections.abc import Awaitable, Callable, Sequence

import anyio
import structlog
from anyio.to_thread import run_sync

from api.records import JobState, Records
from api.service import utc_now
from api.waiting.heartbeats import Listened
from kintsugi.core.errors import ConflictError, InfeasibleError, KintsugiError
from kintsugi.core.heartbeats import HeartbeatAnswer, Heartbeats
from kintsugi.core.membership import Event

TICKS = 20
"""Looks per timeout."""
SHORTEST_TICK_SECONDS, LONGEST_TICK_SECONDS = 0.02, 1.0

Post = Callable[[str, Sequence[Event]], Awaitable[object]]
"""Logs events of a job and decides about them."""


class HeartbeatWatch:
    """Hears all jobs; the first heartbeat of a job begins the watch over all of its living workers.

    Nothing is stored but losses: after a restart a job is watched again from its next heartbeat on, and everybody has the
    whole timeout. Membership is read from the job's log whenever it may have changed, and always before a loss is declared.
    """

    def __init__(self, records: Records, post: Post, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._records = records
        self._post = post
        self._clock = clock
        self._jobs: dict[str, Listened] = {}
        self._changed = anyio.Event()
        self._closed = False
        self._log = structlog.get_logger("kintsugi.api")

    def num_workers(self) -> int:
        """Living workers that are watched."""
        return sum(len(listened.heard) for listened in self._jobs.values() if listened.timeout_seconds is not None)

    async def hear(self, job: str, heartbeats: Heartbeats) -> HeartbeatAnswer:
        """Remember that workers live; the answer names the latest generation that this process knows.

        Raises:
            NotFoundError: no such job, or no such worker on the host.
            StaleIncarnationError: workers were declared lost, or replaced.
        """
        listened = self._jobs.get(job)
        if listened is None or not listened.knows(heartbeats):
            listened = await self._look(job)
        return listened.hear(heartbeats, self._clock())

    def moved(self, job: str, generation: int) -> None:
        """A decision was made: take over who lives before anybody else is declared lost."""
        listened = self._jobs.get(job)
        if listened is not None and generation != listened.generation:
            state = self._records.known_state(job)
            if state is not None:
                listened.look(state, self._clock())

    def close(self) -> None:
        """Listen to nobody any more."""
        self._closed = True
        self._changed.set()

    async def run(self) -> None:
        """Declare who fell silent, until the service stops."""
        while not self._closed:
            seconds = self._tick_seconds()
            due = self._clock() + seconds
            with anyio.move_on_after(seconds):
                await self._changed.wait()
            self._changed = anyio.Event() if not self._closed else self._changed
            self._forgive(self._clock() - due, seconds)
            for job in [job for job, listened in self._jobs.items() if listened.lost(self._clock())]:
                await self._declare(job)

    async def _look(self, job: str) -> Listened:
        state: JobState = await run_sync(self._records.state, job)
        if job not in self._jobs:
            self._jobs[job] = Listened(job=job, timeout_seconds=state.settings.heartbeat_timeout_seconds)
            self._changed.set()
        listened = self._jobs[job]
        listened.look(state, self._clock())
        return listened

    def _tick_seconds(self) -> float:
        timeouts = (listened.timeout_seconds or math.inf for listened in self._jobs.values())
        return max(SHORTEST_TICK_SECONDS, min(LONGEST_TICK_SECONDS, min(timeouts, default=math.inf) / TICKS))

    def _forgive(self, late_seconds: float, tick_seconds: float) -> None:
        """A service that was stopped or too busy to listen takes that time off everybody's silence."""
        if late_seconds > tick_seconds:
            self._log.warning("did not listen to heartbeats for a while", seconds=round(late_seconds, 3))
            for listened in self._jobs.values():
                listened.forgive(late_seconds)

    async def _declare(self, job: str) -> None:
        """Log the losses of a job, once the log itself still knows these workers as alive."""
        try:
            listened = await self._look(job)
            now = self._clock()
            events = listened.events(listened.lost(now), now, utc_now())
            if events:
                self._log.warning("workers fell silent", job=job, lost=[event.worker or event.host for event in events])
                await self._post(job, events)
        except (InfeasibleError, ConflictError) as error:  # logged all the same, or overtaken: the log says who lives now
            self._log.info("silence told", job=job, outcome=error.as_dict())
            await self._look(job)
        except KintsugiError as error:
            self._log.warning("cannot tell who fell silent", job=job, error=error.as_dict())
