"""The agent: follows the desired state that the scheduler publishes, and tells what it sees.

Level-triggered: an agent that missed ten generations acts on the newest alone. Nothing that it does or hears stops the training.
"""

import threading
from collections.abc import Callable
from contextlib import suppress
from uuid import uuid4

from kintsugi.core.errors import KintsugiError, StaleIncarnationError, UnavailableError
from kintsugi.core.logs import get_logger
from kintsugi.core.overlay import Overlay, SynchronizationPolicy, WorkerState
from kintsugi.core.overlay_messages import OverlayEventKind, OverlayHeartbeat
from kintsugi.runtime.overlay.absence import Absence
from kintsugi.runtime.overlay.greeting import Identity
from kintsugi.runtime.overlay.inbox import Inbox
from kintsugi.runtime.overlay.links import Links
from kintsugi.runtime.overlay.options import OverlayOptions
from kintsugi.runtime.overlay.scheduler import Scheduler
from kintsugi.runtime.overlay.telling import PAUSE_SECONDS, Teller
from kintsugi.runtime.overlay.tree import needed_links
from kintsugi.runtime.presence import await_changed

_POLL_SECONDS = 3.0
_JOIN_SECONDS = 0.5
"""For threads that may sit in a request; they end with it, and hold nothing."""

Beat = Callable[[], OverlayHeartbeat]


