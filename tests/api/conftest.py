"""A service on a database of its own, and a job in it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from fastapi import FastAPI
from starlette.testclient import TestClient

from api import logs
from api.app import create_app
from api.settings import Settings
from tests.api.requests import new_job


@pytest.fixture(scope="package", autouse=True)
def _quiet() -> Iterator[None]:
    logs.configure(Settings(log_level="error", log_format="json"))
    yield
    structlog.reset_defaults()


@pytest.fixture
def database_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/kintsugi.sqlite3"


@pytest.fixture
def settings(database_url: str) -> Settings:
    return Settings(database_url=database_url, max_body_bytes=1_000_000, max_wait_seconds=30.0)


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
