"""A service on a database of its own, and a job in it; tests marked `both_databases` run on SQLite and on PostgreSQL."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from fastapi import FastAPI
from starlette.testclient import TestClient

from api import assembly, logs
from api.app import create_app
from api.decisions import ahead, forkserver, warm
from api.settings import Settings
from tests.api.requests import new_job
from tests.databases import KINDS, POSTGRESQL, SQLITE, PostgreSql, emptied, postgresql, prepare


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "database_kind" in metafunc.fixturenames and metafunc.definition.get_closest_marker("both_databases"):
        metafunc.parametrize("database_kind", KINDS, indirect=True)


@pytest.fixture(scope="package", autouse=True)
def _quiet() -> Iterator[None]:
    logs.configure(Settings(log_level="error", log_format="json"))
    yield
    structlog.reset_defaults()


class Lasting(forkserver.ForkServer):
    """One that the services which end leave to the next."""

    def close(self) -> None: ...


@pytest.fixture(scope="session", autouse=True)
def fork_server() -> Iterator[Lasting]:
    """Of all services in this process, for it takes two seconds to begin; a test that wants it to end makes its own."""
    shared = Lasting(warm.prepare)
    shared.fork(print).close()  # so that it is there before any test, and none is said to have left it
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(assembly, "fork_server", lambda: shared)
        patch.setattr(ahead, "NICENESS", 0)  # less urgent than tests that are less urgent already, it would take minutes
        yield shared
    forkserver.ForkServer.close(shared)


@pytest.fixture
def talkative() -> Iterator[None]:
    """Everything is logged."""
    logs.configure(Settings(log_level="debug"))
    yield
    logs.configure(Settings(log_level="error", log_format="json"))


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgreSql]:
    """One server for the whole session, started when the first test wants it."""
    with postgresql() as server:
        yield server


@pytest.fixture(scope="session")
def migrated_url(postgres: PostgreSql) -> str:
    """A PostgreSQL database that the service has prepared, for one test after the other."""
    url = postgres.new()
    prepare(url)
    return url


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite database that the service has prepared, to be copied."""
    path = tmp_path_factory.mktemp("migrated") / "kintsugi.sqlite3"
    prepare(f"sqlite:///{path}")
    return path


@pytest.fixture
def database_kind(request: pytest.FixtureRequest) -> str:
    return getattr(request, "param", SQLITE)


@pytest.fixture
def database_url(database_kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A prepared database of the kind that the test asks for, without rows."""
    if database_kind == POSTGRESQL:
        return emptied(request.getfixturevalue("migrated_url"))
    path = tmp_path / "kintsugi.sqlite3"
    shutil.copy(request.getfixturevalue("migrated_file"), path)
    return f"sqlite:///{path}"


@pytest.fixture
def empty_url(database_kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database without tables."""
    if database_kind == POSTGRESQL:
        server: PostgreSql = request.getfixturevalue("postgres")
        url = server.new()
        yield url
        server.drop(url)
        return
    yield f"sqlite:///{tmp_path}/empty.sqlite3"


@pytest.fixture
def settings(database_url: str) -> Settings:
    return Settings(database_url=database_url, max_body_bytes=1_000_000, max_wait_seconds=30.0, max_simulation_seconds=600.0)


@pytest.fixture
def app(settings: Settings) -> FastAPI:
    return create_app(settings)


@pytest.fixture
def client(app: FastAPI) -> Iterator[TestClient]:
    with TestClient(app) as client:
        yield client


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def job(client: TestClient) -> dict[str, Any]:
    response = client.post("/v1/jobs", json=new_job())
    assert response.status_code == 201, response.text
    return response.json()
