"""The one file of a SQLite database, for as long as a process has it open."""

import os
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, event

from kintsugi.core.errors import UnavailableError

TAKEN_AWAY = (
    "the database's file was taken away while the service ran: put it back beside the file that ends with -wal, which holds what "
    "was written last"
)
REPLACED = (
    "another file took the place of the database's while the service ran: put the old one back; or, where the new one is to count, "
    "stop the service, remove what ends with -wal and -shm beside it, which holds what was last written to the old one, and start "
    "it again"
)


class OneFile:
    """Has an engine connect to nothing but the file that it opened first.

    Connections to the old file write what nobody reads any more, and one to a file in its place would take the old one's log
    (`-wal`) for its own, which damages it.
    """

    def __init__(self, engine: Engine, path: Path) -> None:
        self._engine = engine
        self._path = path
        self._opened: tuple[int, int] | None = None
        event.listen(engine, "do_connect", self._require)
        event.listen(engine, "connect", self._note)

    def look(self) -> None:
        """Have all transactions refused from now on where another file has taken its place, until it is back.

        Raises:
            UnavailableError: one has, or the file was taken away.
        """
        try:
            self._require()
        except UnavailableError:
            self._engine.dispose()
            raise

    @property
    def is_writable(self) -> bool:
        """Whether this process may write it, and the files that SQLite puts beside it."""
        return all(os.access(path, os.W_OK) for path in (self._path, self._path.parent))

    def _note(self, *_: Any) -> None:
        self._opened = self._opened or self._identity()

    def _require(self, *_: Any) -> None:
        if self._opened is None or (found := self._identity()) == self._opened:
            return
        raise UnavailableError(TAKEN_AWAY if found is None else REPLACED, field="database_url")

    def _identity(self) -> tuple[int, int] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino


def is_only_log_left(path: Path) -> bool:
    """Whether a database's log lies there without the database: SQLite would begin an empty one, and remove the log."""
    return not _size_of(path) and _size_of(path.with_name(f"{path.name}-wal")) > 0


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
