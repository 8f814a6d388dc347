"""Connections to the SQL database: how transactions begin, and what its failures mean."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import local
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, NoSuchModuleError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from kintsugi.core.errors import ConflictError, InvalidInputError, UnavailableError

LOCK_SECONDS = 10.0
"""How long a writer waits for another one."""

READING = "kintsugi_reading"


class OvertakenError(ConflictError):
    """Another writer was first: look again and retry."""


class _Own(local):
    """What belongs to one thread."""

    reading: Connection | None = None


class Database:
    """Short transactions on one engine; SQLite writes ahead and syncs fully."""

    def __init__(self, url: str) -> None:
        self._engine = _engine(url)
        self._own = _Own()

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
        with _translated(), self._engine.connect().execution_options(**{READING: True}) as connection:
            self._own.reading = connection
            try:
                yield connection
            finally:
                self._own.reading = None

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """A transaction that is durable once it is left, and undone when an exception leaves it.

        Raises:
            OvertakenError: a unique constraint says that another writer was first.
            UnavailableError: the database does not answer.
        """
        with _translated(), self._engine.begin() as connection:
            yield connection


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except IntegrityError as error:
        raise OvertakenError("another writer was first; try again") from error
    except (DBAPIError, PoolTimeoutError) as error:
        reason = getattr(error, "orig", None) or error
        raise UnavailableError(f"the database does not answer: {reason}", field="database_url") from error


def _engine(url: str) -> Engine:
    try:
        parsed = make_url(url)
        is_sqlite = parsed.get_backend_name() == "sqlite"
        if is_sqlite and parsed.database in (None, "", ":memory:"):
            raise InvalidInputError("names no file; a database in memory would not outlive the service", field="database_url")
        engine = create_engine(parsed, pool_timeout=LOCK_SECONDS, pool_pre_ping=not is_sqlite, hide_parameters=True)
    except (ArgumentError, NoSuchModuleError, ModuleNotFoundError) as error:
        message = f"is no database URL that can be used ({error}); try sqlite:///kintsugi.sqlite3"
        raise InvalidInputError(message, field="database_url") from error
    if is_sqlite:
        event.listen(engine, "connect", _configure_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
    return engine


def _configure_sqlite(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # the driver's own BEGIN would come too late and be upgradable to a deadlock
    for pragma in (f"busy_timeout={int(LOCK_SECONDS * 1000)}", "journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}")


def _begin_sqlite(connection: Connection) -> None:
    reading = connection.get_execution_options().get(READING)
    connection.exec_driver_sql("BEGIN" if reading else "BEGIN IMMEDIATE")
