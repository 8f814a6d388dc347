"""Whether the database takes what is written: known from the latest write, and tried anew where that failed."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock

from api.storage.engines import DATABASE_FIELD
from kintsugi.core.errors import UnavailableError, error_from


class LatestWrite:
    """What became of the latest write; safe for several threads."""

    def __init__(self) -> None:
        self._error: UnavailableError | None = None
        self._trying = Lock()

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Within this something is written; that another writer was first says nothing."""
        try:
            yield
        except UnavailableError as error:
            if error.field == DATABASE_FIELD:
                self._error = error
            raise
        self._error = None

    def require(self, attempt: Callable[[], None]) -> None:
        """Where the latest write failed for the database's sake, require that `attempt`, which writes, succeeds; one at a time.

        Raises:
            UnavailableError: it does not, or another thread still tries.
        """
        error = self._error
        if error is None:
            return
        if not self._trying.acquire(blocking=False):
            raise error_from(error.as_dict())
        try:
            attempt()
        finally:
            self._trying.release()
