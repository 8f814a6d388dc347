"""What was acknowledged stays: through full disks, databases that go away, and writers that are in each other's way."""

import os
import resource
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from sqlalchemy import text
from starlette.testclient import TestClient

from api.app import create_app
from api.metrics import Metrics
from api.replay import Replay
from api.schemas import NewJob
from api.service import Service
from api.settings import Settings
from api.storage.database import OvertakenError, StorageFullError
from api.storage.store import Store
from kintsugi.core.errors import InvalidInputError, StaleGenerationError, UnavailableError
from kintsugi.core.job import JobSettings
from kintsugi.core.membership import Event, EventKind
from tests.api.requests import EVENTS, JOB, assert_ready, event, new_job
from tests.builders import uniform_profile
from tests.databases import POSTGRESQL, prepare

TMPFS_BYTES = 1_500_000


@contextmanager
def opened(url, **options):
    store = Store(url, **options)
    try:
        store.open()
        yield store
    finally:
        store.close()


@contextmanager
def serving(url):
    with TestClient(create_app(Settings(database_url=url, plans_ahead=False))) as client:
        yield client


def assert_whole(url, job, acknowledged):
    """The log has every acknowledged event with its decision, without a gap or a double, and leads to the same again."""
    with opened(url, read_only=True) as store:
        entries = store.entries(job)
        assert [entry.number for entry in entries] == list(range(1, len(entries) + 1))
        generations = [entry.generation for entry in entries if entry.decided]
        assert generations == list(range(1, len(generations) + 1))
        stored = {entry.content.id: entry.generation for entry in entries}
        assert {name: stored.get(name) for name in acknowledged} == acknowledged
        assert [entry for entry in Replay(store, job) if entry.differences] == []


def test_sqlite_writes_ahead_and_syncs_fully(database_url):
    with opened(database_url) as store, store.database.writing() as connection:
        assert connection.execute(text("PRAGMA journal_mode")).scalar_one() == "wal"
        assert connection.execute(text("PRAGMA synchronous")).scalar_one() == 2
        assert connection.execute(text("PRAGMA foreign_keys")).scalar_one() == 1


@pytest.mark.both_databases
def test_a_database_that_is_only_read_cannot_be_written(database_url):
    with (
        opened(database_url, read_only=True) as store,
        pytest.raises(UnavailableError, match=r"readonly|read-only"),
        store.database.writing() as connection,
    ):
        connection.execute(text("insert into documents values ('a', 'b')"))


@pytest.mark.both_databases
def test_of_writers_at_once_none_is_lost_and_no_generation_is_doubled(database_url):
    with opened(database_url) as one, opened(database_url) as other:
        services = [Service(store, Metrics()) for store in (one, other)]
        services[0].create_job(NewJob(id="job", profile=uniform_profile(3), workers=6, settings=JobSettings(num_microbatches=6)))

        def strike(number):
            service = services[number % 2]
            while True:
                generation = service.decision("job").generation
                slow = Event(
                    kind=EventKind.STRAGGLER,
                    id=f"e{number}",
                    generation=generation,
                    worker=f"w0{number % 6}",
                    speed_ratio=1 - number / 100,
                )
                try:
                    return slow.id, service.post_events("job", [slow]).generation
                except StaleGenerationError:
                    continue

        with ThreadPoolExecutor(4) as strikers:
            acknowledged = dict(strikers.map(strike, range(1, 13)))
        assert sorted(acknowledged.values()) == list(range(1, 13))
    assert_whole(database_url, "job", acknowledged)


@pytest.mark.both_databases
def test_jobs_that_bring_the_same_profile_at_once_are_all_created(database_url):
    with opened(database_url) as one, opened(database_url) as other:
        services = [Service(store, Metrics()) for store in (one, other)]

        def create(number):
            request = NewJob(profile=uniform_profile(3), workers=2, settings=JobSettings(num_microbatches=6))
            return services[number % 2].create_job(request)

        with ThreadPoolExecutor(4) as creators:
            created = list(creators.map(create, range(8)))
        assert all(is_new for _, is_new in created)
        assert sorted(job for job, _ in created) == one.job_ids(after="", limit=9)


