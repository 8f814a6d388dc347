"""Several processes listen to one job: what one of them heard is nobody's silence to the others."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from threading import Barrier

import anyio
import pytest
from sqlalchemy import select, update
from starlette.testclient import TestClient

from api.app import create_app
from api.storage.database import Database
from api.storage.tables import SIGNS
from api.waiting import hearsay
from api.waiting.exchanges import EXCHANGES, OVERDUE_PERIODS
from api.waiting.hearsay import Hearsay
from api.waiting.heartbeats_watch import HeartbeatWatch
from tests.api.requests import EVENTS, event, new_job
from tests.api.waiting.test_heartbeats import HEARTBEATS, NOW, TIMEOUT, Records, beats
from tests.api.waiting.witnesses import Between
from tests.databases import emptied
from tests.patience import eventually

PERIOD = TIMEOUT / EXCHANGES
SLACK = 1.0
"""Seconds that may pass between two lines here."""


@pytest.fixture
def database(database_url):
    with closing(Database(database_url)) as opened:
        yield opened


def process(database, now, about="jobs"):
    """What one process does between the others, by a clock that stands."""
    teller = Hearsay(database, about, clock=lambda: now)
    return lambda heard, since=0.0: teller.exchange(heard, period_seconds=100.0, since=since)


@pytest.mark.both_databases
def test_what_a_process_heard_is_known_to_the_others_by_their_own_clocks(database):
    mine, theirs = process(database, 103.0), process(database, 50.0)
    assert mine({"llama": {"w00": 100.0, "w01": 103.0}, "gpt": {"w02": 90.0}}) == {}
    assert theirs({}) == {
        "llama": {"w00": pytest.approx(47.0, abs=SLACK), "w01": pytest.approx(50.0, abs=SLACK)},
        "gpt": {"w02": pytest.approx(37.0, abs=SLACK)},
    }
    assert mine({}) == {}
    assert process(database, 0.0, "overlays")({}) == {}


@pytest.mark.both_databases
def test_of_what_was_told_the_latest_counts(database):
    one, other, third = (process(database, 100.0) for _ in range(3))
    one({"llama": {"w00": 60.0}})
    other({"llama": {"w00": 80.0, "w01": 70.0}})
    assert third({})["llama"] == {"w00": pytest.approx(80.0, abs=SLACK), "w01": pytest.approx(70.0, abs=SLACK)}
    other({"llama": {"w01": 90.0}})
    assert third({})["llama"] == {"w00": pytest.approx(60.0, abs=SLACK), "w01": pytest.approx(90.0, abs=SLACK)}


def told_before(database, seconds):
    """All that was told is so much older than it is."""
    with database.writing() as connection:
        connection.execute(update(SIGNS).values(told_at=SIGNS.c.told_at - seconds))


@pytest.mark.both_databases
def test_whom_a_process_hears_that_says_nothing_more_has_the_whole_timeout_from_when_its_word_was_due(database):
    process(database, 0.0)({"llama": {"w00": -30.0}})
    told_before(database, 1_000.0)
    other = process(database, 5_000.0)
    due = 5_000.0 - 1_000.0 + OVERDUE_PERIODS * 100.0
    assert other({})["llama"] == {"w00": pytest.approx(due, abs=SLACK)}
    assert other({}, 4_900.0)["llama"] == {"w00": 4_900.0}


@pytest.mark.both_databases
def test_words_of_a_clock_that_was_set_back_do_not_count_and_old_ones_are_forgotten(database):
    process(database, 0.0)({"llama": {"w00": 0.0}})
    told_before(database, -50.0)
    other = process(database, 0.0)
    assert other({}) == {}
    told_before(database, 5_000.0)
    other({})
    with database.reading() as connection:
        assert len(connection.execute(select(SIGNS.c.process)).all()) == 1


def test_processes_that_were_suspended_together_are_not_in_each_others_way_as_they_go_on(migrated_url, monkeypatch):
    """Each replaces its own word, which is old, before either looks for old ones."""
    both, clock = Barrier(2), hearsay._seconds

    def clock_of_both(connection):
        both.wait(60)
        return clock(connection)

    emptied(migrated_url)
    with closing(Database(migrated_url)) as first, closing(Database(migrated_url)) as second, ThreadPoolExecutor(2) as threads:
        exchanges = [process(database, 0.0) for database in (first, second)]
        for exchange in exchanges:
            exchange({})
        told_before(first, 5_000.0)
        monkeypatch.setattr(hearsay, "_seconds", clock_of_both)
        assert list(threads.map(lambda exchange: exchange({}), exchanges)) == [{}, {}]


class Crowd:
    """Processes that listen to the job of `Records`, by one clock; each exchanges on time unless it is away."""

    def __init__(self, count: int) -> None:
        self.records, self.now, everybody = Records(), 100.0, []
        self.between = [Between(everybody) for _ in range(count)]
        self.watches = [
            HeartbeatWatch(self.records, self.records.post, witness=one, clock=lambda: self.now) for one in self.between
        ]

    async def pass_by(self, seconds: float) -> None:
        """A tick of all."""
        self.now += seconds
        for watch in self.watches:
            async with anyio.create_task_group() as tasks:
                watch._go_round(tasks)

    async def train(self, seconds: float, *heard_at: tuple[int, str]) -> None:
        """Hosts beat, each at one of the processes, for so long."""
        for number in range(round(seconds / (0.1 * TIMEOUT))):
            for watch, host in heard_at if number % 3 == 0 else ():
                first = 2 * int(host[1:])
                await self.watches[watch].hear("llama", beats(host, f"w{first:02d}", f"w{first + 1:02d}"))
            await self.pass_by(0.1 * TIMEOUT)


@pytest.mark.anyio
async def test_hosts_that_each_keep_to_one_process_are_lost_to_none_while_they_live():
    crowd = Crowd(2)
    await crowd.train(5 * TIMEOUT, (0, "h00"), (1, "h01"), (1, "h02"))
    assert crowd.records.logged == []
    await crowd.train(2 * TIMEOUT, (0, "h00"), (1, "h01"))
    assert crowd.records.logged == [{"h02"}]


@pytest.mark.anyio
@pytest.mark.parametrize("num_processes", [1, 2])
async def test_time_in_which_the_database_was_away_is_nobodys_silence(num_processes):
    crowd = Crowd(num_processes)
    hosts = [(0, "h00"), (num_processes - 1, "h01"), (num_processes - 1, "h02")]
    await crowd.train(2 * TIMEOUT, *hosts)
    for one in crowd.between:
        one.is_away = True
    await crowd.train(3 * TIMEOUT, *hosts)
    for one in crowd.between:
        one.is_away = False
    await crowd.train(3 * TIMEOUT, *hosts)
    assert crowd.records.logged == []
    await crowd.train(2 * TIMEOUT, *hosts[:2])
    assert crowd.records.logged == [{"h02"}]


@pytest.mark.anyio
async def test_who_fell_silent_while_the_database_was_away_is_lost_once_others_could_have_told_of_them():
    crowd = Crowd(1)
    await crowd.train(TIMEOUT, (0, "h00"), (0, "h01"), (0, "h02"))
    crowd.between[0].is_away = True
    await crowd.train(5 * TIMEOUT, (0, "h00"), (0, "h01"))
    assert crowd.records.logged == []
    crowd.between[0].is_away = False
    await crowd.train(OVERDUE_PERIODS * PERIOD - 0.2 * TIMEOUT, (0, "h00"), (0, "h01"))
    assert crowd.records.logged == []
    await crowd.train(1.5 * TIMEOUT, (0, "h00"), (0, "h01"))
    assert crowd.records.logged == [{"h02"}]


@pytest.mark.both_databases
def test_a_service_tells_the_others_whom_it_hears_and_hears_of_what_they_wrote(settings, database):
    other = Hearsay(database, "jobs")
    with TestClient(create_app(settings)) as here, TestClient(create_app(settings)) as there:
        here.post("/v1/jobs", json=new_job(settings={"num_microbatches": 8, "heartbeat_timeout_seconds": 5.0}))
        beat = {"host": "h00", "workers": ["w00", "w01"], "observed_at": NOW}
        assert here.post(HEARTBEATS, json=beat).status_code == 200
        heard = eventually(lambda: other.exchange({}, period_seconds=1.0, since=0.0), bool)
        assert heard["llama"].keys() == {"w00", "w01"}
        assert there.post(EVENTS, json=event("a", 0, "w00")).status_code == 200
        answer = eventually(lambda: here.post(HEARTBEATS, json=beat), lambda response: response.status_code != 200)
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "stale_incarnation")
