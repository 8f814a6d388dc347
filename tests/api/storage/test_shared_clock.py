"""Deadlines pass by the database's clock, whatever the machine's says."""

from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest
from starlette.testclient import TestClient

from api.app import create_app
from api.moments import moment_of
from api.storage.database import Database
from api.storage.shared_clock import SharedClock
from tests.api.requests import EVENTS, JOB, event, new_job

WAITS = {"requires_approval": True, "approval_timeout_seconds": 600.0, "on_approval_timeout": "approve"}


def an_hour_ahead(_database=None):
    return datetime.now(UTC) + timedelta(hours=1)


@pytest.mark.both_databases
def test_no_plan_is_approved_in_vain_where_a_services_own_clock_is_ahead(settings, monkeypatch):
    with TestClient(create_app(settings)) as one:
        one.post("/v1/jobs", json=new_job(handling=WAITS))
        assert one.post(EVENTS, json=event("a", 0, "w00")).status_code == 200

    for module in ("api.moments", "api.storage.shared_clock"):
        monkeypatch.setattr(f"{module}.utc_now", an_hour_ahead)
    with TestClient(create_app(settings)) as other:
        assert other.app.state.desk.service.expire("llama").deadline is not None
        assert other.get(f"{JOB}/plans/1").json()["standing"]["status"] == "proposed"


def test_it_follows_the_databases_clock_where_that_is_set(database_url, monkeypatch):
    with closing(Database(database_url)) as database:
        clock = SharedClock(database)
        monkeypatch.setattr(Database, "now", an_hour_ahead)
        clock.look()
        assert abs(moment_of(clock.now()) - an_hour_ahead()) < timedelta(minutes=1)
