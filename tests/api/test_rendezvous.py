"""Values that torchrun's agents share: a write that is asked for again counts once, whoever wrote meanwhile."""

import base64
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import datetime, timedelta

import pytest
from sqlalchemy import func, select
from starlette.testclient import TestClient

from api import rendezvous
from api.app import create_app
from api.rendezvous import Meetings, MeetingWrite
from api.storage.database import Database
from api.storage.tables import RENDEZVOUS_WRITES

pytestmark = pytest.mark.both_databases

PLACE = "/v1/rendezvous/run/count"


class Ahead(datetime):
    @classmethod
    def now(cls, tz=None):
        return datetime.now(tz) + timedelta(hours=1)


def put(client, value, expected, key=None):
    body = {"value": base64.b64encode(value).decode(), "expected_version": expected}
    return client.put(PLACE, json=body, headers={} if key is None else {"Idempotency-Key": key})


def content(client):
    return base64.b64decode(client.get(PLACE).json()["value"])


def test_a_write_that_is_asked_for_again_counts_once(client):
    first = put(client, b"1", 0, "a")
    assert put(client, b"2", 1).json()["is_set"]
    assert put(client, b"1", 0, "a").json() == first.json()
    assert content(client) == b"2"
    assert not put(client, b"1", 0, "b").json()["is_set"]


def test_what_replaces_anything_replaces_nothing_later_when_it_is_asked_for_again(client):
    put(client, b"mine", None, "a")
    put(client, b"theirs", None, "b")
    assert put(client, b"mine", None, "a").json()["version"] == 1
    assert content(client) == b"theirs"


def test_what_is_dropped_again_is_not_what_was_set_meanwhile(client):
    put(client, b"old", 0)
    for _ in range(2):
        assert client.delete(PLACE, headers={"Idempotency-Key": "a"}).status_code == 204
        put(client, b"new", 0)
    assert content(client) == b"new"


def test_a_write_that_was_refused_may_be_tried_again_with_its_key(client):
    assert not put(client, b"2", 1, "a").json()["is_set"]
    put(client, b"1", 0)
    assert put(client, b"2", 1, "a").json()["is_set"]


def test_a_key_of_another_write_is_refused_by_name(client):
    put(client, b"1", 0, "a")
    refused = put(client, b"2", 1, "a")
    assert refused.status_code == 409
    assert refused.json()["error"] == {
        "code": "conflict",
        "field": "Idempotency-Key",
        "value": "a",
        "message": "was used for another request; choose a new key",
    }
    assert client.delete(PLACE, headers={"Idempotency-Key": "a"}).status_code == 409


def test_another_service_on_the_database_knows_the_write_too(settings):
    with TestClient(create_app(settings)) as one:
        put(one, b"1", 0, "a")
        put(one, b"2", 1)
    with TestClient(create_app(settings)) as other:
        assert put(other, b"1", 0, "a").json()["is_set"]
        assert content(other) == b"2"


def test_a_write_is_known_also_after_one_at_a_service_whose_own_clock_is_ahead(client, monkeypatch):
    put(client, b"1", 0, "a")
    monkeypatch.setattr(rendezvous, "datetime", Ahead)
    put(client, b"2", 1, "b")
    assert put(client, b"1", 0, "a").json()["is_set"]


def test_writes_are_forgotten_once_nobody_asks_for_them_again(client, database_url, monkeypatch):
    put(client, b"1", 0, "a")
    monkeypatch.setattr(rendezvous, "REPEATED", timedelta(0))
    put(client, b"2", 1, "b")
    database = Database(database_url)
    try:
        with database.reading() as connection:
            assert connection.execute(select(RENDEZVOUS_WRITES.c.write)).scalars().all() == ["b"]
    finally:
        database.close()


def test_of_writers_that_meet_each_learns_whether_it_was_first(database_url):
    """None is told to ask again: torchrun would take that for the end of its rendezvous."""

    def count(meetings):
        for number in range(10):
            is_set = False
            while not is_set:
                version = meetings.look("run", "count").version
                is_set = meetings.put(
                    "run", "count", MeetingWrite(value="", expected_version=version), key(meetings, number)
                ).is_set

    def key(meetings, number):
        return f"{id(meetings)} {number}"

    with ExitStack() as closing:
        databases = [Database(database_url) for _ in range(3)]
        for database in databases:
            closing.callback(database.close)
        first = Meetings(databases[0])
        first.put("run", "count", MeetingWrite(value=""))
        with ThreadPoolExecutor(3) as threads:
            list(threads.map(count, map(Meetings, databases)))
        assert first.look("run", "count").version == 31
        with databases[0].reading() as connection:
            assert connection.execute(select(func.count()).select_from(RENDEZVOUS_WRITES)).scalar_one() == 30
