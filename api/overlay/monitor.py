"""Listens to the heartbeats of all overlays and tells the log who fell silent."""

import time
from collections.abc import Awaitable, Callable

import anyio
import structlog
from anyio.to_thread import run_sync

from api.jobs.clock import utc_now
from api.overlay.book import Page
from api.overlay.hearing import Hearing
from api.overlay.scheduler import Scheduler
from kintsugi.core.errors import KintsugiError
from kintsugi.core.overlay import Overlay, OverlayEvent, OverlayHeartbeat, OverlayHeartbeatAnswer, OverlaySigns

TICKS = 20
"""Looks per timeout."""
SHORTEST_TICK_SECONDS, LONGEST_TICK_SECONDS = 0.02, 1.0

Post = Callable[[str, OverlayEvent], Awaitable[object]]
"""Logs an event of an overlay."""


class Monitor:
    """Hears all overlays; an overlay's first heartbeat begins the watch over all of its workers.

    Nothing is stored but losses: after a restart an overlay is watched again from its next heartbeat on, and everybody has the
    whole timeout.
    """

    def __init__(
        self, scheduler: Scheduler, post: Post, *, timeout_seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._scheduler = scheduler
        self._post = post
        self._timeout_seconds = timeout_seconds
        self._clock = clock
        self._hearings: dict[str, Hearing] = {}
        self._changed = anyio.Event()
        self._closed = False

    async def hear(self, job: str, heartbeat: OverlayHeartbeat) -> OverlayHeartbeatAnswer:
        """Remember that a worker lives.

        Raises:
            NotFoundError: no such overlay, or no such worker in it.
            StaleIncarnationError: it was declared lost, or joined anew.
            StaleTermError: it has heard of a later scheduler.
        """
        hearing = self._hearings.get(job)
        if hearing is None or heartbeat.worker not in hearing.lives:
            hearing = self._listen(job, (await run_sync(self._scheduler.page, job)).overlay)
        self._scheduler.check_term(hearing.overlay, heartbeat.term)
        hearing.hear(heartbeat, self._clock(), utc_now())
        overlay = hearing.overlay
        return OverlayHeartbeatAnswer(generation=overlay.generation, term=overlay.term, timeout_seconds=self._timeout_seconds)

    def signs(self, job: str) -> OverlaySigns:
        """What was heard of an overlay's workers."""
        hearing = self._hearings.get(job)
        return OverlaySigns(signs=()) if hearing is None else hearing.told()

    def synchronization_seconds(self, job: str) -> dict[str, float]:
        """What was heard of an overlay's all-reduces, by worker."""
        hearing = self._hearings.get(job)
        return {} if hearing is None else hearing.synchronization_seconds()

    def moved(self, job: str, page: Page) -> None:
        """Take over who is there now."""
        hearing = self._hearings.get(job)
        if hearing is not None:
            hearing.look(page.overlay, self._clock())

    def close(self) -> None:
        """Listen to nobody any more."""
        self._closed = True
        self._changed.set()

    async def run(self) -> None:
        """Tell the log of losses until the service stops."""
        tick_seconds = max(SHORTEST_TICK_SECONDS, min(LONGEST_TICK_SECONDS, self._timeout_seconds / TICKS))
        while not self._closed:
            due = self._clock() + tick_seconds if self._hearings else None
            with anyio.move_on_after(None if due is None else tick_seconds):
                await self._changed.wait()
            self._changed = anyio.Event() if not self._closed else self._changed
            if due is not None:
                self._forgive(self._clock() - due, tick_seconds)
            for job in list(self._hearings):
                await self._declare(job)

    def _listen(self, job: str, overlay: Overlay) -> Hearing:
        hearing = self._hearings.get(job)
        if hearing is None:
            hearing = self._hearings[job] = Hearing(overlay=overlay)
            self._changed.set()
        hearing.look(overlay, self._clock())
        return hearing

    def _forgive(self, late_seconds: float, tick_seconds: float) -> None:
        """A service that was stopped or too busy to listen takes that time off everybody's silence."""
        if late_seconds > tick_seconds:
            for hearing in self._hearings.values():
                hearing.forgive(late_seconds)

    async def _declare(self, job: str) -> None:
        hearing = self._hearings[job]
        if not hearing.lost(self._clock(), self._timeout_seconds):
            return
        try:
            hearing.look((await run_sync(self._scheduler.page, job)).overlay, self._clock())
            for event in hearing.lost(self._clock(), self._timeout_seconds):
                await self._post(job, event)
        except KintsugiError as error:
            structlog.get_logger("kintsugi.api").warning("cannot declare a loss", job=job, reason=error.message)
