"""Which plans are made ahead first, when the work rests, and what goes on where something fails."""

import os
import signal
import threading
from contextlib import closing

import pytest
from structlog.testing import capture_logs

from api.decisions import ahead as making
from api.decisions import contingencies
from api.decisions import workshop as workshops
from api.decisions.contingencies import Contingencies
from api.decisions.workshop import TakesTooLongError, WorkLostError
from api.storage.database import DATABASE_FIELD, OvertakenError
from kintsugi.core import codec
from kintsugi.core.errors import UnavailableError
from planner.contingency import after, fingerprint, losses
from tests.api.decisions import works
from tests.api.decisions.shelves import PATIENCE, Memory, base_of
from tests.patience import eventually
from tests.processes import is_running
from tests.runtime.runs import leaves_nothing


def test_the_newest_is_made_first_and_superseded_work_is_dropped(fork_server):
    shelf, taken, going_on = Memory(), threading.Event(), threading.Event()

    def slow():
        taken.set()
        assert going_on.wait(PATIENCE)
        return base_of(generation=1)

    with closing(Contingencies(shelf, fork_server, pair_work=0)) as ahead:
        ahead.start()
        ahead.submit("old", slow)
        assert taken.wait(PATIENCE)
        ahead.submit("middle", lambda: base_of(generation=5))
        ahead.submit("old", lambda: base_of(generation=2))
        ahead.submit("new", lambda: base_of(generation=7))
        going_on.set()
        assert ahead.wait_until_idle(PATIENCE)
    assert shelf.jobs == [("new", 7), ("old", 2), ("middle", 5)]
    for loss in losses(base_of(generation=2), 0):
        assert ahead.find("old", after(base_of(generation=2), loss)) is not None


def test_single_losses_of_every_job_come_before_pairs_of_any(fork_server):
    shelf, base = Memory(), base_of(num_workers=20)
    with closing(Contingencies(shelf, fork_server, pair_work=400)) as ahead:
        ahead.submit("older", lambda: base)
        ahead.submit("newer", lambda: base)
        ahead.start()
        assert ahead.wait_until_idle(PATIENCE)
    batches = [job for job, _ in shelf.jobs]
    assert batches.index("older") == 1  # its first batch is single losses, and the newer job has pairs to come
    assert batches[-1] == "older"
    assert "newer" in batches[2:]


def test_of_a_job_that_ended_at_another_process_no_more_is_made_than_a_batch(fork_server):
    class Ended(Memory):
        def put(self, job, generation, decided):
            super().put(job, generation, decided)
            return True

    shelf = Ended()
    with closing(Contingencies(shelf, fork_server, pair_work=400)) as ahead:
        ahead.submit("job", lambda: base_of(num_workers=20))
        ahead.start()
        assert ahead.wait_until_idle(PATIENCE)
    assert len(shelf.jobs) == 1


@pytest.mark.parametrize("error", [UnavailableError("no"), RuntimeError("never thought of")])
def test_what_goes_wrong_stops_the_work_on_a_job_not_the_thread(error, fork_server):
    class Broken(Memory):
        def put(self, job, generation, decided):
            if job == "unlucky":
                raise error
            super().put(job, generation, decided)

    with closing(Contingencies(Broken(), fork_server, pair_work=0)) as ahead:
        ahead.start()
        ahead.submit("unlucky", base_of)
        assert ahead.wait_until_idle(PATIENCE)
        ahead.submit("lucky", base_of)
        assert ahead.wait_until_idle(PATIENCE)
    snapshot = after(base_of(), next(losses(base_of())))
    assert ahead.find("unlucky", snapshot) is None
    assert ahead.find("lucky", snapshot) is not None


def test_the_end_of_the_process_that_plans_costs_no_plan(fork_server):
    shelf, ended = Memory(), []
    with closing(Contingencies(shelf, fork_server, pair_work=0)) as maker:
        assert making.make(maker._workshop, codec.dumps(base_of()), next(losses(base_of()))) is not None

        def look():
            for child in maker._workshop._helpers:
                os.kill(child.pid, signal.SIGKILL)
                assert not eventually(lambda: is_running(child.pid), lambda running: not running)  # noqa: B023
                ended.append(child)
            return base_of()

        maker.start()
        maker.submit("job", look)
        assert maker.wait_until_idle(PATIENCE)
    assert ended
    assert all(maker.find("job", after(base_of(), loss)) is not None for loss in losses(base_of(), 0))


@pytest.mark.processes
@pytest.mark.parametrize("is_there", [False, True])
def test_the_end_does_not_wait_for_the_process_that_plans_and_leaves_none(monkeypatch, is_there, fork_server):
    monkeypatch.setattr(contingencies, "make", lambda workshop, *_: workshop.do(signal.pause))
    monkeypatch.setattr(contingencies, "CLOSING_SECONDS", PATIENCE)
    if not is_there:
        monkeypatch.setattr(workshops, "_help", works.never_there)
    with leaves_nothing():
        ahead = Contingencies(Memory(), fork_server, pair_work=0)
        ahead.start()
        ahead.submit("job", base_of)
        shop = ahead._workshop
        assert eventually(lambda: shop._helpers and (not is_there or (shop.is_ready and not shop._idle)), bool)
        ahead.close()
        assert not ahead._thread.is_alive()
        assert not shop._helpers


