"""The end of the logs, read once for all who listen: no thread, no query and no buffer for each of them."""

from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import anyio
import structlog
from anyio.to_thread import run_sync

from api.outages import Outage
from api.storage.continuity import Mark, SetBackError
from api.waiting.feed import Feed, Illegible, Line
from kintsugi.core.errors import UnavailableError

POLL_SECONDS = 0.1
"""How often lines that another process wrote are looked for, while somebody listens."""
PAGE = 100
"""Lines that are read at a time."""
WINDOW_LINES = 256
"""Latest lines kept for those who listen to the same; who falls further behind reads them from the database."""

ALL_JOBS = None
"""The channel of those who listen to every job."""


class Window:
    """The latest lines of one channel, shared by all who listen to it."""

    def __init__(self) -> None:
        self.listeners = 0
        self.is_over = False
        """Whether nothing comes any more: what was told is not in the database any more."""
        self.changed = anyio.Event()
        """Set with the next line; another one takes its place."""
        self._lines: deque[Line | Illegible] = deque(maxlen=WINDOW_LINES)

    def add(self, line: Line | Illegible) -> None:
        """Keep a line and wake everybody."""
        self._lines.append(line)
        self.wake()

    def wake(self) -> None:
        """Make everybody look."""
        self.changed.set()
        self.changed = anyio.Event()

    def after(self, number: int) -> Sequence[Line | Illegible] | None:
        """The lines behind `number`; None where older ones than are kept belong to them."""
        lines = [line for line in self._lines if line.number > number] if self._lines and self._lines[-1].number > number else []
        return None if lines and lines[0].number > number + 1 else lines


class Tail:
    """Hands every new line of the logs to the windows of its job and of all jobs.

    Read only while somebody listens: at once after a write of this process, else every `POLL_SECONDS`.
    """

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._windows: dict[str | None, Window] = {}
        self._mark: Mark | None = None
        """Of the last line that was handed out; None while nobody listens."""
        self._somebody = anyio.Event()
        self._poked = anyio.Event()
        self._closed = False
        self._outage = Outage("look for new entries")
        self._log = structlog.get_logger("kintsugi.api")

    @property
    def is_closed(self) -> bool:
        """Whether the service is stopping and nobody is to listen any more."""
        return self._closed

    @property
    def num_listeners(self) -> int:
        """Everybody who listens."""
        return sum(window.listeners for window in self._windows.values())

    @asynccontextmanager
    async def listening(self, channel: str | None) -> AsyncIterator[Window]:
        """The window of a job, or of all jobs: what is written from now on is in it, or was in the database before.

        Raises:
            UnavailableError: the database does not answer.
        """
        window = self._windows.setdefault(channel, Window())
        window.listeners += 1
        try:
            if self._mark is None:
                mark = await run_sync(self._feed.mark)
                self._mark = mark if self._mark is None else self._mark
            self._somebody.set()
            yield window
        finally:
            window.listeners -= 1
            if not window.listeners and not window.is_over:
                self._windows.pop(channel, None)

    def poke(self) -> None:
        """Something was written: look at once."""
        self._poked.set()

    def close(self) -> None:
        """Send everybody away."""
        self._closed = True
        self._somebody.set()
        self._poked.set()
        for window in self._windows.values():
            window.wake()

    def forget(self) -> None:
        """Send those away who listen now: what they were told is not in the database any more."""
        windows, self._windows, self._mark = self._windows, {}, None
        for window in windows.values():
            window.is_over = True
            window.wake()

    async def run(self) -> None:
        """Read and hand out until the service stops."""
        while not self._closed:
            await self._somebody.wait()
            with anyio.move_on_after(POLL_SECONDS):
                await self._poked.wait()
            self._poked = anyio.Event()
            if not self._windows:
                self._mark, self._somebody = None, anyio.Event()
            elif self._mark is not None and not self._closed:
                await self._read(self._mark)

    async def _read(self, mark: Mark) -> None:
        try:
            lines = await run_sync(self._feed.behind, mark, PAGE)
        except SetBackError:
            self.forget()
            return
        except UnavailableError as error:
            self._outage.goes_on(error)
            await anyio.sleep(POLL_SECONDS)
            return
        self._outage.is_over()
        if self._mark is not mark:  # forgotten meanwhile
            return
        for line in lines:
            self._mark = line.mark
            self._hand_out(line)
        if len(lines) == PAGE:
            self._poked.set()

    def _hand_out(self, line: Line | Illegible) -> None:
        if isinstance(line, Illegible):
            self._log.warning("cannot tell of an entry", job=line.job, number=line.number_in_job, reason=line.error.message)
        of_job, of_all = self._windows.get(line.job), self._windows.get(ALL_JOBS)
        if of_job is not None:
            of_job.add(replace(line, number=line.number_in_job))
        if of_all is not None:
            of_all.add(line)
