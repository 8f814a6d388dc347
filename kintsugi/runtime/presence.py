"""Whether this very process is here: time in which it was paused, as a rule with its whole job, is nobody else's silence."""

import threading
import time
from collections.abc import Callable

LOOK_SECONDS = 0.25
"""From one look to the next, for whoever looks."""
_AWAY_SECONDS = 1.0
"""So much longer than that between two looks, and the process was away: paused, or starved."""


class Presence:
    """Finds gaps in this process's own time. Somebody has to look often: who waits by it, or a thread, from `begin` to `close`.

    The thread tells a process that is away from a caller who is busy for long, as with code of the user's.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` gives seconds."""
        self._clock = clock
        self._lock = threading.Lock()
        self._looked_at = clock()
        self._back_at = 0.0
        self._away_seconds = 0.0
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Have a thread look; what was before counts for nothing."""
        with self._lock:
            self._looked_at = self._clock()
        self._thread = threading.Thread(target=self._run, name="presence", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join()

    @property
    def back_at(self) -> float:
        """When this process was here again that had been away; before anything where it never was. Reading it is a look."""
        with self._lock:
            self._look()
            return self._back_at

    @property
    def away_seconds(self) -> float:
        """For how long this process has been away in all. Reading it is a look."""
        with self._lock:
            self._look()
            return self._away_seconds

    def left_seconds(self, began_at: float, seconds: float) -> float:
        """Of a wait that began then; 0 or less once it is over. It begins anew where this process was away meanwhile."""
        now = self._clock()  # before anything else: an absence after it is known by then
        return max(began_at, self.back_at) + seconds - now

    def _look(self) -> None:
        now = self._clock()
        gap = now - self._looked_at
        if gap > LOOK_SECONDS + _AWAY_SECONDS:
            self._back_at = now
            self._away_seconds += gap
        self._looked_at = now

    def _run(self) -> None:
        while not self._closed.wait(LOOK_SECONDS):
            _ = self.back_at


def await_changed(changed: threading.Condition, is_there: Callable[[], bool], timeout_seconds: float) -> bool:
    """Whether something comes to be within the time, in which this process is here: the others may be paused as it is.

    `changed`, which is held, is told of what may make it be.
    """
    began_at, presence = time.monotonic(), Presence()
    while not is_there():
        left = presence.left_seconds(began_at, timeout_seconds)
        if left <= 0.0:
            return False
        changed.wait(min(left, LOOK_SECONDS))
    return True
