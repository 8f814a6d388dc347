"""Listens to heartbeats and tells the log who fell silent."""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress

import structlog
from anyio.to_thread import run_sync

from api.jobs.admission import require_going_on
from api.records import JobState, Records
from api.service import utc_now
from api.waiting.heartbeats import Listened
from api.waiting.patrol import Patrol, Witness
from kintsugi.core.errors import ConflictError, InfeasibleError
from kintsugi.core.heartbeats import HeartbeatAnswer, Heartbeats
from kintsugi.core.membership import Event

Post = Callable[[str, Sequence[Event]], Awaitable[object]]
"""Logs events of a job and decides about them."""


class HeartbeatWatch(Patrol[Listened]):
    """Hears all jobs; the first heartbeat of a job begins the watch over all of its living workers.

    Nothing is stored but losses: after a restart a job is watched again from its next heartbeat on, and everybody has the
    whole timeout. Membership is read from the job's log whenever it may have changed, and always before a loss is declared.
    """

    def __init__(
        self, records: Records, post: Post, *, witness: Witness | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(clock, witness)
        self._records = records
        self._post = post
        self._log = structlog.get_logger("kintsugi.api")

    def num_workers(self) -> int:
        """Living workers that are watched."""
        return sum(len(listened.heard) for listened in self._heard.values() if listened.timeout_seconds is not None)

    async def hear(self, job: str, heartbeats: Heartbeats) -> HeartbeatAnswer:
        """Remember that workers live; the answer names the latest generation that this process knows.

        One that is refused for all of its workers begins no watch: somebody's mistake is nobody's silence.

        Raises:
            NotFoundError: no such job, or no such worker on the host.
            ConflictError: the job has ended.
            StaleIncarnationError: workers were declared lost, or replaced.
        """
        listened = self._heard.get(job)
        if listened is None or not listened.knows(heartbeats):
            listened = await self._look(job)
        try:
            return listened.hear(heartbeats, self._clock())
        finally:
            if listened.beats and job not in self._heard:
                self._begin(job, listened)

    def moved(self, job: str) -> None:
        """Something was written: take over who lives before anybody else is declared lost; nobody is missed in a job that ended."""
        listened, state = self._heard.get(job), self._records.known_state(job)
        if listened is None or state is None:
            return
        if state.history.ended is not None:
            del self._heard[job]
        elif listened.is_behind(state.history):
            listened.look(state, self._clock())

    def _numbers(self, jobs: Sequence[str]) -> Mapping[str, int]:
        return self._records.latest_numbers(jobs)

    async def _look(self, job: str) -> Listened:
        state: JobState = await run_sync(self._records.state, job)
        if state.history.ended is not None:
            self._heard.pop(job, None)
        require_going_on(state.history)
        timeout_seconds = state.settings.heartbeat_timeout_seconds
        listened = self._heard.get(job) or Listened(job=job, timeout_seconds=timeout_seconds)
        listened.look(state, self._clock())
        return listened

    def _timeout_seconds(self) -> float | None:
        timeouts = (listened.timeout_seconds for listened in self._heard.values())
        return min((timeout for timeout in timeouts if timeout is not None), default=None)

    def _is_silent(self, job: str) -> bool:
        heard = self._heard.get(job)
        return heard is not None and bool(heard.lost(self._clock()))

    async def _tell(self, job: str) -> None:
        """Log the losses of a job, once the log itself still knows these workers as alive."""
        lost: list[str | None] = []
        try:
            listened = await self._look(job)
            if self._forgive_lateness():
                return
            now = self._clock()
            events = listened.events(listened.lost(now), now, utc_now())
            lost = [event.worker or event.host for event in events]
            if events:
                await self._post(job, events)
                self._log.warning("workers fell silent", job=job, lost=lost)
        except (InfeasibleError, ConflictError) as error:  # logged all the same, or overtaken: the log says who lives now
            self._log.info("silence told", job=job, lost=lost, outcome=error.as_dict())
            with suppress(ConflictError):  # it has ended, as another process was told
                await self._look(job)
