"""A worker that stands by for the scheduler: it keeps a copy of its log, and goes on in its place once it is silent.

The log is followed line by line into a file; the same service (`kintsugi serve`) starts on that copy, in a process of its own, once
a majority of the workers voted for it.
"""

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import structlog

from kintsugi.core import checks, codec
from kintsugi.core.errors import KintsugiError
from kintsugi.core.overlay import Overlay, OverlayEntry, OverlayEvent, OverlayEventKind, OverlayLog
from kintsugi.runtime.overlay.election import Electorate

_JOIN_SECONDS = 10.0
_PAUSE_SECONDS = 0.2
_FOLLOW_SECONDS = 3.0
"""Longest wait of one request for further lines."""
LOG_FILE = "overlay-log.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class StandbyOptions:
    """How a worker stands by for the scheduler."""

    folder: Path
    """Where the copy of the log lies, and the database of the service that may be started on it."""
    host: str = "127.0.0.1"
    """Address at which that service listens; beyond loopback its database, `scheduler.sqlite3` in the folder, needs tokens."""
    lease_seconds: float = 10.0
    """Silence of the scheduler after which it is taken for dead; of several that stand by each waits half of it longer."""
    vote_seconds: float = 5.0
    """How long votes are waited for."""

    def __post_init__(self) -> None:
        checks.positive("lease_seconds", self.lease_seconds)
        checks.positive("vote_seconds", self.vote_seconds)


class LogSource(Protocol):
    """Where the scheduler's log is read."""

    def log(self, after: int, wait_seconds: float) -> OverlayLog:
        """Lines behind number `after`, waited for."""


class Serving(Protocol):
    """A service that was started."""

    @property
    def url(self) -> str:
        """Where it answers."""

    def post(self, event: OverlayEvent) -> Overlay:
        """Tell it something."""

    def close(self) -> None:
        """End it."""


Serve = Callable[[Path], Serving]
"""Starts the service on a copy of the log."""


class LogCopy:
    """Lines of a scheduler's log in a file, on the disk before the next ones are asked for."""

    def __init__(self, path: Path) -> None:
        """Go on behind the lines that lie there; half a line at the end is cut off.

        Raises:
            InvalidInputError: what lies there is no such log.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.last_number = 0
        whole = 0
        for line in path.read_bytes().splitlines(keepends=True) if path.exists() else ():
            if not line.endswith(b"\n"):
                break
            whole += len(line)
            self.last_number = codec.loads(OverlayEntry, line).number
        with path.open("ab") as file:
            file.truncate(whole)

    def add(self, log: OverlayLog) -> None:
        """Keep further lines."""
        new = [entry for entry in log.entries if entry.number > self.last_number]
        if not new:
            return
        with self.path.open("a") as file:
            file.writelines(f"{codec.dumps(entry)}\n" for entry in new)
            file.flush()
            os.fsync(file.fileno())
        self.last_number = new[-1].number


class Standby:
    """Follows the scheduler, and goes on in its place. One thread; `close` ends it, and the service that it started."""

    def __init__(
        self,
        worker: str,
        electorate: Electorate,
        *,
        source: LogSource,
        copy: LogCopy,
        serve: Serve,
        options: StandbyOptions,
        silent_seconds: Callable[[], float],
        rank: Callable[[], int],
    ) -> None:
        """Not yet begun; `rank` is its place among the workers that count, by which it waits."""
        self._worker, self._electorate, self._source = worker, electorate, source
        self._copy, self._serve, self._options = copy, serve, options
        self._silent_seconds, self._rank = silent_seconds, rank
        self._serving: Serving | None = None
        self._closing = threading.Event()
        self._log = structlog.get_logger("kintsugi.overlay").bind(worker=worker)
        self._thread = threading.Thread(target=self._run, name="overlay-stands-by", daemon=True)

    @property
    def is_scheduler(self) -> bool:
        """Whether it went on in the scheduler's place."""
        return self._serving is not None

    def start(self) -> None:
        """Begin to follow."""
        self._thread.start()

    def close(self) -> None:
        """End it, and the service that it started."""
        self._closing.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(_JOIN_SECONDS)
        if self._serving is not None:
            self._serving.close()

    def _run(self) -> None:
        while not self._closing.is_set() and self._serving is None:
            self._follow()
            if self._silent_seconds() > self._options.lease_seconds * (1.0 + 0.5 * self._rank()):
                self._try_to_take_over()

    def _follow(self) -> None:
        try:
            self._copy.add(self._source.log(self._copy.last_number, _FOLLOW_SECONDS))
        except KintsugiError:
            self._closing.wait(_PAUSE_SECONDS)

    def _try_to_take_over(self) -> None:
        won = self._electorate.stand(self._options.vote_seconds)
        if won is None:
            self._closing.wait(_PAUSE_SECONDS)
            return
        term, newest = won
        try:
            self._take_over(term, newest)
        except (KintsugiError, OSError) as error:
            self._log.warning("could not go on in the scheduler's place", term=term, why=str(error))

    def _take_over(self, term: int, newest: Overlay) -> None:
        serving = self._serve(self._copy.path)
        try:
            event = OverlayEvent(
                kind=OverlayEventKind.SCHEDULER_CHANGED,
                id=f"scheduler-{term}",
                worker=self._worker,
                address=serving.url,
                term=term,
                overlay=newest,
            )
            serving.post(event)
        except BaseException:
            with suppress(KintsugiError, OSError):
                serving.close()
            raise
        self._serving = serving
        self._log.info("went on in the scheduler's place", term=term, url=serving.url)
        self._electorate.announce(serving.url, term)
