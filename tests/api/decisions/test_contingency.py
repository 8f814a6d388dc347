"""Events are answered with plans made ahead, the same as fresh ones, before and after a restart."""

import re
import threading
from contextlib import closing
from dataclasses import replace

import pytest
from sqlalchemy import create_engine, text
from starlette.testclient import TestClient

from api.app import create_app
from api.decisions import ahead as making
from api.decisions import contingencies
from api.decisions.contingencies import Contingencies
from api.settings import Settings
from api.storage.database import DATABASE_FIELD, Database, OvertakenError
from api.storage.shelf import Decided, Shelf
from api.storage.store import Store
from api.storage.wording import Wording
from kintsugi.core import codec
from kintsugi.core.cluster import Cluster
from kintsugi.core.decision import Decision
from kintsugi.core.errors import UnavailableError
from kintsugi.core.version import __version__
from planner.contingency import accepted, after, fingerprint, losses
from planner.replan import replan
from tests.api.requests import EVENTS, JOB, REPORTS, event, new_job, report
from tests.builders import snapshot_of, uniform_profile

PATIENCE = 60.0


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


def base_of(num_workers=4, generation=1):
    first = snapshot_of(uniform_profile(2), Cluster.uniform(num_workers), 4)
    return replace(accepted(first, replan(first)), generation=generation)


class Memory:
    """A shelf that remembers the order in which jobs were worked on."""

    def __init__(self):
        self.jobs, self.kept = [], {}

    def put(self, job, generation, decided):
        self.jobs.append((job, generation))
        self.kept.update({(job, key): item for key, item in decided.items()})

    def find(self, job, key):
        return self.kept.get((job, key))

    def fingerprints(self, job):
        return frozenset(key for owner, key in self.kept if owner == job)


def test_the_newest_is_made_first_and_superseded_work_is_dropped():
    shelf, taken, going_on = Memory(), threading.Event(), threading.Event()
    ahead = Contingencies(shelf, pair_work=0)

    def slow():
        taken.set()
        assert going_on.wait(PATIENCE)
        return base_of(generation=1)

    ahead.start()
    ahead.submit("old", slow)
    assert taken.wait(PATIENCE)
    ahead.submit("middle", lambda: base_of(generation=5))
    ahead.submit("old", lambda: base_of(generation=2))
    ahead.submit("new", lambda: base_of(generation=7))
    going_on.set()
    assert ahead.wait_until_idle(PATIENCE)
    ahead.close()
    assert shelf.jobs == [("new", 7), ("old", 2), ("middle", 5)]
    for loss in losses(base_of(generation=2), 0):
        assert ahead.find("old", after(base_of(generation=2), loss)) is not None


def test_single_losses_of_every_job_come_before_pairs_of_any():
    shelf = Memory()
    ahead = Contingencies(shelf, pair_work=1_000)
    base = base_of(num_workers=20)
    ahead.submit("older", lambda: base)
    ahead.submit("newer", lambda: base)
    ahead.start()
    assert ahead.wait_until_idle(PATIENCE)
    ahead.close()
    batches = [job for job, _ in shelf.jobs]
    assert batches.index("older") == 1  # its first batch is single losses, and the newer job has pairs to come
    assert batches[-1] == "older"
    assert "newer" in batches[2:]


@pytest.mark.parametrize("error", [UnavailableError("no"), RuntimeError("never thought of")])
def test_what_goes_wrong_stops_the_work_on_a_job_not_the_thread(error):
    class Broken(Memory):
        def put(self, job, generation, decided):
            if job == "unlucky":
                raise error
            super().put(job, generation, decided)

    ahead = Contingencies(Broken(), pair_work=0)
    ahead.start()
    ahead.submit("unlucky", base_of)
    assert ahead.wait_until_idle(PATIENCE)
    ahead.submit("lucky", base_of)
    assert ahead.wait_until_idle(PATIENCE)
    ahead.close()
    snapshot = after(base_of(), next(losses(base_of())))
    assert ahead.find("unlucky", snapshot) is None
    assert ahead.find("lucky", snapshot) is not None


def test_the_end_of_the_process_that_plans_costs_no_plan():
    shelf, ended = Memory(), []
    first = next(losses(base_of()))
    assert making.make(codec.dumps(base_of()), first) is not None

    def look():
        for child in making._workshop()._helpers:
            child._process.kill()
            child._process.join(PATIENCE)
            ended.append(child)
        return base_of()

    maker = Contingencies(shelf, pair_work=0)
    maker.start()
    maker.submit("job", look)
    assert maker.wait_until_idle(PATIENCE)
    maker.close()
    assert ended
    assert all(maker.find("job", after(base_of(), loss)) is not None for loss in losses(base_of(), 0))


@pytest.mark.parametrize("what", ["fingerprints", "put"])
def test_work_is_taken_up_again_once_the_database_is_back(what, monkeypatch):
    shelf, refusals = Memory(), [UnavailableError("away", field=DATABASE_FIELD)] * 2
    done = getattr(shelf, what)

    def away(*arguments):
        if refusals:
            raise refusals.pop()
        return done(*arguments)

    monkeypatch.setattr(shelf, what, away)
    monkeypatch.setattr(contingencies, "AGAIN_SECONDS", 0.01)
    ahead = Contingencies(shelf, pair_work=0)
    ahead.start()
    ahead.submit("job", base_of)
    assert ahead.wait_until_idle(PATIENCE)
    ahead.close()
    assert all(ahead.find("job", after(base_of(), loss)) is not None for loss in losses(base_of(), 0))


