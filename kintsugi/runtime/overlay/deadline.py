"""A point in time by which something is to be over."""

import time

from kintsugi.core.errors import UnavailableError
from kintsugi.runtime.presence import Presence


class Deadline:
    """So many seconds from now; where a presence is given, of those in which this process is here."""

    def __init__(self, seconds: float, presence: Presence | None = None) -> None:
        self._presence = presence
        self._seconds, self._ends_at = seconds, time.monotonic() + seconds - self._away_seconds

    @property
    def left_seconds(self) -> float:
        """0 when it is over."""
        now = time.monotonic()  # before anything else: an absence after it is known by then
        return max(self._ends_at + self._away_seconds - now, 0.0)

    @property
    def is_over(self) -> bool:
        """Whether no time is left."""
        return not self.left_seconds

    def require(self, what: str) -> None:
        """Go on while there is time.

        Raises:
            UnavailableError: there is none left, `what` says what did not happen.
        """
        if self.is_over:
            raise UnavailableError(f"{what} within {self._seconds:g} s", field="overlay")

    @property
    def _away_seconds(self) -> float:
        return 0.0 if self._presence is None else self._presence.away_seconds
