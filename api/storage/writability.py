"""Whether the database takes what is written: tried once a write failed, until an attempt succeeds."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock

from api.storage.engines import DATABASE_FIELD
from kintsugi.core.errors import UnavailableError, error_from


class FailedWrite:
    """The latest write that failed; safe for several threads."""

    def __init__(self) -> None:
        self._error: UnavailableError | None = None
        self._trying = Lock()

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Within this something is written.

        That another writer was first says nothing; nor does a success: a full disk may have room for little, as of the audit log.
        """
        try:
            yield
        except UnavailableError as error:
            if error.field == DATABASE_FIELD:
                self._error = error
            raise

    def require(self, attempt: Callable[[], None]) -> None:
        """Where a write failed for the database's sake, require that `attempt`, which writes, succeeds, once; one at a time.

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
            if self._error is error:  # and no other one failed meanwhile
                self._error = None
        finally:
            self._trying.release()