@pytest.fixture
def small_disk(tmp_path):
    """A folder on a disk of its own, which only root can make."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={TMPFS_BYTES}", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("only root may mount a small disk")
    yield folder
    subprocess.run(["umount", str(folder)], check=True, timeout=240.0)


def test_a_full_disk_is_told_and_nothing_that_was_told_before_is_lost(small_disk):
    url = f"sqlite:///{small_disk}/kintsugi.sqlite3"
    prepare(url)
    acknowledged = {}
    with serving(url) as client:
        assert client.post("/v1/jobs", json=new_job()).status_code == 201
        ballast = small_disk / "ballast"
        with pytest.raises(OSError, match="No space"):
            ballast.write_bytes(bytes(TMPFS_BYTES))
        refusal = post_until_refused(client, acknowledged)
        assert (refusal.status_code, refusal.json()["error"]["code"]) == (503, "storage_full")
        assert "make room" in refusal.json()["detail"]
        assert client.get(f"{JOB}/plan").json()["generation"] == max(acknowledged.values(), default=0)
        assert client.get("/readyz").json()["error"]["code"] == "storage_full"
        ballast.unlink()
        assert_ready(client)
        post(client, len(acknowledged), acknowledged)
    assert_whole(url, "llama", acknowledged)


def test_a_disk_that_fails_and_has_room_is_not_told_as_full(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with opened(f"sqlite:///{tmp_path}/kintsugi.sqlite3") as store:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
        try:
            with pytest.raises(UnavailableError, match="disk fails: disk I/O error; look at") as told:
                write(store)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert told.value.code == "unavailable"
        write(store)


def write(store):
    with store.database.writing() as connection:
        connection.execute(text("INSERT INTO documents VALUES ('a', 'b')"))


@pytest.mark.parametrize("left_bytes", [0, 16_384])
@pytest.mark.parametrize("is_new", [True, False])
def test_a_disk_that_is_full_at_the_start_is_told(small_disk, is_new, left_bytes):
    url = f"sqlite:///{small_disk}/kintsugi.sqlite3"
    if not is_new:
        prepare(url)
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(shutil.disk_usage(small_disk).free - left_bytes))
    with pytest.raises(StorageFullError, match="make room"), opened(url):
        pass
    ballast.unlink()
    with opened(url):
        pass


@pytest.fixture
def readable_file(tmp_path):
    """The URL of a database whose file can be read and not be written, also by root, who alone can make it so."""
    file = tmp_path / "kintsugi.sqlite3"
    prepare(f"sqlite:///{file}")
    commands = [["mount", "--bind", str(file), str(file)], ["mount", "-o", "remount,ro,bind", str(file)]]
    if os.geteuid() != 0 or subprocess.run(commands[0], capture_output=True, check=False).returncode != 0:
        pytest.skip("only root may mount a file")
    try:
        subprocess.run(commands[1], check=True, timeout=240.0)
        yield f"sqlite:///{file}"
    finally:
        subprocess.run(["umount", str(file)], check=True, timeout=240.0)


def test_a_service_does_not_start_on_a_file_that_it_cannot_write(readable_file):
    with opened(readable_file, read_only=True):
        pass
    with pytest.raises(UnavailableError, match="can only be read"), opened(readable_file):
        pass


@pytest.mark.parametrize("database_kind", [POSTGRESQL], indirect=True)
def test_a_server_that_became_a_standby_is_told_and_left_once_another_takes_its_place(database_url, postgres):
    with serving(database_url) as client:
        assert client.post("/v1/jobs", json=new_job()).status_code == 201
        with postgres.read_only(database_url):
            answer = client.get("/readyz")
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "unavailable")
            for _ in range(2):  # also on a connection that was read by
                assert client.get(f"{JOB}/plan").status_code == 200
                refusal = post(client, 0, {})
                assert (refusal.status_code, refusal.json()["error"]["code"]) == (503, "unavailable")
                assert "can only be read" in refusal.json()["detail"]
            with pytest.raises(UnavailableError, match="can only be read"), opened(database_url):
                pass
        assert_ready(client)  # it is noticed at a look, and then connected anew
        acknowledged = {}
        while post(client, 0, acknowledged).status_code == 503:  # on a connection that was in use at that look
            pass
        assert acknowledged == {"e0": 1}


@pytest.mark.parametrize("database_kind", [POSTGRESQL], indirect=True)
def test_a_refused_write_leaves_no_connection_that_would_be_refused_again(database_url, postgres):
    with opened(database_url) as store:
        database = store.database
        with postgres.read_only(database_url), database.reading(), database.reading_anew():
            pass  # two connections, which both stay as they began
        with pytest.raises(UnavailableError, match="can only be read"):
            write(store)
        with database.writing() as first, database.writing() as second:
            assert write_and_read(first, "a") == write_and_read(second, "b") == 1


def write_and_read(connection, name):
    connection.execute(text(f"INSERT INTO documents VALUES ('{name}', 'b')"))
    return connection.execute(text("SELECT count(*) FROM documents")).scalar_one()


def post(client, number, acknowledged):
    """Tell of the event of this number; it gets its place in `acknowledged` once it is answered."""
    slow = event(f"e{number}", number, "w00", kind="straggler", speed_ratio=(0.5, 1.0)[number % 2])
    response = client.post(EVENTS, json=slow)
    if response.status_code == 200:
        acknowledged[slow["id"]] = response.json()["generation"]
    return response


def post_until_refused(client, acknowledged):
    for number in range(200):
        response = post(client, number, acknowledged)
        if response.status_code != 200:
            return response
    raise AssertionError("the disk never was full")


@pytest.mark.parametrize("database_kind", [POSTGRESQL], indirect=True)
@pytest.mark.parametrize("crashes", [False, True])
def test_a_database_that_goes_away_is_told_and_found_again(database_url, postgres, crashes):
    acknowledged = {}
    with serving(database_url) as client:
        assert client.post("/v1/jobs", json=new_job()).status_code == 201
        for number in range(3):
            post(client, number, acknowledged)
        (postgres.kill if crashes else postgres.stop)()
        try:
            for response in (post(client, 3, acknowledged), client.get("/readyz"), client.get(JOB)):
                assert response.status_code == 503
                assert response.json()["error"]["code"] == "unavailable"
        finally:
            postgres.start()
        assert_ready(client)
        for number in (2, 3, 4):
            assert post(client, number, acknowledged).status_code == 200
        assert acknowledged == {f"e{number}": number + 1 for number in range(5)}
    assert_whole(database_url, "llama", acknowledged)


@pytest.mark.parametrize("database_kind", [POSTGRESQL], indirect=True)
def test_transactions_in_each_others_way_are_told_to_try_again(database_url):
    with opened(database_url) as store:
        for state in ("40001", "40P01"):
            with pytest.raises(OvertakenError), store.database.writing() as connection:
                connection.execute(text(f"DO $$ BEGIN RAISE EXCEPTION 'conflict' USING ERRCODE = '{state}'; END $$"))
        with pytest.raises(StorageFullError, match="make room"), store.database.writing() as connection:
            connection.execute(text("DO $$ BEGIN RAISE EXCEPTION 'full' USING ERRCODE = '53100'; END $$"))


def test_a_file_that_takes_the_place_of_the_database_is_refused_and_left_as_it_is(tmp_path):
    file, other = tmp_path / "kintsugi.sqlite3", tmp_path / "restored.sqlite3"
    prepare(f"sqlite:///{other}")
    with serving(f"sqlite:///{file}") as client:
        client.post("/v1/jobs", json=new_job())
        before = other.read_bytes()
        file.rename(tmp_path / "aside.sqlite3")
        for replaced in (False, True):
            if replaced:
                other.rename(file)
            while client.get(JOB).status_code == 200:  # until somebody looks, the file is written that was opened
                pass
            for answer in (client.get(JOB), client.post(EVENTS, json=event("e0", 0, "w00")), client.get("/readyz")):
                assert answer.status_code == 503
                assert ("another file took the place of" if replaced else "was taken away while the service ran") in answer.text
        assert file.read_bytes() == before
        file.rename(other)
        (tmp_path / "aside.sqlite3").rename(file)
        assert client.post(EVENTS, json=event("e0", 0, "w00")).json()["generation"] == 1
    assert_whole(f"sqlite:///{file}", "llama", {"e0": 1})


def test_no_service_starts_on_the_log_of_a_database_that_is_not_there(tmp_path):
    """SQLite would begin an empty one, and remove the log: what was answered last stands in there alone."""
    file, aside = tmp_path / "kintsugi.sqlite3", tmp_path / "aside.sqlite3"
    with serving(f"sqlite:///{file}") as client:
        client.post("/v1/jobs", json=new_job())
        file.rename(aside)
        while client.get("/readyz").status_code == 200:
            pass
    for is_empty in (False, True):
        if is_empty:
            file.touch()
        with pytest.raises(InvalidInputError, match=r"its log \(-wal\) is: put the file back"):
            prepare(f"sqlite:///{file}")
    aside.rename(file)
    with serving(f"sqlite:///{file}") as client:
        assert client.get(JOB).status_code == 200