@pytest.mark.usefixtures("talkative")
@pytest.mark.parametrize(("error", "tries"), [(TakesTooLongError("too long"), 1), (WorkLostError("killed"), 2)])
def test_a_plan_that_cannot_be_made_is_given_up_once_and_for_all_and_what_was_made_is_kept(monkeypatch, error, tries, fork_server):
    shelf, base, asked = Memory(), base_of(), []
    first, second, *_ = losses(base, 0)

    def made(workshop, document, loss):
        asked.append(loss)
        if loss == second:
            raise error
        return making.make(workshop, document, loss)

    monkeypatch.setattr(contingencies, "make", made)
    with closing(Contingencies(shelf, fork_server, pair_work=0)) as maker, capture_logs() as logs:
        maker.start()
        for _ in range(2):
            maker.submit("job", lambda: base)
            assert maker.wait_until_idle(PATIENCE)
        maker.submit("job", lambda: base_of(generation=2))  # another snapshot is tried
        assert maker.wait_until_idle(PATIENCE)
    assert asked == [first, *([second] * tries)] * 2
    assert shelf.find("job", fingerprint(after(base, first))) is not None
    told = [line for line in logs if line["event"] == "no further plans ahead: one is given up"]
    assert [(line["job"], line["lost"], line["log_level"]) for line in told] == [("job", second.subjects, "warning")] * 2


@pytest.mark.parametrize("what", ["fingerprints", "put"])
def test_work_is_taken_up_again_once_the_database_is_back(what, monkeypatch, fork_server):
    shelf, refusals = Memory(), [UnavailableError("away", field=DATABASE_FIELD)] * 2
    done = getattr(shelf, what)

    def away(*arguments):
        if refusals:
            raise refusals.pop()
        return done(*arguments)

    monkeypatch.setattr(shelf, what, away)
    monkeypatch.setattr(contingencies, "AGAIN_SECONDS", 0.01)
    with closing(Contingencies(shelf, fork_server, pair_work=0)) as ahead:
        ahead.start()
        ahead.submit("job", base_of)
        assert ahead.wait_until_idle(PATIENCE)
    assert all(ahead.find("job", after(base_of(), loss)) is not None for loss in losses(base_of(), 0))


def test_of_what_two_processes_made_each_stores_what_the_other_has_not(monkeypatch, fork_server):
    base, shelf, asked = base_of(), Memory(), []
    put = shelf.put

    def taken_in_part(job, generation, decided):
        asked.append(set(decided))
        if len(asked) == 1:
            put(job, generation, dict(list(decided.items())[:1]))
            raise OvertakenError("another process was first")
        put(job, generation, decided)

    monkeypatch.setattr(shelf, "put", taken_in_part)
    with closing(Contingencies(shelf, fork_server, pair_work=0)) as maker:
        maker.start()
        for _ in range(2):
            maker.submit("job", lambda: base)
            assert maker.wait_until_idle(PATIENCE)
            assert [len(keys) for keys in asked] == [4, 3], "what is stored is not made again"
    assert all(maker.find("job", after(base, loss)) is not None for loss in losses(base, 0))


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


def at_rest(clock, fork_server, **options):
    """One whose thread does not work: what it would do next is asked here."""
    maker = Contingencies(Memory(), fork_server, pair_work=0, **options)
    maker._changed = clock
    return maker


def test_a_job_is_left_alone_before_work_begins_and_the_next_event_takes_its_place(clock, fork_server):
    ahead, looks = at_rest(clock, fork_server, settling_seconds=5.0), []

    def look(generation):
        looks.append(generation)
        return base_of(generation=generation)

    ahead.submit("llama", lambda: look(1))
    clock.now = 3.0
    ahead.submit("llama", lambda: look(2))
    work = ahead._next()
    assert clock.now == 8.0
    ahead._advance(work)
    assert looks == [2]
    assert ahead.num_pending() == 1
    ahead._finish(work)
    assert ahead.num_pending() == 0, "nothing is left of what it took the place of"


def test_work_rests_after_every_question_of_any_job(clock, fork_server):
    ahead = at_rest(clock, fork_server, settling_seconds=5.0)
    ahead.submit("llama", base_of)
    clock.now = 3.0
    assert ahead.find("other", base_of()) is None
    assert ahead._next().job == "llama"
    assert clock.now == 8.0
    clock.now = 9.0
    ahead.find("other", base_of())
    assert ahead._next().job == "llama"
    assert clock.now == 14.0


def test_each_job_is_left_alone_for_itself(clock, fork_server):
    ahead = at_rest(clock, fork_server, settling_seconds=5.0)
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


def test_the_longer_the_database_is_away_the_longer_its_work_rests(clock, fork_server):
    ahead = at_rest(clock, fork_server)
    ahead.submit("llama", base_of)
    error, rests = UnavailableError("away", field=DATABASE_FIELD), []
    for _ in range(5):
        work, began = ahead._next(), clock.now
        ahead._put_off(work, error)
        ahead._next()
        rests.append(clock.now - began)
    assert rests == [2.0, 4.0, 8.0, 10.0, 10.0]


def test_what_a_forgotten_job_had_made_is_not_stored(clock, fork_server):
    ahead = at_rest(clock, fork_server)
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
