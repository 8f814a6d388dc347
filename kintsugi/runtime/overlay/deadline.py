"""A point in time by which something is to be over."""

import time

from kintsugi.core.errors import UnavailableError


class Deadline:
    """So many seconds from now."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._ends_at = seconds, time.monotonic() + seconds

    @property
    def left_seconds(self) -> float:
        """0 when it is over."""
        return max(self._ends_at - time.monotonic(), 0.0)

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
