"""Replay: what the service stored comes out the same again; whatever was tampered with is found by its field."""

import json
import zlib

import pytest
from sqlalchemy import create_engine, text

from api.differences import Difference, differences
from api.metrics import Metrics
from api.replay import Replay, lacking
from api.schemas import NewJob
from api.service import Service
from api.storage.legible import ContradictoryError
from api.storage.store import Store
from kintsugi.cli import main
from kintsugi.core.errors import InfeasibleError, InvalidInputError, NotFoundError
from kintsugi.core.job import JobSettings
from kintsugi.core.membership import Event, EventKind
from kintsugi.core.messages import Report, ReportStatus
from kintsugi.core.version import __version__
from tests.builders import uniform_profile
from tests.databases import SQLITE

pytestmark = pytest.mark.both_databases


def happen(service):
    """A job with a batch, a plan that is applied late, and an end without a plan."""
    service.create_job(NewJob(id="job", profile=uniform_profile(3), workers=4, settings=JobSettings(num_microbatches=6)))
    service.post_events("job", [event("slow", 0, EventKind.STRAGGLER, speed_ratio=0.5), event("a", 0, worker="w01")])
    service.post_events("job", [event("b", 1, worker="w02")], "key")
    service.post_report("job", Report(generation=1, status=ReportStatus.APPLIED))
    for last in ([event("c", 3, worker="w00"), event("d", 3, worker="w03")], [event("e", 3, EventKind.WORKER_JOINED)]):
        with pytest.raises(InfeasibleError):
            service.post_events("job", last)


def event(name, generation, kind=EventKind.WORKER_FAILED, worker="w00", **changes):
    return Event(kind=kind, id=name, generation=generation, worker=worker, **changes)


@pytest.fixture
def url(database_url):
    store = Store(database_url)
    try:
        happen(Service(store, Metrics()))
    finally:
        store.close()
    return database_url


def replayed(url, **asked):
    store = Store(url, read_only=True)
    try:
        store.open()
        return list(Replay(store, "job", **asked))
    finally:
        store.close()


def tamper(url, statement, **values):
    engine = create_engine(url)
    with engine.begin() as connection:
        if connection.dialect.name == SQLITE:
            triggers = connection.execute(text("select name from sqlite_master where type = 'trigger'")).scalars().all()
            for trigger in triggers:
                connection.execute(text(f"drop trigger {trigger}"))
        else:
            connection.execute(text("set session_replication_role = replica"))
        connection.execute(text(statement), values)
    engine.dispose()


def fields(entries):
    return {(entry.number, difference.field) for entry in entries for difference in entry.differences}


def test_everything_comes_out_the_same(url):
    entries = replayed(url)
    assert fields(entries) == set()
    assert [(entry.number, entry.generation) for entry in entries if entry.decided] == [(0, 0), (2, 1), (3, 2), (4, 3)]
    assert [entry.what for entry in entries[:5]] == [
        "created",
        "straggler w00",
        "worker_failed w01",
        "worker_failed w02",
        "applied 1",
    ]
    assert {entry.planner_version for entry in entries if entry.decided} == {__version__}


def test_one_decision_alone(url):
    entries = replayed(url, generation=2)
    assert [entry.number for entry in entries if entry.policy is not None] == [3]
    with pytest.raises(NotFoundError, match="generations 0 to 3"):
        replayed(url, generation=4)


def test_a_changed_decision_is_found(url):
    brief = read(url, "select brief from decisions where generation = 1")
    document = json.loads(zlib.decompress(brief))
    document["plan"]["pipelines"][0]["num_microbatches"] += 1
    tamper(url, "update decisions set brief = :brief where generation = 1", brief=zlib.compress(json.dumps(document).encode()))
    assert (2, "decision.plan.pipelines[0].num_microbatches") in fields(replayed(url))


@pytest.mark.parametrize(
    ("statement", "found"),
    [
        ("update decisions set decided_at = '2026-01-01T00:00:00.000000Z' where generation = 2", {(3, "decided_at")}),
        ("update decisions set account = :data where generation = 2", {(3, "decision")}),
        ("update log set problem = replace(problem, 'survivor', 'worker') where number = 7", {(7, "problem.message")}),
        ("update log set body = replace(body, 'w02', 'w99') where number = 3", {(3, "entry")}),
        ("update log set generation = 7 where number = 4", {(4, "entry.generation")}),
        ("update log set body = replace(body, 'w02', 'w03') where number = 3", {(3, "snapshot.alive[1]")}),
        ("update documents set body = replace(body, '8000000,', '8000001,')", {(0, "documents.profile")}),
    ],
)
def test_whatever_was_changed_is_found(url, statement, found):
    tamper(url, statement, **({"data": b"x"} if ":data" in statement else {}))
    assert found <= fields(replayed(url))


@pytest.mark.parametrize(
    ("statement", "found"),
    [
        ("delete from log where number > 2", {("decisions.generation", 3, 1), ("idempotency_keys.number", 3, 2)}),
        ("delete from log", {("decisions.generation", 3, 0), ("idempotency_keys.number", 3, 0)}),
        (
            "insert into states (job, number, planner_version, history) values ('job', 256, '0', :data)",
            {("states.number", 256, 7)},
        ),
        ("insert into endings (job, ended_at) values ('job', '2027-01-01T00:00:00.000000Z')", {("endings", "ended", "going on")}),
    ],
)
def test_what_is_stored_beyond_the_end_of_the_log_is_found(url, statement, found):
    tamper(url, statement, **({"data": b"x"} if ":data" in statement else {}))
    *entries, last = replayed(url)
    assert fields(entries) == set()
    assert last.what == "beyond the end"
    assert {(difference.field, difference.stored, difference.replayed) for difference in last.differences} == found
    assert fields(replayed(url, generation=0)) == set()


