"""Transactions on the SQL database, and what its failures mean."""

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from threading import local
from typing import Any

from sqlalchemy import Connection, delete, func, insert, or_, select
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.pool import QueuePool

from api.spans import span
from api.storage.absence import Absence
from api.storage.engines import DATABASE_FIELD, POSTGRESQL, READ_ONLY, READING, SQLITE, engine_of
from api.storage.files import OneFile
from api.storage.tables import RENDEZVOUS
from api.storage.writability import FailedWrite
from kintsugi.core.errors import ConflictError, InvalidInputError, KintsugiError, UnavailableError

SERIALIZATION_FAILURES = frozenset({"40001", "40P01"})
"""PostgreSQL gave up one of two transactions that were in each other's way."""
UNIQUE_VIOLATIONS = frozenset(
    {"23505", sqlite3.SQLITE_CONSTRAINT_UNIQUE, sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY, sqlite3.SQLITE_CONSTRAINT_ROWID}
)
"""What is written is there already. Whatever else a constraint refuses says nothing of other writers."""
DISK_FULL = "53100"
IS_READ_ONLY = select(or_(func.pg_is_in_recovery(), func.current_setting("default_transaction_read_only") == "on"))
"""Whether a PostgreSQL server takes nothing from this session; transactions that read say of themselves that they do only that."""
NOW = select(func.clock_timestamp())
GIVEN_UP = "the database gave up a read that was in the way of others: {}; try again"
NO_ANSWER = "the database does not answer: {}"
ONLY_READ = (
    "the database can only be read: {}; give its file and folder to the user that runs this, or copy it into a folder of theirs"
)
WORDS = {
    sqlite3.SQLITE_CANTOPEN: f"{NO_ANSWER}; its folder must be there, and both must be open to the service",
    sqlite3.SQLITE_READONLY: ONLY_READ,
    sqlite3.SQLITE_IOERR: "the database's disk fails: {}; look at the disk, at quotas and at limits of the size of files",
    sqlite3.SQLITE_NOTADB: "the file is no SQLite database: {}; name another one, or restore a backup",
    sqlite3.SQLITE_CORRUPT: "the database is damaged: {}; stop the service, and restore a backup",
    READ_ONLY: "the database can only be read: {}; name the server that is no standby, or all with target_session_attrs=read-write",
}
"""What is told of failures that have their own ways out, with the database's own words."""
LITTLE_ROOM_BYTES = 65_536
"""Where a disk has less left, what SQLite calls an I/O error is that the files beside the database cannot grow."""


class OvertakenError(ConflictError):
    """Another writer was first: look again and retry."""


class TakenError(OvertakenError):
    """What is written is there already: whoever looks again sees it, or the database contradicts itself."""


class StorageFullError(UnavailableError):
    """The database's disk is full: what was told before is there, and nothing new is taken until there is room."""

    code = "storage_full"


class _Own(local):
    """What belongs to one thread."""

    reading: Connection | None = None


