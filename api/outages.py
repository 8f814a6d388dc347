"""What fails again and again while the database is away: told at first, now and then while it lasts, and when it is over."""

import time
from collections.abc import Callable

import structlog
from structlog.contextvars import bound_contextvars

from kintsugi.core.errors import KintsugiError
from kintsugi.core.pauses import doubled_seconds

REMINDER_SECONDS = 60.0
"""How often it is told that an outage lasts."""


class Outage:
    """Of one thing that is tried until the service stops; used by one thread.

    Args:
        what: what is tried, behind "cannot" and "can".
        clock: seconds.
    """

    def __init__(self, what: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._what = what
        self._clock = clock
        self._attempts = 0
        self._told_at = float("-inf")
        self._log = structlog.get_logger("kintsugi.api")

    def goes_on(self, error: Exception) -> None:
        """Another attempt failed; of what is no error of the tree, but a mistake of ours, the traceback is told, too."""
        self._attempts += 1
        if self._clock() - self._told_at < REMINDER_SECONDS:
            return
        self._told_at = self._clock()
        told = {"reason": error.message} if isinstance(error, KintsugiError) else {"exc_info": error}
        self._log.warning(f"cannot {self._what}", attempts=self._attempts, **told)

    def is_over(self) -> None:
        """An attempt succeeded."""
        if self._attempts:
            self._log.warning(f"can {self._what} again", failed_attempts=self._attempts)
            self._attempts, self._told_at = 0, float("-inf")

    def pause_seconds(self, first: float, longest: float) -> float:
        """The pause until the next attempt: `first` while all is well, twice as long after each failure, up to `longest`."""
        return doubled_seconds(first, self._attempts, longest)


class Outages:
    """Of one thing that is tried for every job: one job's misfortune is not the others'."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._of: dict[str, Outage] = {}

    def goes_on(self, job: str, error: Exception) -> None:
        """Another attempt for a job failed."""
        with bound_contextvars(job=job):
            self._of.setdefault(job, Outage(self._what)).goes_on(error)

    def is_over(self, job: str) -> None:
        """An attempt for a job succeeded."""
        if job in self._of:
            with bound_contextvars(job=job):
                self._of.pop(job).is_over()
