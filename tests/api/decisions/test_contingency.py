"""Events are answered with plans made ahead, the same as fresh ones, before and after a restart."""

import re
import threading
from contextlib import closing
from dataclasses import replace

import pytest
from sqlalchemy import create_engine, text
from starlette.testclient import TestClient

from api.app import create_app
from api.decisions.contingencies import Contingencies
from api.settings import Settings
from api.storage.database import Database
from api.storage.shelf import Decided, Shelf
from api.storage.store import Store
from api.storage.wording import Wording
from kintsugi.core import codec
from kintsugi.core.decision import Decision
from kintsugi.core.version import __version__
from planner.contingency import fingerprint
from tests.api.decisions.shelves import PATIENCE, base_of
from tests.api.requests import EVENTS, JOB, REPORTS, event, new_job, report


def found(client):
    """How many decisions were and were not found among the contingencies."""
    lines = client.get("/metrics").text
    counts = {name: re.search(rf'found="{name}"}} (\S+)', lines) for name in ("true", "false")}
    return tuple(0 if match is None else int(float(match[1])) for match in counts.values())


def stored(database_url, what="count(*)"):
    engine = create_engine(database_url)
    with engine.connect() as connection:
        rows = connection.execute(text(f"select {what} from contingencies")).scalars().all()
    engine.dispose()
    return rows


def same(document):
    """A decision's JSON without the time that its search took."""
    decision = codec.loads(Decision, document) if isinstance(document, str) else codec.decode(Decision, document)
    return codec.dumps(replace(decision, search=replace(decision.search, elapsed_seconds=0.0)))


def settle(app):
    """Wait until everything that can be made ahead is made."""
    assert app.state.ahead.wait_until_idle(PATIENCE)


@pytest.mark.parametrize(
    "failure",
    [
        event("a", 0, "w03"),
        event("a", 0, kind="host_failed", host="h01"),
        event("a", 0, "w03", "worker_draining", deadline_seconds=0),
    ],
)
def test_an_event_is_answered_with_the_plan_made_ahead_which_is_the_fresh_one(app, tmp_path, failure):
    alone = create_app(Settings(database_url=f"sqlite:///{tmp_path}/alone.sqlite3", plans_ahead=False))
    with TestClient(app) as client, TestClient(alone) as fresh:
        for each in (client, fresh):
            assert each.post("/v1/jobs", json=new_job()).status_code == 201
        settle(app)
        answers = [each.post(EVENTS, json=failure).json() for each in (client, fresh)]
        assert same(answers[0]["decision"]) == same(answers[1]["decision"])
        assert (found(client), found(fresh)) == ((1, 0), (0, 0))


def test_the_loss_of_the_one_worker_that_became_slow_is_answered_as_by_a_fresh_search(app, tmp_path):
    alone = create_app(Settings(database_url=f"sqlite:///{tmp_path}/alone.sqlite3", plans_ahead=False))
    told = []
    with TestClient(app) as client, TestClient(alone) as fresh:
        for each in (client, fresh):
            job = each.post(
                "/v1/jobs", json=new_job(workers=5, settings={"num_microbatches": 8, "ranges": {"min_pp": 2, "max_pp": 2}})
            )
            (idle,) = job.json()["decision"]["plan"]["idle_workers"]
            each.post(REPORTS, json=report(0))
            each.post(EVENTS, json=event("a", 0, idle["worker"], "straggler", speed_ratio=0.5))
            settle(app)
            told.append(same(each.post(EVENTS, json=event("b", 1, idle["worker"])).json()["decision"]))
    assert told[0] == told[1]


def test_after_an_applied_plan_the_next_loss_is_answered_from_what_was_made_for_it(app):
    with TestClient(app) as client:
        client.post("/v1/jobs", json=new_job())
        settle(app)
        client.post(EVENTS, json=event("a", 0, "w00"))
        client.post(REPORTS, json=report(1))
        settle(app)
        answer = client.post(EVENTS, json=event("b", 1, "w01")).json()
        assert answer["decision"]["previous_plan"]["generation"] == 1
        assert found(client) == (2, 0)


def test_a_second_loss_before_the_plan_is_applied_is_thought_of_too(app):
    with TestClient(app) as client:
        client.post("/v1/jobs", json=new_job())
        settle(app)
        client.post(EVENTS, json=event("a", 0, "w00"))
        settle(app)
        client.post(EVENTS, json=event("b", 1, "w01"))
        assert found(client) == (2, 0)


def test_what_nobody_thought_of_is_searched_for(app):
    with TestClient(app) as client:
        client.post("/v1/jobs", json=new_job())
        settle(app)
        assert client.post(EVENTS, json=event("a", 0, "w42", "worker_joined", host="h42")).status_code == 200
        assert found(client) == (0, 1)


