"""Probes tell the truth, and metrics count what happened."""

import sqlite3
from contextlib import closing

import pytest
from sqlalchemy import create_engine, make_url, text
from starlette.testclient import TestClient

from api.app import create_app
from api.routes import health
from api.storage import absence, engines
from api.storage.database import StorageFullError
from api.storage.upgrade import HEAD
from api.storage.writability import FailedWrite
from tests.api.requests import EVENTS, JOB, assert_ready, event, new_job


def test_probes(client):
    assert client.get("/healthz").json() == {"status": "ok"}
    assert client.get("/readyz").json() == {"status": "ok"}
    assert [client.head(path).status_code for path in ("/healthz", "/readyz")] == [200, 200]


def test_a_database_that_cannot_be_read_is_told(settings):
    with TestClient(create_app(settings)) as client:
        execute(settings.database_url, "drop table alembic_version")  # bytes that are overwritten may still be in SQLite's cache
        response = client.get("/readyz")
        assert response.status_code == 503
        assert response.json()["error"]["code"] == "unavailable"
        assert client.get("/healthz").status_code == 200


@pytest.fixture
def other_version(database_url, request):
    """The database is of another version for as long as the test takes."""
    change = "update alembic_version set version_num = :version"
    execute(database_url, change, version=request.param)
    yield request.param
    execute(database_url, change, version=HEAD)


def execute(url, statement, **values):
    engine = create_engine(url)
    try:
        with engine.begin() as connection:
            connection.execute(text(statement), values)
    finally:
        engine.dispose()


@pytest.mark.both_databases
@pytest.mark.parametrize("other_version", ["0001", "9999"], indirect=True)
def test_a_process_of_another_version_than_its_database_is_not_ready(client, other_version):
    for probe in ("/readyz", "/readyz?reads_only=true"):
        response = client.get(probe)
        assert response.status_code == 503
        assert (response.json()["error"]["field"], response.json()["error"]["value"]) == ("database_url", other_version)


def test_a_process_that_could_not_write_is_ready_once_it_can_again(settings, database_url, monkeypatch):
    monkeypatch.setattr(engines, "LOCK_SECONDS", 0.3)
    monkeypatch.setattr(absence, "LONG_SECONDS", 3600.0)  # no wait is so long that others are told of it at once
    monkeypatch.setattr(health, "PROBE_SECONDS", 60.0)  # as long as it takes to tell what failed
    with TestClient(create_app(settings)) as client, closing(sqlite3.connect(make_url(database_url).database)) as other:
        client.post("/v1/jobs", json=new_job())
        other.execute("begin immediate")
        assert client.get("/readyz").status_code == 200  # nobody knows it yet
        assert client.post(EVENTS, json=event("a", 0, "w00")).status_code == 503
        for _ in range(2):
            told = client.get("/readyz")
            assert told.status_code == 503
            assert "database is locked" in told.json()["detail"]
        assert client.get(JOB).status_code == 200
        other.rollback()
        assert_ready(client)
        assert other.execute("select count(*) from rendezvous").fetchone() == (0,)


def test_a_probe_does_not_wait_for_whoever_holds_the_database(settings, database_url, monkeypatch):
    monkeypatch.setattr(engines, "LOCK_SECONDS", 1.5)
    monkeypatch.setattr(absence, "LONG_SECONDS", 3600.0)  # no wait is so long that others are told of it at once
    monkeypatch.setattr(health, "PROBE_SECONDS", 0.1)
    with TestClient(create_app(settings)) as client, closing(sqlite3.connect(make_url(database_url).database)) as other:
        client.post("/v1/jobs", json=new_job())
        other.execute("begin immediate")
        assert client.post(EVENTS, json=event("a", 0, "w00")).status_code == 503
        told = client.get("/readyz")
        assert (told.status_code, told.json()["error"]["code"]) == (503, "unavailable")
        assert "does not answer within 0.1 s" in told.json()["detail"]
        monkeypatch.setattr(health, "PROBE_SECONDS", 60.0)
        assert client.get("/readyz?reads_only=true").json() == {"status": "ok"}
        other.rollback()


def test_while_one_tries_others_are_told_what_failed():
    failed, told = FailedWrite(), []

    def attempt():
        with pytest.raises(StorageFullError, match="make room"):
            failed.require(lambda: told.append("tried twice at once"))
        with failed.noted():
            told.append("tried")

    failed.require(attempt)
    with pytest.raises(StorageFullError), failed.noted():
        raise StorageFullError("make room", field="database_url")
    failed.require(attempt)
    failed.require(attempt)
    assert told == ["tried"]


def test_a_write_that_finds_room_says_nothing_of_those_that_found_none():
    """The audit log of refused events goes on where no event has room."""
    failed, told = FailedWrite(), []
    with pytest.raises(StorageFullError), failed.noted():
        raise StorageFullError("make room", field="database_url")
    with failed.noted():
        told.append("logged")
    for _ in range(2):
        failed.require(lambda: told.append("tried"))
    assert told == ["logged", "tried"]


def test_metrics_count_events_decisions_and_requests(client, job):
    client.post(EVENTS, json=event("a", 0, "w00"))
    client.post(EVENTS, json=event("a", 0, "w00"))
    lines = client.get("/metrics").text.splitlines()
    assert 'kintsugi_events_total{kind="worker_failed"} 1.0' in lines
    assert "kintsugi_planning_seconds_count 2.0" in lines
    assert 'kintsugi_http_requests_total{method="POST",route="/v1/jobs/{job}/events",status="200"} 2.0' in lines


def test_two_applications_keep_their_metrics_apart(settings):
    with TestClient(create_app(settings)) as one, TestClient(create_app(settings)) as other:
        one.get("/healthz")
        assert "/healthz" in one.get("/metrics").text
        assert "/healthz" not in other.get("/metrics").text


def test_every_answer_has_a_request_id(client):
    first, second = (client.get("/healthz").headers["X-Request-Id"] for _ in range(2))
    assert first != second
