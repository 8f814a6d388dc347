"""Several processes listen to one job: what one of them heard is nobody's silence to the others."""

from contextlib import closing

import pytest
from sqlalchemy import insert, select
from starlette.testclient import TestClient

from api.app import create_app
from api.storage.database import Database
from api.storage.tables import SIGNS
from api.waiting.hearsay import Hearsay
from api.waiting.heartbeats_watch import HeartbeatWatch
from tests.api.requests import new_job
from tests.api.waiting.test_heartbeats import HEARTBEATS, NOW, TIMEOUT, Records, beats
from tests.api.waiting.witnesses import Between, told
from tests.runtime.runs import eventually


@pytest.fixture
def database(database_url):
    with closing(Database(database_url)) as opened:
        yield opened


@pytest.mark.both_databases
def test_what_a_process_heard_is_known_to_the_others_by_their_own_clocks(database):
    mine, theirs = Hearsay(database, "jobs", clock=lambda: 103.0), Hearsay(database, "jobs", clock=lambda: 50.0)
    mine.give({"llama": {"w00": 100.0, "w01": 103.0}, "gpt": {"w02": 90.0}})
    assert theirs.heard("llama") == {"w00": pytest.approx(47.0, abs=1.0), "w01": pytest.approx(50.0, abs=1.0)}
    assert theirs.heard("gpt") == {"w02": pytest.approx(37.0, abs=1.0)}
    assert theirs.heard("other") == {}
    assert mine.heard("llama") == {}
    assert Hearsay(database, "overlays").heard("llama") == {}


@pytest.mark.both_databases
def test_of_what_was_told_the_latest_counts(database):
    one, other, third = (Hearsay(database, "jobs", clock=lambda: 100.0) for _ in range(3))
    one.give({"llama": {"w00": 60.0}})
    other.give({"llama": {"w00": 80.0, "w01": 70.0}})
    assert third.heard("llama") == {"w00": pytest.approx(80.0, abs=1.0), "w01": pytest.approx(70.0, abs=1.0)}
    other.give({"llama": {"w01": 90.0}})
    assert third.heard("llama") == {"w00": pytest.approx(60.0, abs=1.0), "w01": pytest.approx(90.0, abs=1.0)}


@pytest.mark.both_databases
def test_what_processes_told_that_are_long_gone_is_forgotten(database):
    with database.writing() as connection:
        connection.execute(insert(SIGNS), {"process": "gone", "about": "overlays", "told_at": 1.0, "body": "{}"})
    Hearsay(database, "jobs").give({})
    with database.reading() as connection:
        assert "gone" not in connection.execute(select(SIGNS.c.process)).scalars().all()


@pytest.mark.anyio
async def test_hosts_that_each_keep_to_one_process_are_lost_to_none_while_they_live():
    records, now, everybody = Records(), [100.0], []
    one, other = (HeartbeatWatch(records, records.post, witness=Between(everybody), clock=lambda: now[0]) for _ in range(2))
    for _ in range(9):
        await one.hear("llama", beats("h00", "w00", "w01"))
        await other.hear("llama", beats("h01", "w02", "w03"))
        await other.hear("llama", beats("h02", "w04", "w05"))
        now[0] += 0.3 * TIMEOUT
        for patrol in (one, other):
            await told(patrol)
        for patrol in (one, other):
            await patrol._declare("llama")
    assert records.logged == []
    for _ in range(5):
        await one.hear("llama", beats("h00", "w00", "w01"))
        await other.hear("llama", beats("h01", "w02", "w03"))
        now[0] += 0.3 * TIMEOUT
        for patrol in (one, other):
            await told(patrol)
            await patrol._declare("llama")
    assert records.logged == [{"h02"}]


@pytest.mark.anyio
async def test_while_nobody_can_say_who_was_heard_elsewhere_nobody_is_lost():
    records, now, everybody = Records(), [100.0], []
    between = Between(everybody)
    watch = HeartbeatWatch(records, records.post, witness=between, clock=lambda: now[0])
    await watch.hear("llama", beats("h00", "w00", "w01"))
    now[0] += 2 * TIMEOUT
    between.is_away = True
    await watch._declare("llama")
    assert records.logged == []
    between.is_away = False
    await watch._declare("llama")
    assert records.logged == [{"h00", "h01", "h02"}]


@pytest.mark.both_databases
def test_a_service_tells_the_others_whom_it_hears(settings, database):
    other = Hearsay(database, "jobs")
    with TestClient(create_app(settings)) as client:
        client.post("/v1/jobs", json=new_job(settings={"num_microbatches": 8, "heartbeat_timeout_seconds": 5.0}))
        workers = client.get("/v1/jobs/llama").json()["cluster"]["workers"]
        host = workers[0]["host"]
        names = [worker["id"] for worker in workers if worker["host"] == host]
        assert client.post(HEARTBEATS, json={"host": host, "workers": names, "observed_at": NOW}).status_code == 200
        assert eventually(lambda: other.heard("llama"), bool).keys() == set(names)