def test_a_restart_loses_nothing_and_only_the_latest_generation_is_kept(settings):
    app = create_app(settings)
    with TestClient(app) as client:
        client.post("/v1/jobs", json=new_job())
        settle(app)
        client.post(EVENTS, json=event("a", 0, "w00"))
        client.post(REPORTS, json=report(1))
        settle(app)
    assert set(stored(settings.database_url, "generation")) == {2}
    again = create_app(settings)
    with TestClient(again) as client:
        client.post(EVENTS, json=event("b", 1, "w01"))
        assert found(client) == (1, 0)
        assert client.get(f"{JOB}/plan").json()["generation"] == 2


def test_a_replay_of_what_was_made_ahead_gives_the_same_decision(app, settings):
    from api.decisions import planning

    with TestClient(app) as client:
        client.post("/v1/jobs", json=new_job())
        settle(app)
        client.post(EVENTS, json=event("a", 0, "w03"))
        assert found(client) == (1, 0)
        store = Store(settings.database_url)
        decision = planning.decide(planning.restored(store, store.job("llama"), 1))
        assert same(codec.dumps(decision)) == same(store.decision("llama", 1).wording.text())
        store.close()


def test_without_plans_ahead_no_thread_works(database_url):
    app = create_app(Settings(database_url=database_url, plans_ahead=False))
    with TestClient(app) as client:
        client.post("/v1/jobs", json=new_job())
        assert "contingencies" not in {thread.name for thread in threading.enumerate()}
        assert client.post(EVENTS, json=event("a", 0, "w00")).status_code == 200


def test_the_thread_ends_with_the_service(app):
    with TestClient(app) as client:
        client.post("/v1/jobs", json=new_job())
        assert "contingencies" in {thread.name for thread in threading.enumerate()}
    assert "contingencies" not in {thread.name for thread in threading.enumerate()}


def test_two_processes_that_made_the_same_plans_both_go_on(database_url, fork_server):
    with TestClient(create_app(Settings(database_url=database_url, plans_ahead=False))) as client:
        client.post("/v1/jobs", json=new_job())

    class Late(Shelf):
        """Looks before the other process has stored anything, and stores afterwards."""

        looks = 0

        def fingerprints(self, job):
            self.looks += 1
            return frozenset() if self.looks == 1 else super().fingerprints(job)

    for kind in (Shelf, Late):
        with closing(Database(database_url)) as database, closing(Contingencies(kind(database), fork_server, pair_work=0)) as maker:
            maker.start()
            maker.submit("llama", base_of)
            assert maker.wait_until_idle(PATIENCE)
    assert stored(database_url) == [4]


@pytest.mark.parametrize("other", ["0.0.0+0123456789ab", f"{__version__}+0123456789ab"], ids=["version", "sources"])
def test_what_another_planner_made_is_not_found(database_url, monkeypatch, other):
    store = Store(database_url)
    store.open()
    with TestClient(create_app(Settings(database_url=database_url, plans_ahead=False))) as client:
        client.post("/v1/jobs", json=new_job())
    key = fingerprint(base_of())
    decided = Decided(policy="data_rerouting", reason="why", wording=Wording(brief=b"b", account=b"a"))
    store.shelf.put("llama", 1, {key: decided})
    assert store.shelf.find("llama", key) == decided
    assert Shelf(store.database).find("llama", key) == decided  # as after a restart
    monkeypatch.setattr("api.storage.shelf.planner_name", lambda: other)
    later = Shelf(store.database)
    assert (later.find("llama", key), later.fingerprints("llama"), later.page("llama", 1, after="", limit=9)) == (None, set(), [])
    later.put("llama", 1, {key: decided})
    assert later.find("llama", key) == decided
    store.close()


@pytest.mark.both_databases
def test_what_is_made_of_a_job_that_another_process_ended_does_not_stay(database_url):
    with TestClient(create_app(Settings(database_url=database_url, plans_ahead=False))) as client:
        client.post("/v1/jobs", json=new_job())
        assert client.post(f"{JOB}/ending", json={"outcome": "completed"}).status_code < 300
    with closing(Database(database_url)) as database:
        decided = Decided(policy="data_rerouting", reason="why", wording=Wording(brief=b"b", account=b"a"))
        assert Shelf(database).put("llama", 1, {fingerprint(base_of()): decided})
    assert stored(database_url) == [0]


@pytest.mark.both_databases
def test_what_is_made_of_a_job_that_went_on_at_another_process_does_not_stay(database_url):
    with TestClient(create_app(Settings(database_url=database_url, plans_ahead=False))) as client:
        client.post("/v1/jobs", json=new_job())
        assert client.post(EVENTS, json=event("a", 0, "w03")).status_code == 200
    with closing(Database(database_url)) as database:
        shelf, one = Shelf(database), Decided(policy="data_rerouting", reason="why", wording=Wording(brief=b"b", account=b"a"))
        assert not shelf.put("llama", 2, {"next": one})
        assert shelf.put("llama", 1, {"late": one})
    assert stored(database_url, "fingerprint") == ["next"]
