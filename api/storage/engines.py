"""Connections to SQLite and PostgreSQL: durable, each wait bounded."""

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, ExceptionContext, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from api.storage.files import is_only_log_left
from kintsugi.core.errors import InvalidInputError

LOCK_SECONDS = 10.0
"""How long a writer waits for another one."""
STATEMENT_SECONDS = 30.0
IDLE_SECONDS = LOCK_SECONDS / 2
"""How long PostgreSQL waits for the next statement of a writer, with its locks held; those who wait for them wait longer."""
CONNECT_SECONDS = 5
LIMITS = {"lock_timeout": LOCK_SECONDS, "statement_timeout": STATEMENT_SECONDS}
"""What each session with PostgreSQL is held to, by the names of its settings."""

READING = "kintsugi_reading"
"""Execution option of connections whose transactions change nothing."""

DATABASE_FIELD = "database_url"
"""Names the database in errors: what is unavailable is that one, and nothing else."""

SQLITE, POSTGRESQL = "sqlite", "postgresql"

READ_ONLY = "25006"
"""PostgreSQL's code for a write where it only lets read."""


def engine_of(url: str, *, read_only: bool = False) -> Engine:
    """An engine for `url`; nothing is connected yet.

    Args:
        url: SQLAlchemy's form, of SQLite or PostgreSQL.
        read_only: whether the database refuses to be changed through this engine.

    Raises:
        InvalidInputError: the URL cannot be used; of a read-only one also where there is no such file.
    """
    try:
        parsed = _parsed(url)
        make = {SQLITE: _sqlite, POSTGRESQL: _postgresql}.get(parsed.get_backend_name())
        if make is None:
            raise ArgumentError(f"{parsed.get_backend_name()} is neither SQLite nor PostgreSQL")
        return make(parsed, read_only)
    except ModuleNotFoundError as error:
        hint = "pip install 'kintsugi[postgresql]'" if error.name and error.name.startswith("psycopg") else "install it"
        raise InvalidInputError(f"needs the driver {error.name}: {hint}", field=DATABASE_FIELD) from error
    except (ArgumentError, NoSuchModuleError) as error:
        message = (
            f"is no database URL that can be used ({error}); try sqlite:///kintsugi.sqlite3 or postgresql+psycopg://user@host/name"
        )
        raise InvalidInputError(message, field=DATABASE_FIELD) from error


def _parsed(url: str) -> URL:
    try:
        return make_url(url)
    except ValueError as error:  # which shows what may belong to a password
        reason = "its port is no number; in user and password write @ as %40, : as %3A and / as %2F"
        raise ArgumentError(reason) from error


def _postgresql(url: URL, read_only: bool) -> Engine:
    given = {
        "connect_timeout": CONNECT_SECONDS,
        "tcp_user_timeout": int(STATEMENT_SECONDS * 1000),  # a host that vanished is told as soon as one that is slow
        "prepare_threshold": None,  # each read's end would drop them, and behind a pooler they may be those of others
    }
    if url.drivername == POSTGRESQL:
        url = url.set(drivername="postgresql+psycopg")
    arguments = {name: value for name, value in given.items() if name not in url.query}
    limits = {} if "options" in url.query else LIMITS  # which may allow statements more time
    engine = _engine(url, connect_args=arguments, pool_pre_ping=True)
    event.listen(engine, "begin", _bound)
    event.listen(engine, "checkin", _leave_writing_to_server)
    event.listen(engine, "do_connect", _connecting(limits))
    if read_only:
        return engine.execution_options(postgresql_readonly=True)
    event.listen(engine, "handle_error", _leave_if_read_only)
    return engine


def _connecting(limits: Mapping[str, float]) -> Callable[..., Any]:
    def connect(_dialect: Any, _record: Any, arguments: list[Any], options: dict[str, Any]) -> Any:
        from api.storage.silence import connected

        return connected(arguments, options, limits=limits)

    return connect


