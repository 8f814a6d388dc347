"""Processes on one PostgreSQL: one log, waiting at either, and one of them killed, or stopped, as it writes."""

import gc
import json
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext

import pytest
from psycopg import ConnectionInfo
from sqlalchemy import make_url, text

from api.replay import Replay
from api.storage import engines, silence
from api.storage.database import Database
from api.storage.engines import IDLE_SECONDS, LIMITS
from api.storage.positions import ONE_BY_ONE
from api.storage.store import Store
from kintsugi.client import Client
from kintsugi.core.errors import StaleGenerationError, UnavailableError
from kintsugi.core.job import JobSettings
from kintsugi.core.membership import Event, EventKind
from kintsugi.core.version import __version__
from tests.builders import uniform_profile
from tests.databases import POSTGRESQL
from tests.processes import STOP_SECONDS
from tests.services import Fork, service

pytestmark = [
    pytest.mark.processes,
    pytest.mark.parametrize("database_kind", [POSTGRESQL], indirect=True),
]

QUIET = ("--log-level", "error")
ENOUGH = 10
"""Answers of each service before one of them is killed."""


class Striker:
    """Reports one event after the other to one service, each of the generation that is the latest then."""

    def __init__(self, url, name):
        self._url, self._name = url, name
        self._ended = threading.Event()
        self.enough = threading.Event()
        self.acknowledged = {}

    def run(self):
        with Client(self._url) as client:
            for number in range(10_000):
                if self._ended.is_set():
                    return
                try:
                    self._strike(client, number)
                except UnavailableError:
                    return
                if number >= ENOUGH:
                    self.enough.set()

    def end(self):
        self._ended.set()

    def _strike(self, client, number):
        while not self._ended.is_set():
            event = Event(
                kind=EventKind.STRAGGLER,
                id=f"{self._name}{number}",
                generation=client.plan("job", brief=True).generation,
                worker="w00" if self._name == "a" else "w01",
                speed_ratio=(0.5, 1.0)[number % 2],
            )
            try:
                self.acknowledged[event.id] = client.post_event("job", event, brief=True).generation
            except StaleGenerationError:
                continue
            return


def test_two_services_write_one_log_and_one_goes_on_when_the_other_is_killed(database_url):
    with service(database_url, *QUIET) as one, service(database_url, *QUIET) as other, Client(other.url) as client:
        client.create_job(job="job", profile=uniform_profile(3), workers=4, settings=JobSettings(num_microbatches=6))
        strikers = [Striker(one.url, "a"), Striker(other.url, "b")]
        with ThreadPoolExecutor(3) as threads:
            with Client(one.url) as waiting:
                woken = threads.submit(waiting.plan_after, "job", 0, wait_seconds=60)
                running = [threads.submit(striker.run) for striker in strikers]
                assert woken.result(100).generation > 0
            assert all(striker.enough.wait(100) for striker in strikers)
            one.kill()
            strikers[1].end()
            for future in running:
                future.result(100)
        acknowledged = {**strikers[0].acknowledged, **strikers[1].acknowledged}
        latest = client.plan("job").generation
    generations = sorted(acknowledged.values())
    assert len(generations) == len(set(generations)) >= 2 * ENOUGH
    store = Store(database_url, read_only=True)
    try:
        entries = store.entries("job")
        assert [entry.number for entry in entries] == list(range(1, len(entries) + 1))
        assert [entry.generation for entry in entries] == list(range(1, latest + 1))
        stored = {entry.content.id: entry.generation for entry in entries}
        assert acknowledged.items() <= stored.items()
        assert set(stored) - set(acknowledged) <= {f"a{number}" for number in range(10_000)}  # killed before it could answer
        assert [entry for entry in Replay(store, "job") if entry.differences] == []
    finally:
        store.close()


def test_the_log_says_what_starts_on_which_database_without_passwords(database_url):
    url = make_url(database_url).set(password="a-secret").update_query_dict({"sslpassword": "a-secret"})
    shown = url.render_as_string(hide_password=False)
    process = Fork("serve", "--port", "0", "--database-url", shown, "--log-format", "json")
    try:
        with open(process.errors, encoding="utf-8", closefd=False) as errors:
            started = json.loads(next(line for line in errors if '"started"' in line))
        assert (started["version"], started["process"]) == (__version__, process.pid)
    finally:
        process.close()
    assert url.database in started["database"]
    assert "a-secret" not in started["database"]


