"""What is too old is deleted a part at a time; rows that somebody holds keep neither the others nor whoever deletes them."""

from collections.abc import Iterator
from contextlib import closing, contextmanager

import httpx2
import pytest
from sqlalchemy import Engine, create_engine, insert, select

from api.access.audit import Auditor
from api.storage.database import Database
from api.storage.sweeping import sweep
from api.storage.tables import AUDIT, DELIVERIES
from tests.api.requests import EVENTS, JOB, event, new_job
from tests.api.webhooks.receiver import receiver
from tests.api.webhooks.test_webhooks import SECRET
from tests.databases import emptied
from tests.services import service

LONG_AGO, THEN, LATELY = (f"20{year}-01-01T00:00:00.000000Z" for year in (10, 15, 20))


def record(request: str, at: str = LONG_AGO) -> dict:
    return {"at": at, "address": "192.0.2.1", "method": "POST", "status": 201, "request": request}


def delivery(number: int) -> dict:
    return {
        "job": "llama",
        "webhook": "site",
        "event": f"old{number}",
        "body": "{}",
        "created_at": LONG_AGO,
        "status": "delivered",
        "attempts": 1,
        "due_at": LONG_AGO,
        "retry_until": LONG_AGO,
    }


@pytest.fixture
def postgres_url(migrated_url: str) -> str:
    return emptied(migrated_url)


@contextmanager
def somebody(url: str) -> Iterator[Engine]:
    """Who has a database open, and may leave a transaction open for as long as they like."""
    engine = create_engine(url)
    try:
        yield engine
    finally:
        engine.dispose()


def found(database: Database) -> list[str]:
    with database.reading() as connection:
        return list(connection.execute(select(AUDIT.c.request).order_by(AUDIT.c.number)).scalars())


@pytest.mark.both_databases
def test_a_part_at_a_time_until_nothing_old_is_left(database_url):
    with closing(Database(database_url)) as database:
        with database.writing() as connection:
            connection.execute(insert(AUDIT), [*(record(f"old{number}") for number in range(5)), record("new", LATELY)])
        for deleted, left in ((2, 4), (2, 2), (1, 1), (0, 1)):
            with database.writing() as connection:
                assert sweep(connection, AUDIT, AUDIT.c.at < THEN, most=2) == deleted
            assert len(found(database)) == left
        assert found(database) == ["new"]


def test_a_record_that_somebody_holds_keeps_neither_others_nor_new_ones(postgres_url):
    with closing(Database(postgres_url)) as database, somebody(postgres_url) as other:
        auditor = Auditor(database, keep_days=1)
        with database.writing() as connection:
            connection.execute(insert(AUDIT), [record("held"), record("old")])
        with other.begin() as connection:
            connection.execute(select(AUDIT).where(AUDIT.c.request == "held").with_for_update())
            auditor.prune()
            assert found(database) == ["held"]


@pytest.mark.processes
def test_webhooks_are_told_while_somebody_holds_an_old_delivery(postgres_url):
    """As an administrator does who looks at it in a transaction that stays open."""
    with receiver() as site, closing(Database(postgres_url)) as database, somebody(postgres_url) as other:
        with service(postgres_url) as first, httpx2.Client(base_url=first.url) as client:
            assert client.post("/v1/jobs", json=new_job()).status_code == 201
            webhook = {"id": "site", "url": site.url, "secret": SECRET}
            assert client.post(f"{JOB}/webhooks", json=webhook).status_code == 201
        with database.writing() as connection:
            connection.execute(insert(DELIVERIES), [delivery(number) for number in range(3)])
        with other.begin() as connection:
            connection.execute(select(DELIVERIES).where(DELIVERIES.c.event == "old1").with_for_update())
            with service(postgres_url) as second, httpx2.Client(base_url=second.url) as client:
                assert client.post(EVENTS, json=event("a", 0, "w05")).status_code == 200
                site.wait_for(1)
                with database.reading() as reading:
                    left = reading.execute(select(DELIVERIES.c.event).where(DELIVERIES.c.due_at < THEN)).scalars().all()
            assert left == ["old1"]
            assert connection.execute(select(1)).scalar_one(), "it was held until here"