def _sqlite(url: URL, read_only: bool) -> Engine:
    if url.database in (None, "", ":memory:"):
        raise InvalidInputError("names no file; a database in memory would not outlive the service", field=DATABASE_FIELD)
    assert url.database is not None
    if read_only and not Path(url.database).exists():
        raise InvalidInputError("there is no such file", field=DATABASE_FIELD, value=url.database)
    if "uri" not in url.query:  # which says all this in SQLite's own words
        _check_file(url, Path(url.database))
    engine = _engine(url)
    if not read_only and "uri" not in url.query:
        event.listen(engine, "do_connect", _making(Path(url.database)), once=True)
    event.listen(engine, "connect", _configure_reading if read_only else _configure)
    event.listen(engine, "begin", _begin)
    return engine


def _engine(url: URL, **options: Any) -> Engine:
    try:
        return create_engine(url, pool_timeout=LOCK_SECONDS, hide_parameters=True, **options)
    except ValueError as error:  # of the dialect, which converts what stands behind the ?
        raise ArgumentError(f"behind the ? {error}") from error


def _check_file(url: URL, path: Path) -> None:
    reason, value = "", str(path)
    if url.query:
        reason, value = "has parameters that SQLite would not heed; leave out what stands behind the ?", ", ".join(url.query)
    elif "\0" in str(path):
        reason = "holds a zero byte, which no name of a file does"
    elif path.is_dir():
        reason = "is a folder; name a file in it"
    elif not path.parent.is_dir():
        reason = "lies in a folder that is not there; make it, or name another file"
    elif is_only_log_left(path):
        reason = "is not there, and its log (-wal) is: put the file back beside it, or remove the log and all that was written last"
    if reason:
        raise InvalidInputError(reason, field=DATABASE_FIELD, value=value)


def _making(path: Path) -> Callable[..., None]:
    """Makes a database that is not there for its owner alone, and so SQLite what lies beside it: it holds webhooks' secrets."""

    def make(*_: Any) -> None:
        with suppress(OSError):  # one that is there stays as it is; what else is wrong SQLite says
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))

    return make


def _configure(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # the driver's own BEGIN would come too late and be upgradable to a deadlock
    for pragma in (f"busy_timeout={int(LOCK_SECONDS * 1000)}", "synchronous=FULL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}")


def _configure_reading(connection: Any, _record: Any) -> None:
    connection.isolation_level = None
    for pragma in (f"busy_timeout={int(LOCK_SECONDS * 1000)}", "query_only=ON"):
        connection.execute(f"PRAGMA {pragma}")


def _bound(connection: Connection) -> None:
    """Hold a transaction to what its session is not held to.

    A process that is stopped as it writes loses its locks; one that reads holds none, and may plan meanwhile.
    """
    limits = dict(getattr(connection.connection.driver_connection, "limits", {}))
    if not connection.get_execution_options().get(READING):
        limits["idle_in_transaction_session_timeout"] = IDLE_SECONDS
    if limits:
        connection.exec_driver_sql(setting(limits, is_local=True))


def setting(limits: Mapping[str, float], *, is_local: bool) -> str:
    """The statement that makes these settings of PostgreSQL, in seconds, for a transaction or for the session."""
    calls = (f"set_config('{name}', '{int(seconds * 1000)}', {is_local})" for name, seconds in limits.items())
    return f"SELECT {', '.join(calls)}"


def _leave_writing_to_server(connection: Any, _record: Any) -> None:
    """SQLAlchemy has a connection that only read insist on writing from then on, whatever the server's administrator set."""
    if connection is not None:
        connection.read_only = None


def _leave_if_read_only(context: ExceptionContext) -> None:
    """After a refused write all connections are made anew: they stay as the server was when they were made."""
    if getattr(context.original_exception, "sqlstate", None) == READ_ONLY:
        context.is_disconnect = True


def _begin(connection: Connection) -> None:
    reading = connection.get_execution_options().get(READING)
    connection.exec_driver_sql("BEGIN" if reading else "BEGIN IMMEDIATE")
