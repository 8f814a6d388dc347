"""How long the scheduler has not answered: training goes on without it, but nobody joins, leaves or is gone on without."""

import time
from collections.abc import Callable

from kintsugi.core.logs import get_logger

_TELL_SECONDS = 10.0
_LONG_SECONDS = 1.0
"""A request may fail; after so long it is the scheduler that does not answer."""
_TELL_AGAIN_SECONDS = 60.0


class Absence:
    """As one worker sees it, in one thread; others may ask. The log tells when it begins and ends."""

    def __init__(self, worker: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: float | None = None
        """When the first request in a row was not answered; null where the last one was."""
        self._tell_at = 0.0
        self._log = get_logger("kintsugi.overlay").bind(worker=worker)

    @property
    def seconds(self) -> float:
        """So far; 0 where it answers."""
        since = self._since
        return 0.0 if since is None else self._clock() - since

    @property
    def warning(self) -> str:
        """What that means for whoever waits; empty where it answers, or did so a moment ago."""
        seconds = self.seconds
        if seconds < _LONG_SECONDS:
            return ""
        return f"the scheduler has not answered for {seconds:.0f} s: without it nobody who is lost can be gone on without"

    def answered(self) -> None:
        """It answers."""
        if self.seconds >= _TELL_SECONDS:
            self._log.info("the scheduler answers again", away_seconds=round(self.seconds, 1))
        self._since = None

    def not_answered(self, error: Exception) -> None:
        """It did not."""
        now = self._clock()
        if self._since is None:
            self._since, self._tell_at = now, now + _TELL_SECONDS
        if now >= self._tell_at:
            self._tell_at = now + _TELL_AGAIN_SECONDS
            self._log.warning(
                "the scheduler does not answer: training goes on, but nobody joins, leaves or is gone on without",
                away_seconds=round(self.seconds, 1),
                why=str(error),
            )