@pytest.mark.parametrize(
    ("statements", "missing"),
    [
        (["delete from log where job = 'other' and number > 1"], [("log.position", "9 to 10")]),
        (
            [f"delete from {table} where job = 'other'" for table in ("log", "decisions", "deadlines")]
            + ["delete from jobs where id = 'other'"],
            [("log.position", "8 to 10")],
        ),
        (["delete from jobs where id = 'other'"], [("jobs.id", "other")]),
    ],
)
def test_entries_that_led_to_nothing_and_whole_jobs_are_missed_among_the_others(url, capsys, statements, missing):
    store = Store(url)
    service = Service(store, Metrics())
    try:
        service.create_job(NewJob(id="other", profile=uniform_profile(3), workers=4, settings=JobSettings(num_microbatches=6)))
        service.post_events("other", [event("a", 0, worker="w01")])
        for _ in range(2):
            service.post_report("other", Report(generation=1, status=ReportStatus.REJECTED, reason="no"))
        service.create_job(NewJob(id="last", profile=uniform_profile(3), workers=4, settings=JobSettings(num_microbatches=6)))
        service.post_events("last", [event("a", 0, worker="w01")])
        assert lacking(store) == ()
    finally:
        store.close()
    for statement in statements:
        tamper(url, statement)
    status, told = run(capsys, "--database-url", url, "--format", "json")
    document = json.loads(told.out)
    assert (status, document["is_same"]) == (1, False)
    assert [(found["field"], found["replayed"]) for found in document["differences"]] == missing
    _, told = run(capsys, "--database-url", url)
    assert f"all logs: {missing[0][0]} is stored as '(missing)', replayed as '{missing[0][1]}'" in told.out
    assert told.out.endswith("others are missing\n")


def test_a_log_that_lost_its_end_takes_nothing_and_says_why(url):
    tamper(url, "delete from log where number > 2")
    store = Store(url)
    service = Service(store, Metrics())
    try:
        with pytest.raises(ContradictoryError, match="its log ends at entry 2, other tables go on; kintsugi replay --job job"):
            service.post_events("job", [event("f", 1, worker="w02")])
        with pytest.raises(ContradictoryError, match="entry 3 is named, and not in its log"):
            service.post_events("job", [event("b", 1, worker="w02")], "key")
    finally:
        store.close()


def read(url, query):
    engine = create_engine(url)
    with engine.connect() as connection:
        value = connection.execute(text(query)).scalar_one()
    engine.dispose()
    return bytes(value)


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as exit_:
        main(["replay", *arguments])
    return exit_.value.code, capsys.readouterr()


def test_the_table_breaks_no_word_in_80_columns(url, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    _, told = run(capsys, "--database-url", url)
    cells = {cell.strip() for line in told.out.splitlines() for cell in line.split("│")}
    assert {"worker_failed w02", "straggler w00", "dynamic_parallelism", "same", __version__} <= cells
    assert max(map(len, told.out.splitlines())) <= 80


def test_the_command_tells_it_as_a_table_and_as_json(url, capsys):
    status, told = run(capsys, "--database-url", url)
    assert status == 0
    assert f"4 decisions made again by planner {__version__}: all the same" in told.out
    tamper(url, "update decisions set number = 9 where generation = 1")
    status, told = run(capsys, "--database-url", url, "--job", "job", "--generation", "1", "--format", "json")
    document = json.loads(told.out)
    assert (status, document["is_same"], document["jobs"][0]["num_decisions"]) == (1, False, 1)
    (different,) = (entry for entry in document["jobs"][0]["entries"] if not entry["is_same"])
    assert different["differences"] == [{"field": "number", "stored": 9, "replayed": 2}]
    status, told = run(capsys, "--database-url", url)
    assert status == 1
    assert "entry 2: number is stored as 9, replayed as 2" in told.out
    assert told.out.endswith(": 1 entry came out differently\n")


def test_nothing_in_the_table_is_cut_off_on_a_narrow_screen(url, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    _, told = run(capsys, "--database-url", url)
    assert "\N{HORIZONTAL ELLIPSIS}" not in told.out


def test_what_cannot_be_asked(database_url, capsys):
    assert run(capsys, "--database-url", database_url, "--generation", "1")[0] == 2
    assert run(capsys, "--database-url", database_url, "--job", "nobody")[0] == 2
    assert run(capsys, "--database-url", "sqlite:////nowhere.sqlite3")[0] == 2


def test_a_database_that_nobody_prepared_is_left_empty(empty_url):
    if empty_url.startswith(SQLITE):
        engine = create_engine(empty_url)
        engine.connect().close()
        engine.dispose()
    store = Store(empty_url, read_only=True)
    with pytest.raises(InvalidInputError, match="is empty; kintsugi serve"):
        store.open()
    store.close()


def test_differences_are_told_by_their_path():
    stored = {"a": [1, 2], "b": {"c": 1.0}, "d": 1}
    other = {"a": [1, 3, 4], "b": {"c": 1}, "e": None}
    assert [(difference.field, difference.stored, difference.replayed) for difference in differences(stored, other)] == [
        ("a[1]", 2, 3),
        ("a[2]", "(missing)", 4),
        ("b.c", 1.0, 1),
        ("d", 1, "(missing)"),
        ("e", "(missing)", None),
    ]
    assert list(differences(stored, stored)) == []
    assert Difference(field="x", stored=1, replayed=2) in differences({"x": 1}, {"x": 2})