def test_two_processes_that_made_the_same_plans_both_go_on(database_url):
    with TestClient(create_app(Settings(database_url=database_url, plans_ahead=False))) as client:
        client.post("/v1/jobs", json=new_job())

    class Late(Shelf):
        """Looks before the other process has stored anything, and stores afterwards."""

        looks = 0

        def fingerprints(self, job):
            self.looks += 1
            return frozenset() if self.looks == 1 else super().fingerprints(job)

    for kind in (Shelf, Late):
        with closing(Database(database_url)) as database, closing(Contingencies(kind(database), pair_work=0)) as maker:
            maker.start()
            maker.submit("llama", base_of)
            assert maker.wait_until_idle(PATIENCE)
    assert stored(database_url) == [4]


def test_of_what_two_processes_made_each_stores_what_the_other_has_not(monkeypatch):
    base, shelf, asked = base_of(), Memory(), []
    put = shelf.put

    def taken_in_part(job, generation, decided):
        asked.append(set(decided))
        if len(asked) == 1:
            put(job, generation, dict(list(decided.items())[:1]))
            raise OvertakenError("another process was first")
        put(job, generation, decided)

    monkeypatch.setattr(shelf, "put", taken_in_part)
    with closing(Contingencies(shelf, pair_work=0)) as maker:
        maker.start()
        for _ in range(2):
            maker.submit("job", lambda: base)
            assert maker.wait_until_idle(PATIENCE)
            assert [len(keys) for keys in asked] == [4, 3], "what is stored is not made again"
    assert all(maker.find("job", after(base, loss)) is not None for loss in losses(base, 0))


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


def test_a_job_is_left_alone_before_work_begins_and_the_next_event_takes_its_place():
    looks = []
    ahead = Contingencies(Memory(), pair_work=0, settling_seconds=0.05)

    def look(generation):
        looks.append(generation)
        return base_of(generation=generation)

    ahead.start()
    ahead.submit("llama", lambda: look(1))
    ahead.submit("llama", lambda: look(2))
    assert ahead.wait_until_idle(PATIENCE)
    ahead.close()
    assert looks == [2]


class Clock(threading.Condition):
    """Seconds that pass only where somebody waits for them."""

    def __init__(self):
        super().__init__()
        self.now = 0.0

    def monotonic(self):
        return self.now

    def wait(self, timeout=None):
        assert timeout is not None
        assert timeout > 0.0
        self.now += timeout


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(contingencies, "time", made)
    return made


def at_rest(clock, **options):
    """One whose thread does not work: what it would do next is asked here."""
    maker = Contingencies(Memory(), pair_work=0, **options)
    maker._changed = clock
    return maker


def test_work_rests_after_every_question_of_any_job(clock):
    ahead = at_rest(clock, settling_seconds=5.0)
    ahead.submit("llama", base_of)
    clock.now = 3.0
    assert ahead.find("other", base_of()) is None
    assert ahead._next().job == "llama"
    assert clock.now == 8.0
    clock.now = 9.0
    ahead.find("other", base_of())
    assert ahead._next().job == "llama"
    assert clock.now == 14.0


def test_each_job_is_left_alone_for_itself(clock):
    ahead = at_rest(clock, settling_seconds=5.0)
    ahead.submit("older", base_of)
    clock.now = 2.0
    ahead.submit("newer", base_of)
    assert (ahead._next().job, clock.now) == ("older", 5.0)
    ahead.forget("older")
    assert (ahead._next().job, clock.now) == ("newer", 7.0)
    ahead.submit("newest", base_of)
    assert (ahead._next().job, clock.now) == ("newer", 7.0)
    assert ahead.num_pending() == 2
    ahead.forget_all()
    assert ahead.num_pending() == 0


def test_the_longer_the_database_is_away_the_longer_its_work_rests(clock):
    ahead = at_rest(clock)
    ahead.submit("llama", base_of)
    error, rests = UnavailableError("away", field=DATABASE_FIELD), []
    for _ in range(5):
        work, began = ahead._next(), clock.now
        ahead._put_off(work, error)
        ahead._next()
        rests.append(clock.now - began)
    assert rests == [2.0, 4.0, 8.0, 10.0, 10.0]


def test_what_a_forgotten_job_had_made_is_not_stored(clock):
    ahead = at_rest(clock)
    ahead.submit("llama", base_of)
    work = ahead._next()
    ahead._advance(work)
    ahead._advance(work)
    assert work.fresh
    assert ahead.find("llama", after(base_of(), next(losses(base_of())))) is not None, "before it is stored"
    ahead.forget("llama")
    ahead._store(work)
    assert ahead._shelf.jobs == []
    ahead.submit("llama", base_of)
    ahead._finish(work)
    assert ahead.num_pending() == 1, "its newer work goes on"
