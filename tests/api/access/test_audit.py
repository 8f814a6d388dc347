"""The audit log outlives its process, forgets what is too old, and cannot be flooded."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from datetime import timedelta

import anyio
import pytest
from sqlalchemy import func, insert, select, text
from sqlalchemy.event import listen
from starlette.testclient import TestClient

from api.access.audit import Auditor, AuditRecord
from api.app import create_app
from api.moments import text_of, utc_now
from api.settings import Settings
from api.storage.database import Database
from api.storage.tables import AUDIT
from kintsugi.core.errors import UnavailableError
from tests.api.access.world import OWN, guarded
from tests.api.requests import event
from tests.databases import emptied
from tests.patience import eventually

KEEP_DAYS = 400


def record(request: str = "r", *, days_ago: float = 0.0) -> AuditRecord:
    return AuditRecord(
        at=text_of(utc_now() - timedelta(days=days_ago)),
        token=None,
        name=None,
        address="192.0.2.1",
        method="POST",
        route="/v1/jobs",
        job=None,
        status=201,
        request=request,
    )


def values(*records: AuditRecord) -> list[dict]:
    return [{name: getattr(one, name) for name in AuditRecord.__slots__} for one in records]


@pytest.fixture
def database(database_url):
    with closing(Database(database_url)) as database:
        yield database


@pytest.fixture
def auditor(database):
    return Auditor(database, keep_days=KEEP_DAYS)


def cut_after_commit(database):
    """The next commit is made, and its connection lost before that is told."""

    def commit_and_cut(connection):
        driver = connection.connection.driver_connection
        driver.execute("COMMIT")
        driver.close()

    listen(database._engine, "commit", commit_and_cut, once=True)


def requests_in(auditor) -> list[str]:
    return [entry.record.request for entry in auditor.page(None, 1_000).entries]


def test_what_was_done_is_known_after_a_restart(database_url, database):
    query = select(func.count()).select_from(AUDIT)
    with guarded(database_url) as world:
        world.ask("POST", f"/v1/jobs/{OWN}/events", "own reporter", json=event("a", 0, "w05"))
        with anyio.from_thread.start_blocking_portal() as portal:
            portal.call(until, lambda: count(database, query) == 3)
        world.client.get("/v1/jobs")
        before = world.ask("GET", "/v1/audit", "admin").json()
        world.ask("GET", "/v1/tokens", "reader")
    with TestClient(create_app(Settings(database_url=database_url))) as client:
        after = client.get("/v1/audit", headers=world.bearer("admin")).json()
    assert after["entries"][:-1] == before["entries"]
    last = after["entries"][-1]["record"]
    assert (last["name"], last["route"], last["status"]) == ("reader", "/v1/tokens", 403)


def count(database, query) -> int:
    with database.reading() as connection:
        return int(connection.execute(query).scalar_one())


async def until(is_so) -> None:
    """Records are written by themselves, without being asked for."""
    with anyio.fail_after(60):
        while not await anyio.to_thread.run_sync(is_so):
            await anyio.sleep(0.02)


@pytest.mark.both_databases
def test_what_is_too_old_is_deleted_and_nothing_else(database, auditor, monkeypatch):
    monkeypatch.setattr("api.access.audit.PRUNED_AT_ONCE", 2)
    old = [record(f"old{number}", days_ago=KEEP_DAYS + 0.01) for number in range(5)]
    kept = [record("kept", days_ago=KEEP_DAYS - 0.01)]
    with database.writing() as connection:
        connection.execute(insert(AUDIT), values(*old[:3], *kept, *old[3:]))
    for left in (3, 1, 0):
        auditor.prune()
        found = requests_in(auditor)
        assert "kept" in found
        assert len(found) == 1 + left


@pytest.mark.anyio
async def test_a_quiet_service_deletes_what_is_too_old_a_part_at_a_time(database, auditor, monkeypatch):
    monkeypatch.setattr("api.access.audit.PRUNED_AT_ONCE", 2)
    monkeypatch.setattr("api.access.audit.FLUSH_SECONDS", 0.01)
    with database.writing() as connection:
        connection.execute(insert(AUDIT), values(*(record("old", days_ago=KEEP_DAYS + 1) for _ in range(5)), record("kept")))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(auditor.run)
        await until(lambda: requests_in(auditor) == ["kept"])
        auditor.close()


@pytest.mark.anyio
async def test_it_is_looked_for_old_records_now_and_then_alone(database, auditor, monkeypatch):
    monkeypatch.setattr("api.access.audit.FLUSH_SECONDS", 0.01)
    with database.writing() as connection:
        connection.execute(insert(AUDIT), values(record("first", days_ago=KEEP_DAYS + 1)))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(auditor.run)
        await until(lambda: requests_in(auditor) == [])
        with database.writing() as connection:
            connection.execute(insert(AUDIT), values(record("old", days_ago=KEEP_DAYS + 1)))
        auditor.add(record("second"))
        await until(lambda: not auditor._unwritten)
        auditor.close()
    assert requests_in(auditor) == ["old", "second"]


@pytest.mark.anyio
async def test_what_comes_while_a_service_that_stops_writes_what_came_before_is_written_as_well(database, auditor, monkeypatch):
    writing, begun = database.writing, []

    @contextmanager
    def writing_as_it_stops():
        with writing() as connection:
            yield connection
        if not begun:
            begun.append(True)
            auditor.add(record("late"))
            anyio.from_thread.run_sync(auditor.close)

    monkeypatch.setattr(database, "writing", writing_as_it_stops)
    auditor.add(record("early"))
    with anyio.fail_after(60):
        await auditor.run()
    assert requests_in(auditor) == ["early", "late"]


def test_who_read_a_record_misses_none_of_a_lower_number_that_another_process_is_writing(migrated_url):
    waits = text("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
    with (
        closing(Database(emptied(migrated_url))) as slow,
        closing(Database(migrated_url)) as quick,
        ThreadPoolExecutor(1) as threads,
    ):
        seen, writing, one, other = [], slow.writing, *(Auditor(database, keep_days=KEEP_DAYS) for database in (slow, quick))

        @contextmanager
        def writing_slowly():
            with writing() as connection:
                yield connection
                other.add(record("of the other"))
                told = threads.submit(other.write)
                assert eventually(lambda: told.done() or count(quick, waits), bool)
                seen.extend(requests_in(Auditor(quick, keep_days=KEEP_DAYS)))

        slow.writing = writing_slowly
        one.add(record("of the one"))
        one.write()
        threads.shutdown()
        found = requests_in(Auditor(quick, keep_days=KEEP_DAYS))
        assert sorted(found) == ["of the one", "of the other"]
        assert seen == found[: len(seen)]


def test_a_database_that_is_away_loses_nothing(database, auditor, monkeypatch):
    def away():
        raise UnavailableError("the database is away")

    auditor.add(record("one"))
    with monkeypatch.context() as patch:
        patch.setattr(database, "writing", away)
        with pytest.raises(UnavailableError):
            auditor.write()
    auditor.add(record("two"))
    assert requests_in(auditor) == ["one", "two"]


@pytest.mark.both_databases
def test_a_commit_whose_answer_is_lost_is_written_once(database, auditor):
    for name in ("one", "two"):
        auditor.add(record(name))
    cut_after_commit(database)
    with pytest.raises(UnavailableError):
        auditor.write()
    auditor.add(record("three"))
    cut_after_commit(database)
    with pytest.raises(UnavailableError):
        auditor.write()
    auditor.add(record("four"))
    assert requests_in(auditor) == ["one", "two", "three", "four"]


def test_strangers_cannot_fill_the_disk(database_url, monkeypatch):
    monkeypatch.setattr("api.access.assembly.NOTED_AT_ONCE", 2)
    monkeypatch.setattr("api.access.assembly.NOTED_PER_SECOND", 1e-6)
    with guarded(database_url) as world:
        for _ in range(5):
            assert world.client.get("/v1/jobs").status_code == 401
        for number in range(5):
            lost = event(f"e{number}", number, "w05", "straggler", speed_ratio=0.9 - number / 10)
            assert world.ask("POST", f"/v1/jobs/{OWN}/events", "own reporter", json=lost).status_code == 200
        for _ in range(5):
            assert world.ask("GET", "/v1/tokens", "reader").status_code == 403
        entries = world.ask("GET", "/v1/audit", "admin").json()["entries"]
    told = [(entry["record"]["name"], entry["record"]["status"]) for entry in entries]
    assert told == [("admin", 201)] * 2 + [(None, 401)] * 2 + [("own reporter", 200)] * 5 + [("reader", 403)] * 2
