"""A database that does not answer: one wait finds it out, and whoever came meanwhile is told at once.

Requests wait for each other: if each had to find out by itself, those of many jobs would wait for the sum of all waits.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from api.storage.engines import DATABASE_FIELD
from kintsugi.core.errors import UnavailableError

LONG_SECONDS = 2.0
"""A failure that took less costs nobody much, and may be that of one connection."""
REST_SECONDS = 1.0
"""How long after a long wait in vain nobody else waits."""


class Absence:
    """What became of the latest wait; safe for several threads."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._over_at = float("-inf")
        self._message = ""

    @contextmanager
    def noticed(self) -> Iterator[None]:
        """Within this the database is asked.

        Raises:
            UnavailableError: others waited for it in vain a moment ago.
        """
        begun_at = self._clock()
        if begun_at < self._over_at:
            raise UnavailableError(self._message, field=DATABASE_FIELD)
        try:
            yield
        except UnavailableError as error:
            if error.field == DATABASE_FIELD and self._clock() - begun_at >= LONG_SECONDS:
                self._message, self._over_at = error.message, self._clock() + REST_SECONDS
            raise
