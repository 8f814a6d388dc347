"""What a worker tells the scheduler: in order, until it was heard, from a thread of its own."""

import hashlib
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from kintsugi.core import checks
from kintsugi.core.errors import KintsugiError, UnavailableError
from kintsugi.core.logs import get_logger
from kintsugi.core.overlay import Overlay
from kintsugi.core.overlay_messages import OverlayEvent, OverlayEventKind
from kintsugi.runtime.overlay.greeting import Identity
from kintsugi.runtime.overlay.scheduler import Scheduler

PAUSE_SECONDS = 0.2
"""Before a scheduler that did not answer is asked again."""
_JOIN_SECONDS = 0.5


def event_id(text: str) -> str:
    """An id for an event: `text`, or a digest of it where it has become too long by the names in it."""
    return text if len(text) <= checks.LONGEST_NAME else hashlib.sha256(text.encode()).hexdigest()


class Teller:
    """Posts events. What the scheduler refuses is logged and forgotten: the overlay that comes next says how things stand."""

    def __init__(
        self, identity: Identity, scheduler: Scheduler, known: Callable[[], Overlay], take: Callable[[Overlay], None]
    ) -> None:
        """Begin; `known` gives the newest overlay, `take` gets the one that an event led to."""
        self._identity, self._scheduler, self._known, self._take = identity, scheduler, known, take
        self._events: queue.SimpleQueue[OverlayEvent | None] = queue.SimpleQueue()
        self._seen: set[str] = set()
        self._closing = threading.Event()
        self._log = get_logger("kintsugi.overlay").bind(worker=identity.worker)
        self._thread = threading.Thread(target=self._run, name="overlay-tells", daemon=True)
        self._thread.start()

    def tell(self, kind: OverlayEventKind, name: str, **fields: Any) -> None:
        """Tell something once: what goes by the same name again is not told."""
        if name not in self._seen:
            self._seen.add(name)
            self._events.put(self.event(kind, name, **fields))

    def post(self, kind: OverlayEventKind, name: str, **fields: Any) -> Overlay:
        """Tell something at once, and take in the overlay after it.

        Raises:
            KintsugiError: the scheduler refused, or does not answer.
        """
        overlay = self._scheduler.post(self.event(kind, name, **fields))
        self._take(overlay)
        return overlay

    def event(self, kind: OverlayEventKind, name: str, **fields: Any) -> OverlayEvent:
        """An event as this worker tells it, with how much of the overlay it knows."""
        known = self._known()
        told = {"worker": self._identity.worker, "incarnation": self._identity.incarnation, "generation": known.generation}
        return OverlayEvent(kind=kind, id=event_id(name), **{"restarts": known.restarts, "term": known.term, **told, **fields})

    def close(self) -> None:
        """Tell nothing more."""
        self._closing.set()
        self._events.put(None)
        if self._thread is not threading.current_thread():
            self._thread.join(_JOIN_SECONDS)

    def _run(self) -> None:
        while (event := self._events.get()) is not None:
            while not self._closing.is_set() and not self._is_heard(event):
                self._closing.wait(PAUSE_SECONDS)

    def _is_heard(self, event: OverlayEvent) -> bool:
        try:
            overlay = self._scheduler.post(event)
        except UnavailableError:
            return False
        except KintsugiError as error:
            self._log.info("the scheduler refused an event", kind=event.kind.value, id=event.id, why=str(error))
            return True
        with suppress(KintsugiError):
            self._take(overlay)
        return True
