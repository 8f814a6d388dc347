"""An overlay's log is played back to what is stored beside it; whatever was tampered with is found by its field."""

import json

import pytest

from api.overlay.replay import OverlayReplay
from api.storage.store import Store
from kintsugi.core.version import __version__
from planner.overlay.synchronization import fastest
from tests.api.overlay.test_routes import pair
from tests.api.requests import new_job
from tests.api.test_replay import fields, run, tamper

pytestmark = pytest.mark.both_databases
JOB = "llama"


@pytest.fixture
def url(client, database_url):
    pair(client)
    return database_url


def replayed(url):
    store = Store(url, read_only=True)
    try:
        store.open()
        return list(OverlayReplay(store.database, JOB, fastest))
    finally:
        store.close()


def test_every_line_leads_to_what_is_stored(url):
    lines = replayed(url)
    assert fields(lines) == set()
    assert [(line.number, line.what, line.decided) for line in lines] == [
        (1, "worker_joined w00", True),
        (2, "worker_joined w01", True),
        (3, "link_measured w00 - w01", True),
        (4, "state_replicated w01", True),
    ]


@pytest.mark.parametrize(
    ("statement", "found", "last"),
    [
        ("update overlay_log set generation = 9 where number = 3", {(3, "entry.generation")}, 4),
        ("update overlay_log set term = 9 where number = 1", {(1, "entry.term")}, 4),
        ("update overlay_log set body = replace(body, 'w01', 'w99') where number = 4", {(4, "entry")}, 4),
        ("delete from overlay_log where number = 2", {(3, "entry.number")}, 3),
        ("delete from overlay_log where number = 4", {(3, "overlay.number"), (3, "overlay.generation")}, 3),
        ("delete from overlay_log", {(0, "overlay.number")}, 0),
        ("delete from overlays", {(4, "overlay")}, 4),
        ("update overlays set number = 3", {(4, "overlay.number")}, 4),
        ("update overlays set body = replace(body, '\"h:7000\"', '\"h:7001\"')", {(4, "overlay.workers[0].address")}, 4),
    ],
)
def test_whatever_was_changed_is_found(url, statement, found, last):
    tamper(url, statement)
    lines = replayed(url)
    assert found <= fields(lines)
    assert lines[-1].number == last


def test_the_command_tells_of_overlays_beside_jobs(client, url, capsys):
    assert client.post("/v1/jobs", json=new_job(id="other")).status_code == 201
    status, told = run(capsys, "--database-url", url)
    assert status == 0
    assert f"1 decision made again and 1 overlay played back by planner {__version__}: all the same" in told.out
    tamper(url, "update overlay_log set generation = 9 where number = 3")
    for arguments in ([], ["--job", JOB]):
        status, told = run(capsys, "--database-url", url, *arguments)
        assert status == 1
        assert "entry 3: entry.generation is stored as 9, replayed as 3" in told.out
        status, told = run(capsys, "--database-url", url, *arguments, "--format", "json")
        document = json.loads(told.out)
        (overlay,) = document["overlays"]
        assert (status, document["is_same"], overlay["job"], overlay["is_same"]) == (1, False, JOB, False)
        assert [entry["is_same"] for entry in overlay["entries"]] == [True, True, False, True]
        assert [job["job"] for job in document["jobs"]] == ([] if arguments else ["other"])
    assert run(capsys, "--database-url", url, "--job", "other")[0] == 0
    assert run(capsys, "--database-url", url, "--job", JOB, "--generation", "1")[0] == 2