class Database:
    """Short transactions on one engine; what was written is on the disk once they are left."""

    def __init__(self, url: str, *, read_only: bool = False) -> None:
        self._engine = engine_of(url, read_only=read_only)
        file = self._engine.url.database if self._engine.dialect.name == SQLITE else None
        self._folder = None if file is None else Path(file).parent
        self._file = None if file is None or "uri" in self._engine.url.query else OneFile(self._engine, Path(file))
        options: dict[str, Any] = {READING: True}
        if self._engine.dialect.name == POSTGRESQL:
            options |= {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
        self._reading = self._engine.execution_options(**options)
        self._own = _Own()
        self._reads, self._writes = Absence(), Absence()
        self._failed_write = FailedWrite()

    def fill(self) -> None:
        """Open the connections that a SQLite file keeps, before its disk is full: to open one there may end the process (SIGBUS).

        SQLite maps a file beside the database (`-shm`), and writes where the disk has no room for it.
        """
        if isinstance(self._engine.pool, QueuePool) and self._engine.dialect.name != POSTGRESQL:
            with ExitStack() as stack, _translated(self._folder):
                for _ in range(self._engine.pool.size()):
                    stack.enter_context(self._engine.connect())

    def write_ahead(self) -> None:
        """Have a SQLite file, whoever opens it, written to a log beside it first (WAL): who reads and who writes do not wait.

        Raises:
            UnavailableError: it cannot be written, or others hold it.
        """
        if self._engine.dialect.name != POSTGRESQL:
            with _translated(self._folder), self._engine.connect() as connection:
                driver = connection.connection.driver_connection
                assert isinstance(driver, sqlite3.Connection)
                driver.execute("PRAGMA journal_mode=WAL")  # which a transaction, as SQLAlchemy begins it, does not allow

    def look_at_file(self) -> None:
        """Require of a SQLite file that it is still the one that was opened.

        Raises:
            UnavailableError: it is not; nothing is read or written any more until it is back.
        """
        if self._file is not None:
            self._file.look()

    def require_writable(self) -> None:
        """Require that it takes what is written, as far as one can tell without writing.

        Raises:
            UnavailableError: it can only be read, or does not answer.
        """
        if self._engine.dialect.name == POSTGRESQL:
            with self.reading() as connection:
                is_writable = not connection.execute(IS_READ_ONLY).scalar_one()
                if not is_writable:
                    connection.invalidate()  # the next one may lead to the server that took this one's place
        else:
            self.look_at_file()
            is_writable = self._file is None or self._file.is_writable
        if not is_writable:
            message = "the database can only be read: it is a standby, or its file or folder is not the service's to write"
            raise UnavailableError(message, field=DATABASE_FIELD)

    def require_written(self) -> None:
        """Require that something can be written now, where a write failed; of what is tried then nothing stays.

        Raises:
            UnavailableError: it cannot.
        """
        self._failed_write.require(self._try_to_write)

    def _try_to_write(self) -> None:
        row = {"run": "", "key": "", "value": b"", "version": 0, "generation": 0, "changed_at": ""}  # no request can name it
        with self.writing() as connection:
            connection.execute(insert(RENDEZVOUS), row)
            connection.execute(delete(RENDEZVOUS).where(RENDEZVOUS.c.run == "", RENDEZVOUS.c.key == ""))

    def now(self) -> datetime:
        """The present, by the clock that all processes on this database share: the server's; for a file, its machine's.

        Raises:
            UnavailableError: the database does not answer.
        """
        if self._engine.dialect.name != POSTGRESQL:
            return datetime.now(UTC)
        with self.reading() as connection:
            now: datetime = connection.execute(NOW).scalar_one()
        return now

    def close(self) -> None:
        """Give the connections back."""
        self._engine.dispose()

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A transaction that sees one state and changes nothing; within another one of the same thread, that one.

        Raises:
            UnavailableError: the database does not answer.
        """
        if self._own.reading is not None:
            yield self._own.reading
            return
        with (
            self._reads.noticed(),
            _translated(self._folder, reads=True),
            span("store.read"),
            self._reading.connect() as connection,
        ):
            self._own.reading = connection
            try:
                yield connection
            finally:
                self._own.reading = None

    @property
    def is_reading(self) -> bool:
        """Whether this thread is within a read: what it sees may be older than what others have told it."""
        return self._own.reading is not None

    @contextmanager
    def reading_anew(self) -> Iterator[Connection]:
        """As `reading`, in a transaction of its own also within another one of the same thread.

        Raises:
            UnavailableError: the database does not answer.
        """
        around, self._own.reading = self._own.reading, None
        try:
            with self.reading() as connection:
                yield connection
        finally:
            self._own.reading = around

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """A transaction that is durable once it is left, and undone when an exception leaves it.

        Raises:
            TakenError: another writer was first, by a unique constraint.
            OvertakenError: another writer was first, by the order of their transactions.
            StorageFullError: there is no room for what was written.
            UnavailableError: the database does not answer; whether it wrote is not known where it fell silent at the end.
        """
        with (
            self._failed_write.noted(),
            self._writes.noticed(),
            _translated(self._folder),
            span("store.write"),
            self._engine.begin() as connection,
        ):
            yield connection


@contextmanager
def _translated(folder: Path | None, *, reads: bool = False) -> Iterator[None]:
    try:
        yield
    except IntegrityError as error:
        raise _refusal(error) from error
    except (DBAPIError, PoolTimeoutError, sqlite3.Error) as error:
        raise _meaning(error, folder, reads=reads) from error


def _refusal(error: IntegrityError) -> KintsugiError:
    """What it means that a constraint was violated."""
    code = getattr(error.orig, "sqlstate", None) or getattr(error.orig, "sqlite_errorcode", None)
    if code in UNIQUE_VIOLATIONS:
        return TakenError("another writer was first; try again")
    way_out = "its tables are not as this version made them, or rows were taken away by hand: look at it, or restore a backup"
    reason, *_ = str(error.orig).splitlines()  # behind which PostgreSQL shows the row, secrets and all
    return UnavailableError(f"the database refuses what belongs into it: {reason}; {way_out}", field=DATABASE_FIELD)


def _meaning(error: DBAPIError | PoolTimeoutError | sqlite3.Error, folder: Path | None, *, reads: bool) -> KintsugiError:
    reason = getattr(error, "orig", None) or error
    state = getattr(reason, "sqlstate", None)
    if state in SERIALIZATION_FAILURES:
        if reads:  # as of a standby, or where tables are locked for maintenance
            what, *_ = str(reason).splitlines()
            return UnavailableError(GIVEN_UP.format(what), field=DATABASE_FIELD)
        return OvertakenError("another writer was in the way; try again")
    code = getattr(reason, "sqlite_errorcode", 0) & 0xFF  # the rest says where it happened
    if state == DISK_FULL or code == sqlite3.SQLITE_FULL or (code == sqlite3.SQLITE_IOERR and _is_full(folder)):
        return StorageFullError(f"the database's disk is full ({reason}); make room and try again", field=DATABASE_FIELD)
    if isinstance(error, DataError):
        return InvalidInputError(f"holds what the database cannot store: {reason}", field="text")
    words = WORDS.get(code) or WORDS.get(state) or NO_ANSWER
    return UnavailableError(words.format(reason), field=DATABASE_FIELD)


def _is_full(folder: Path | None) -> bool:
    try:
        return folder is not None and shutil.disk_usage(folder).free < LITTLE_ROOM_BYTES
    except OSError:
        return False