WRITING = """
import sys
from api.storage import absence, engines
from api.storage.database import Database
from api.storage.positions import ONE_BY_ONE
from kintsugi.core.errors import UnavailableError
engines.IDLE_SECONDS = 2.0
absence.LONG_SECONDS = 3600.0  # what took so long would keep it from the database for a second
database = Database(sys.argv[1])
try:
    with database.writing() as connection:
        connection.execute(ONE_BY_ONE)
        print("holds", flush=True)
        input()
        connection.execute(ONE_BY_ONE)
except UnavailableError:
    engines.IDLE_SECONDS = 60.0
    with database.writing() as connection:
        connection.execute(ONE_BY_ONE)
    print("goes on", flush=True)
"""


def test_a_writer_that_is_stopped_holds_up_the_others_for_a_moment_and_goes_on_once_it_can(database_url):
    program = [sys.executable, "-c", WRITING, database_url]
    database = Database(database_url)
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "holds\n"
            process.send_signal(signal.SIGSTOP)
            with database.writing() as connection:
                connection.execute(ONE_BY_ONE)
            process.send_signal(signal.SIGCONT)
            told, _ = process.communicate("\n", STOP_SECONDS)
            assert told == "goes on\n"
        finally:
            process.kill()
            database.close()


def test_nobody_waits_for_ever_for_a_server_that_says_nothing(database_url, postgres):
    database, one = Database(database_url), text("SELECT 1")

    @contextmanager
    def silent():
        with postgres.frozen(), pytest.MonkeyPatch.context() as patch:
            patch.setattr(silence, "SILENCE_SECONDS", 0.5)
            yield

    def ask(meanwhile):
        with database.reading() as connection:
            connection.execute(one)
            with meanwhile:
                connection.execute(one)

    try:
        with pytest.raises(UnavailableError, match=r"said nothing for 0\.5 s"):
            ask(silent())
        ask(nullcontext())
    finally:
        database.close()


def test_an_attempt_to_connect_that_fails_leaves_no_socket_behind(database_url, postgres, monkeypatch):
    monkeypatch.setattr(engines, "CONNECT_SECONDS", 2)  # libpq's least
    database, before = Database(database_url), os.listdir("/proc/self/fd")
    gc.disable()  # a service looks for garbage seldom, too
    try:
        with postgres.frozen(), pytest.raises(UnavailableError, match="timeout expired"), database.reading():
            raise AssertionError("nobody answers")
        assert len(os.listdir("/proc/self/fd")) <= len(before)
    finally:
        gc.enable()
        database.close()


@pytest.mark.parametrize("is_pooled", [False, True])
def test_every_transaction_is_held_to_its_limits_and_a_poolers_session_to_none(database_url, monkeypatch, is_pooled):
    """What is asked for at the start (its source is `client` then) a pooler refuses; what is set for its session others may get."""
    if is_pooled:
        monkeypatch.setattr(ConnectionInfo, "backend_pid", 0)  # pgbouncer makes one up
    database, held = Database(database_url), {(name, f"{seconds * 1000:g}", "session") for name, seconds in LIMITS.items()}
    try:
        for transaction in (database.reading, database.writing):
            with transaction() as connection:
                driver = connection.connection.driver_connection
                assert limits(connection.exec_driver_sql) == held
                driver.rollback()
                assert (limits(driver.execute) == held) is not is_pooled
    finally:
        database.close()


def limits(execute):
    """The settings that bound what a session waits for, with their sources."""
    found = execute("SELECT name, setting, source FROM pg_settings WHERE name = ANY(%s)", (list(LIMITS),))
    return {tuple(row) for row in found.fetchall()}


def test_no_statement_is_prepared_for_behind_a_pooler_its_name_may_be_that_of_another(database_url):
    database = Database(database_url)
    try:
        for _ in range(10):
            with database.writing() as connection:
                prepared = connection.execute(text("SELECT statement FROM pg_prepared_statements")).all()
        assert prepared == []
    finally:
        database.close()


def test_who_only_reads_may_take_its_time(database_url):
    """A decision is made within a read, and may take longer than a writer may pause."""
    database, asked = Database(database_url), text("SHOW idle_in_transaction_session_timeout")
    try:
        with database.writing() as connection:
            assert connection.execute(asked).scalar_one() == f"{IDLE_SECONDS:g}s"
        with database.reading() as connection:
            assert connection.execute(asked).scalar_one() == "0"
    finally:
        database.close()


@pytest.mark.parametrize("state", ["40001", "40P01"])  # as of a standby, and where another one locks the same tables
def test_a_read_that_the_server_gives_up_says_nothing_of_other_writers(database_url, state):
    database = Database(database_url)
    try:
        with pytest.raises(UnavailableError, match="gave up a read"), database.reading() as connection:
            connection.execute(text(f"do $$ begin raise exception using errcode = '{state}'; end $$"))
    finally:
        database.close()
