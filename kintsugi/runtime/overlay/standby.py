"""A worker that stands by for the scheduler: it keeps a copy of its log, and goes on in its place once it is silent.

The log is followed line by line into a file; the same service (`kintsugi serve`) starts on that copy, in a process of its own, once
a majority of the workers voted for it.
"""

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from kintsugi.core import checks
from kintsugi.core.errors import ConflictError, KintsugiError
from kintsugi.core.logs import get_logger
from kintsugi.core.overlay import Overlay
from kintsugi.core.overlay_messages import OverlayEvent, OverlayEventKind, OverlayLog
from kintsugi.core.pauses import doubled_seconds
from kintsugi.runtime.overlay.election import Electorate
from kintsugi.runtime.overlay.greeting import Identity
from kintsugi.runtime.overlay.log_copy import LogCopy

_JOIN_SECONDS = 10.0
_PAUSE_SECONDS = 0.2
_FOLLOW_SECONDS = 3.0
"""Longest wait of one request for further lines."""
_LOOK_SECONDS = 2.0
"""How often whoever is the scheduler looks whether an earlier one is back, or a later one there."""
_LONGEST_LEASES = 64.0
"""Of silence, that one whose service does not begin leaves to others before it stands again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StandbyOptions:
    """How a worker stands by for the scheduler."""

    folder: str | Path
    """Where the copy of the log lies, and the database of the service that may be started on it."""
    host: str = "127.0.0.1"
    """Address at which that service listens. It accepts this worker's token, which it needs beyond loopback; others that the
    scheduler issued are unknown to it, unless they lie in its database, `scheduler.sqlite3` in the folder.
    """
    port: int = 0
    """At which it listens; 0 takes a free one, which workers are told over the overlay's links. A named one can be among the
    addresses that `service` gives workers that join later, and firewalls can let it through.
    """
    lease_seconds: float = 10.0
    """Silence of the scheduler after which it is taken for dead; of several that stand by each waits half of it longer. A service
    takes some seconds to start: with less than that, more than one begins in turn, and the last one counts.
    """
    vote_seconds: float = 5.0
    """How long votes are waited for."""

    def __post_init__(self) -> None:
        checks.name("host", self.host)
        checks.port("port", self.port)
        checks.positive("lease_seconds", self.lease_seconds)
        checks.positive("vote_seconds", self.vote_seconds)


class LogSource(Protocol):
    """The schedulers, as far as a standby needs them."""

    def log(self, after: int, wait_seconds: float) -> OverlayLog:
        """Lines of the present one's log behind number `after`, waited for."""

    def depose(self, worker: str, incarnation: int, term: int) -> None:
        """Tell earlier ones, should they be back, that another one of `term` took over."""


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


class Standby:
    """Follows the scheduler, and goes on in its place. One thread; `close` ends it, and the service that it started."""

    def __init__(
        self,
        identity: Identity,
        electorate: Electorate,
        *,
        source: LogSource,
        copy: LogCopy,
        serve: Serve,
        options: StandbyOptions,
        silent_seconds: Callable[[], float],
        known_term: Callable[[], int],
        rank: Callable[[], int],
    ) -> None:
        """Not yet begun; `rank` is its place among the workers that count, by which it waits."""
        self._identity, self._electorate, self._source = identity, electorate, source
        self._copy, self._serve, self._options = copy, serve, options
        self._silent_seconds, self._known_term, self._rank = silent_seconds, known_term, rank
        self._serving: Serving | None = None
        self._term = self._followed_term = 0
        self._closing = threading.Event()
        self._is_warned = False
        self._num_failed = 0
        """How often in a row it was elected, and its service could not begin."""
        self._log = get_logger("kintsugi.overlay").bind(worker=identity.worker)
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
        while not self._closing.is_set():
            if self._serving is None:
                self._stand_by()
            elif self._known_term() > self._term:
                self._step_down(self._serving)
            else:
                self._source.depose(self._identity.worker, self._identity.incarnation, self._term)
                self._closing.wait(_LOOK_SECONDS)

    def _stand_by(self) -> None:
        self._follow()
        if self._silent_seconds() > self._patience_seconds():
            self._try_to_take_over()

    def _patience_seconds(self) -> float:
        """Silence before it stands: longer each time that its service could not begin, for meanwhile no other one stands."""
        lease = self._options.lease_seconds
        own = lease * (1.0 + 0.5 * self._rank())
        return doubled_seconds(own, self._num_failed, max(own, _LONGEST_LEASES * lease))

    def _follow(self) -> None:
        term = self._known_term()
        try:
            if self._copy.last_term < term != self._followed_term:
                self._copy.clear()
            self._followed_term = term
            self._copy.add(self._source.log(self._copy.last_number, _FOLLOW_SECONDS))
        except KintsugiError:
            self._closing.wait(_PAUSE_SECONDS)
        except OSError as error:
            self._warn_once(error)
            self._closing.wait(_PAUSE_SECONDS)
        else:
            self._is_warned = False
            self._num_failed = 0

    def _warn_once(self, error: OSError) -> None:
        """A full disk may have room again: what its log lacks then the scheduler tells again."""
        if not self._is_warned:
            self._log.warning("the copy of the scheduler's log cannot be written; it is tried again", error=str(error))
        self._is_warned = True

    def _step_down(self, serving: Serving) -> None:
        """Another one took over: end the service that nobody listens to any more."""
        self._serving = None
        serving.close()
        self._log.info("is the scheduler no more", term=self._term)

    def _try_to_take_over(self) -> None:
        won = self._electorate.stand(self._options.vote_seconds)
        if won is None:
            self._closing.wait(_PAUSE_SECONDS)
            return
        term, newest = won
        try:
            self._take_over(term, newest)
        except (KintsugiError, OSError) as error:
            self._num_failed += 1
            self._log.warning("could not go on in the scheduler's place", term=term, why=str(error))

    def _take_over(self, term: int, newest: Overlay) -> None:
        self._copy.require_whole()
        serving = self._serve(self._copy.path)
        try:
            self._require_wanted()
            event = OverlayEvent(
                kind=OverlayEventKind.SCHEDULER_CHANGED,
                id=f"scheduler-{term}",
                worker=self._identity.worker,
                address=serving.url,
                term=term,
                overlay=newest,
            )
            serving.post(event)
            self._require_wanted()
        except BaseException:
            with suppress(KintsugiError, OSError):
                serving.close()
            raise
        self._serving, self._term, self._num_failed = serving, term, 0
        self._log.info("went on in the scheduler's place", term=term, url=serving.url)
        self._electorate.announce(serving.url, term)

    def _require_wanted(self) -> None:
        """A service takes longer to start than a close waits for."""
        if self._closing.is_set():
            raise ConflictError("this worker leaves", field="worker", value=self._identity.worker)
