"""The scheduler behind its counter: events taken one at a time, and everybody told who waits."""

from collections.abc import AsyncGenerator

import anyio
from anyio.to_thread import run_sync
from fastapi.sse import format_sse_event

from api.overlay.book import Page
from api.overlay.monitor import Monitor
from api.overlay.scheduler import Scheduler
from api.settings import Settings
from api.waiting.patrol import Witness
from api.waiting.streams import RETRY_MILLISECONDS
from api.waiting.watch import Turns, Watch
from kintsugi.core import codec
from kintsugi.core.errors import ConflictError, InvalidInputError, NotFoundError
from kintsugi.core.overlay_messages import OverlayEntry, OverlayEvent

SETTING = "KINTSUGI_OVERLAY_LOG"


class OverlayDesk:
    """Everything about overlays of one running application."""

    def __init__(self, scheduler: Scheduler, *, timeout_seconds: float, witness: Witness | None = None) -> None:
        self.scheduler = scheduler
        self.watch = Watch(scheduler.latest)
        self.monitor = Monitor(scheduler, self.post, timeout_seconds=timeout_seconds, witness=witness)
        self._turns = Turns()
        self._times_forgotten = 0

    def restore(self, settings: Settings) -> None:
        """Go on from the copy of another scheduler's log, where the settings name one; before anybody is served.

        Raises:
            InvalidInputError: it cannot be read, is no such log, or lines are missing.
        """
        path = settings.overlay_log
        if path is None:
            return
        if settings.overlay_log_job is None:
            raise InvalidInputError(f"is needed too: {SETTING} is the log of one job", field=f"{SETTING}_JOB")
        try:
            lines = path.read_text().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidInputError(f"cannot be read: {error}", field=SETTING, value=str(path)) from error
        try:
            self.scheduler.restore(settings.overlay_log_job, (codec.loads(OverlayEntry, line) for line in lines))
        except (InvalidInputError, ConflictError, NotFoundError) as error:
            raise InvalidInputError(f"is no such log: {error}", field=SETTING, value=str(path)) from error

    def forget(self) -> None:
        """Forget what was told and heard of overlays: the database does not hold it any more."""
        self._times_forgotten += 1
        self.scheduler.forget()
        self.watch.forget()
        self.monitor.forget()

    async def post(self, job: str, event: OverlayEvent) -> Page:
        """Take an event down, and tell everybody once it is durable.

        Raises:
            KintsugiError: what the scheduler refuses it with.
        """
        async with self._turns.of(job):
            page = await run_sync(self.scheduler.post, job, event, self.monitor.synchronization_seconds(job))
        self.watch.tell(job, page.overlay.generation)
        self.monitor.moved(job, page)
        return page

    async def page(self, job: str, term: int = 0) -> Page:
        """The present overlay.

        Raises:
            NotFoundError: nobody joined yet.
            StaleTermError: whoever asks has heard of a later scheduler.
        """
        return await run_sync(self.scheduler.page, job, term)

    async def awaited(self, job: str, above: int, seconds: float) -> Page | None:
        """The overlay once its generation is above `above`; None after `seconds`, or when the service stops."""
        generation = await self.watch.wait(job, above, seconds)
        if generation < 0:
            return None
        known = self.scheduler.known(job)
        return known if known is not None and known.overlay.generation > above else await self.page(job)

    async def messages(self, job: str, heartbeat_seconds: float) -> AsyncGenerator[bytes, None]:
        """The overlay as server-sent events whenever it changes; never silent for longer than told.

        They end when the service stops, or has forgotten what it told: whoever asks again is told what is there.
        """
        times_forgotten = self._times_forgotten
        page: Page | None = await self.page(job)
        generation = -1
        while True:
            if page is None:
                yield b": alive\n\n"
            else:
                generation, told = page.overlay.generation, page.body.decode()
                yield format_sse_event(event="overlay", data_str=told, id=str(generation), retry=RETRY_MILLISECONDS)
            if self.watch.is_closed or times_forgotten != self._times_forgotten:
                return
            page = await self.awaited(job, generation, heartbeat_seconds)

    async def run(self) -> None:
        """Listen until the service stops."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.watch.run)
            tasks.start_soon(self.monitor.run)

    def close(self) -> None:
        """Let nobody wait any more."""
        self.watch.close()
        self.monitor.close()
