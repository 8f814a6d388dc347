"""The scheduler with an ear on it: when it answered last."""

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from kintsugi.core.errors import KintsugiError, UnavailableError
from kintsugi.core.overlay import Overlay
from kintsugi.core.overlay_messages import OverlayEvent, OverlayHeartbeat, OverlayHeartbeatAnswer
from kintsugi.runtime.overlay.scheduler import Scheduler

T = TypeVar("T")


class HeardScheduler:
    """A scheduler whose silence is measured. A refusal is an answer, too."""

    def __init__(self, scheduler: Scheduler, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._scheduler, self._clock = scheduler, clock
        self._lock = threading.Lock()
        self._answered = clock()

    @property
    def silent_seconds(self) -> float:
        """Since it answered last."""
        with self._lock:
            return self._clock() - self._answered

    def allow_time(self) -> None:
        """Somebody is about to go on in its place: its silence is measured anew."""
        self._note()

    def post(self, event: OverlayEvent) -> Overlay:
        """Tell what happened and get the overlay after it."""
        return self._heard(lambda: self._scheduler.post(event))

    def overlay(self, after_generation: int | None, wait_seconds: float, term: int) -> Overlay | None:
        """The overlay once it is newer than the generation given; None when it was not within the time."""
        return self._heard(lambda: self._scheduler.overlay(after_generation, wait_seconds, term))

    def beat(self, heartbeat: OverlayHeartbeat) -> OverlayHeartbeatAnswer:
        """Tell that this worker lives."""
        return self._heard(lambda: self._scheduler.beat(heartbeat))

    def moved(self, url: str) -> None:
        """It answers at another address from now on, and has the whole time to do so."""
        self._note()
        self._scheduler.moved(url)

    def close(self) -> None:
        """Close all connections."""
        self._scheduler.close()

    def _heard(self, ask: Callable[[], T]) -> T:
        try:
            answer = ask()
        except UnavailableError:
            raise
        except KintsugiError:
            self._note()
            raise
        self._note()
        return answer

    def _note(self) -> None:
        with self._lock:
            self._answered = self._clock()