class Agent:
    """One worker's view of the overlay, kept new, and its voice. Threads of its own; all waits end at `close`."""

    def __init__(
        self, identity: Identity, links: Links, inbox: Inbox, scheduler: Scheduler, overlay: Overlay, *, options: OverlayOptions
    ) -> None:
        """Begin with an overlay in which the worker stands."""
        self.identity, self.scheduler = identity, scheduler
        self._links, self._inbox, self._options = links, inbox, options
        self._overlay = overlay
        self._changed = threading.Condition()
        self._listeners: list[Callable[[Overlay], None]] = []
        self.closing = threading.Event()
        """Set when this worker ends."""
        self._beat: Beat = lambda: OverlayHeartbeat(worker=identity.worker, incarnation=identity.incarnation)
        self._effective: Callable[[], SynchronizationPolicy] = lambda: overlay.synchronization
        self.given_up = ""
        """Why the scheduler does not count on this worker any more; empty while it does."""
        self._absence = Absence(identity.worker)
        self.teller = Teller(identity, scheduler, lambda: self.overlay, self.take)
        self._threads = [
            threading.Thread(target=work, name=f"overlay-{name}", daemon=True)
            for name, work in (("follows", self._follow), ("beats", self._beats))
        ]

    def start(self, beat: Beat, effective: Callable[[], SynchronizationPolicy]) -> None:
        """Begin to follow and to give signs of life; `effective` says what the next reduction runs under."""
        self._beat, self._effective = beat, effective
        self.take(self._overlay)
        for thread in self._threads:
            thread.start()

    @property
    def overlay(self) -> Overlay:
        """The newest one that is known."""
        return self._overlay

    @property
    def state(self) -> WorkerState:
        """How this worker stands in the newest overlay; failed where it does not stand in it."""
        own = (one.state for one in self._overlay.workers if one.id == self.identity.worker)
        return next(own, WorkerState.FAILED)

    @property
    def why_given_up(self) -> str:
        """Why the others go on without this worker, from the moment that it knows of it; empty before."""
        return self.given_up or ("" if self._is_known() else self._why_unknown())

    @property
    def why_nothing_moves(self) -> str:
        """What the others cannot do at present, and why; empty where nothing keeps them from it."""
        return self._absence.warning

    @property
    def effective(self) -> SynchronizationPolicy:
        """The policy that the next reduction runs under."""
        return self._effective()

    def on_overlay(self, hears: Callable[[Overlay], None]) -> None:
        """Have `hears` called with every newer overlay, in the thread that got it: it must not block."""
        self._listeners.append(hears)

    def take(self, overlay: Overlay) -> None:
        """Take in an overlay, unless a newer one is known; everybody has heard of it before the next one is.

        Whoever heard of an older one after a newer one would end what the newer one had begun.
        """
        with self._changed:
            known = self._overlay
            if (overlay.term, overlay.generation) < (known.term, known.generation):
                return
            self._overlay = overlay
            self._changed.notify_all()
            self._links.generation = overlay.generation
            self._inbox.restart(overlay.restarts)
            if overlay.scheduler and overlay.scheduler != known.scheduler:
                self.scheduler.moved(overlay.scheduler)
            for hears in self._listeners:
                self._tell(hears, overlay)

    def _tell(self, hears: Callable[[Overlay], None], overlay: Overlay) -> None:
        """Let one hear of an overlay. A worker that cannot act on it, as for want of threads, ends: it would be deaf."""
        try:
            hears(overlay)
        except Exception as error:
            get_logger("kintsugi.overlay").exception("an overlay could not be acted on", worker=self.identity.worker)
            self.give_up(f"an overlay could not be acted on here ({type(error).__name__}: {error}); join again")

    def await_overlay(self, is_awaited: Callable[[Overlay], bool], timeout_seconds: float) -> bool:
        """Whether an overlay came that is as awaited, within the time, in which this process is here."""
        with self._changed:
            return await_changed(self._changed, lambda: is_awaited(self._overlay) or self.closing.is_set(), timeout_seconds)

    def ready(self, after: int, restarts: int) -> Overlay | None:
        """The newest overlay of an attempt above generation `after`, if this worker has every link that it needs for it."""
        overlay = self._overlay
        if overlay.generation <= after or overlay.restarts > restarts:
            return None
        needed = needed_links(overlay.synchronization, self.identity.worker)
        return overlay if all(self._links.get(peer) is not None for peer in needed) else None

    def ask_link(self, worker: str, *, is_wanted: bool) -> None:
        """Ask for a link with another worker, or to give one up.

        Raises:
            KintsugiError: the scheduler refuses, or does not answer.
        """
        ends = tuple(sorted((self.identity.worker, worker)))
        kind = OverlayEventKind.LINK_CONNECTED if is_wanted else OverlayEventKind.LINK_DISCONNECTED
        self.teller.post(kind, f"{kind.value}-{uuid4().hex}", link=ends, detail=f"asked by {self.identity.worker}")

    def give_up(self, why: str) -> None:
        """The scheduler does not count on this worker any more: whatever waits ends."""
        self.given_up = self.given_up or why
        self._inbox.close()
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """End all threads."""
        self.closing.set()
        with self._changed:
            self._changed.notify_all()
        self.teller.close()
        self.scheduler.close()
        for thread in self._threads:
            if thread.is_alive() and thread is not threading.current_thread():
                thread.join(_JOIN_SECONDS)

    def _follow(self) -> None:
        """Ask for newer overlays, one long request after another, as long as this worker stands in them."""
        while not self.closing.is_set() and self._is_known():
            known = self._overlay
            try:
                overlay = self.scheduler.overlay(known.generation, _POLL_SECONDS, known.term)
            except KintsugiError as error:
                if isinstance(error, UnavailableError):
                    self._absence.not_answered(error)
                else:
                    self._absence.answered()
                self.closing.wait(PAUSE_SECONDS)
                continue
            self._absence.answered()
            if overlay is not None:
                self.take(overlay)
        if not self.closing.is_set():
            self.give_up(self._why_unknown())

    def _is_known(self) -> bool:
        """Whether this life of the worker stands in the newest overlay."""
        own = self.identity
        known = next((one for one in self._overlay.workers if one.id == own.worker), None)
        return known is not None and known.incarnation == own.incarnation and known.state is not WorkerState.FAILED

    def _why_unknown(self) -> str:
        """Why this life of the worker does not stand in the newest overlay, and the way out."""
        own = self.identity
        known = next((one for one in self._overlay.workers if one.id == own.worker), None)
        if known is not None and known.incarnation > own.incarnation:
            return (
                f"another process, at {known.address}, joined under this worker's name and takes its place; "
                "give each worker a name of its own, or join again"
            )
        why = f" ({known.detail})" if known is not None and known.detail else ""
        return f"the others go on without this worker{why}; join again"

    def _look_again(self) -> None:
        """Take in the overlay as it is now, where the scheduler tells it."""
        with suppress(KintsugiError):
            overlay = self.scheduler.overlay(None, 0.0, self._overlay.term)
            if overlay is not None:
                self.take(overlay)

    def _beats(self) -> None:
        while not self.closing.wait(self._options.heartbeat_seconds):
            try:
                self.scheduler.beat(self._beat())
            except StaleIncarnationError as error:
                if not self.closing.is_set():
                    self._look_again()
                    self.give_up(str(error) if self._is_known() else self._why_unknown())
                return
            except KintsugiError:
                continue
