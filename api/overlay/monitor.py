"""Listens to the heartbeats of all overlays and tells the log who fell silent."""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence

from anyio.to_thread import run_sync

from api.jobs.clock import utc_now
from api.overlay.book import Page
from api.overlay.hearing import Hearing
from api.overlay.scheduler import Scheduler
from api.waiting.patrol import Patrol, Witness
from kintsugi.core.overlay_messages import OverlayEvent, OverlayHeartbeat, OverlayHeartbeatAnswer, OverlaySigns

Post = Callable[[str, OverlayEvent], Awaitable[object]]
"""Logs an event of an overlay."""


class Monitor(Patrol[Hearing]):
    """Hears all overlays; an overlay's first heartbeat begins the watch over all of its workers.

    Nothing is stored but losses: after a restart an overlay is watched again from its next heartbeat on, and everybody has the
    whole timeout.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        post: Post,
        *,
        timeout_seconds: float,
        witness: Witness | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(clock, witness)
        self._scheduler = scheduler
        self._post = post
        self._timeout = timeout_seconds

    async def hear(self, job: str, heartbeat: OverlayHeartbeat) -> OverlayHeartbeatAnswer:
        """Remember that a worker lives.

        Raises:
            NotFoundError: no such overlay, or no such worker in it.
            StaleIncarnationError: it was declared lost, or joined anew.
            StaleTermError: it has heard of a later scheduler.
        """
        hearing = self._heard.get(job)
        if hearing is None or heartbeat.worker not in hearing.lives:
            hearing = await self._look(job)
        self._scheduler.hear_term(hearing.overlay, heartbeat.term)
        hearing.hear(heartbeat, self._clock(), utc_now())
        if job not in self._heard:
            self._begin(job, hearing)
        overlay = hearing.overlay
        return OverlayHeartbeatAnswer(generation=overlay.generation, term=overlay.term, timeout_seconds=self._timeout)

    def signs(self, job: str) -> OverlaySigns:
        """What was heard of an overlay's workers."""
        hearing = self._heard.get(job)
        return OverlaySigns(signs=()) if hearing is None else hearing.as_signs()

    def synchronization_seconds(self, job: str) -> dict[str, float]:
        """What was heard of an overlay's all-reduces, by worker."""
        hearing = self._heard.get(job)
        return {} if hearing is None else hearing.synchronization_seconds()

    def moved(self, job: str, page: Page) -> None:
        """Take over who is there now."""
        hearing = self._heard.get(job)
        if hearing is not None:
            hearing.look(page.overlay, self._clock())

    def _timeout_seconds(self) -> float | None:
        return self._timeout if self._heard else None

    def _numbers(self, jobs: Sequence[str]) -> Mapping[str, int]:
        return self._scheduler.book.generations(jobs)

    async def _look(self, job: str) -> Hearing:
        overlay = (await run_sync(self._scheduler.page, job)).overlay
        hearing = self._heard.get(job) or Hearing(overlay=overlay)
        hearing.look(overlay, self._clock())
        return hearing

    def _is_silent(self, job: str) -> bool:
        hearing = self._heard.get(job)
        return hearing is not None and bool(hearing.lost(self._clock(), self._timeout))

    async def _tell(self, job: str) -> None:
        if job not in self._heard:
            return
        hearing = await self._look(job)
        for event in hearing.lost(self._clock(), self._timeout):
            if self._forgive_lateness():
                return
            await self._post(job, event)
