"""Searches that come at the same time are made by other processes: the same decisions, errors told, ends survived, none left."""

import gc
import os
import resource
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace

import pytest
from starlette.testclient import TestClient

from api import assembly
from api.app import create_app
from api.decisions import planning, warm
from api.decisions import workshop as workshops
from api.decisions.deciding import Decider
from api.decisions.tries import MOST_TRIES
from api.decisions.workshop import NobodyThereError, TakesTooLongError, WorkLostError, Workshop
from api.metrics import Metrics
from api.settings import Settings
from kintsugi.core.cluster import Cluster
from kintsugi.core.errors import InfeasibleError, UnavailableError
from planner.contingency import accepted, after, losses
from planner.replan import replan
from tests.api.decisions import works
from tests.api.decisions.test_ahead import without_time
from tests.api.requests import EVENTS, event, new_job
from tests.builders import snapshot_of, uniform_profile
from tests.patience import eventually
from tests.processes import free_descriptors, is_running
from tests.runtime.runs import children_of, leaves_nothing

pytestmark = pytest.mark.processes

FIRST = snapshot_of(uniform_profile(4), Cluster.uniform(6), 4)
BASE = accepted(FIRST, replan(FIRST))
AFTER = [after(BASE, loss) for loss in list(losses(BASE, 0))[:4]]


@pytest.fixture(scope="module")
def workshop(fork_server):
    shop = Workshop(1, fork_server)
    shop.start()
    yield shop
    shop.close()


@contextmanager
def leaves_no_fork(server):
    """Nor anything else."""
    before = children_of(server.pid)
    with leaves_nothing():
        yield
    left = eventually(lambda: children_of(server.pid) - before, lambda left: not left)
    assert not left


@pytest.fixture
def without_collector():
    """Nothing is let go of because it is garbage."""
    gc.disable()
    yield
    gc.enable()


def test_what_is_decided_there_is_what_would_be_decided_here(workshop):
    for snapshot in AFTER:
        found, expected = workshop.do(planning.decided, snapshot), planning.decided(snapshot)
        assert (found.policy, found.reason, found.plan) == (expected.policy, expected.reason, expected.plan)
        assert without_time(found.wording.decision()) == without_time(expected.wording.decision())
    assert workshop.is_ready


def test_errors_are_told_as_what_they_are(workshop):
    with pytest.raises(InfeasibleError, match="nothing fits") as caught:
        workshop.do(works.fails)
    assert (caught.value.field, caught.value.value) == ("workers", 3)
    with pytest.raises(RuntimeError, match="nobody expected it"):
        workshop.do(works.breaks)
    assert workshop.do(planning.decided, AFTER[0]).plan is not None


def test_others_go_before_what_can_wait(fork_server):
    with closing(Workshop(1, fork_server, niceness=3)) as workshop:
        assert workshop.do(os.nice, 0) == min(os.nice(0) + 3, 19)


def test_an_answer_that_cannot_be_read_does_not_keep_the_process_from_the_next(without_collector, fork_server):
    with leaves_no_fork(fork_server):
        shop = Workshop(1, fork_server)
        with pytest.raises(AttributeError, match="not here"):
            shop.do(works.Foreign)
        with ThreadPoolExecutor(1) as threads:
            try:
                assert threads.submit(shop.do, abs, -3).result(timeout=240.0) == 3
            finally:
                shop.close()


def test_more_who_ask_than_there_are_processes_take_turns(workshop):
    with ThreadPoolExecutor(8) as threads:
        plans = list(threads.map(lambda snapshot: workshop.do(planning.decided, snapshot).plan, AFTER * 4))
    assert plans == [planning.decided(snapshot).plan for snapshot in AFTER] * 4


def test_a_process_that_ends_while_it_does_nothing_costs_nobody_an_answer(workshop):
    workshop.do(planning.decided, AFTER[0])
    (helper,) = workshop._helpers
    os.kill(helper.pid, signal.SIGKILL)
    assert not eventually(lambda: is_running(helper.pid), lambda running: not running)
    assert workshop.do(planning.decided, AFTER[0]).plan is not None
    assert helper not in workshop._helpers


def test_a_process_that_ends_over_its_work_is_told_and_another_takes_its_place(workshop):
    with pytest.raises(WorkLostError, match="killed"):
        workshop.do(works.dies, AFTER[0])
    assert workshop.do(planning.decided, AFTER[0]).plan is not None


def test_who_waits_while_the_only_process_ends_over_the_work_of_another_is_answered_by_the_next(without_collector, fork_server):
    with leaves_no_fork(fork_server), ThreadPoolExecutor(2) as threads, closing(Workshop(1, fork_server)) as shop:
        lost = threads.submit(shop.do, time.sleep, 60.0)
        assert eventually(lambda: shop.is_ready and not shop._idle, bool)
        waiting = threads.submit(shop.do, abs, -3)
        assert eventually(lambda: shop._changed._waiters, bool)
        (helper,) = shop._helpers
        os.kill(helper.pid, signal.SIGKILL)
        assert waiting.result(timeout=240.0) == 3
        with pytest.raises(WorkLostError, match="killed"):
            lost.result(timeout=240.0)


def test_where_all_stay_busy_for_too_long_nobody_is_told_that_there_is_no_process(monkeypatch, without_collector, fork_server):
    """Who is told so makes a long search in the service's own process."""
    with leaves_no_fork(fork_server), closing(Workshop(1, fork_server)) as shop:
        shop.start()
        busy = shop._free()
        with monkeypatch.context() as patch:
            patch.setattr(workshops, "LONGEST_SECONDS", 0.1)
            with pytest.raises(UnavailableError, match=r"busy for 0\.1 s") as caught:
                shop.do(abs, -3)
        assert not isinstance(caught.value, NobodyThereError)
        shop._shelve(busy)
        assert shop.do(abs, -3) == 3


@pytest.mark.parametrize("is_ready", [False, True])
def test_closing_ends_the_processes_and_refuses_what_comes_later(without_collector, is_ready, fork_server):
    with leaves_no_fork(fork_server):
        shop = Workshop(1, fork_server)
        shop.start()
        assert eventually(lambda: shop.is_ready or not is_ready, bool)
        shop.close()
        with pytest.raises(UnavailableError):
            shop.do(planning.decided, AFTER[0])


def test_who_waits_for_an_answer_when_all_is_closed_is_told(without_collector, fork_server):
    with leaves_no_fork(fork_server), ThreadPoolExecutor(1) as threads:
        shop = Workshop(1, fork_server)
        waiting = threads.submit(shop.do, time.sleep, 60.0)
        assert eventually(lambda: shop.is_ready and not shop._idle, bool)
        shop.close()
        with pytest.raises(UnavailableError, match="try again"):
            waiting.result(timeout=240.0)


def test_work_that_takes_too_long_is_ended_with_its_process(monkeypatch, without_collector, fork_server):
    with leaves_no_fork(fork_server), closing(Workshop(1, fork_server)) as shop:
        assert shop.do(abs, -3) == 3
        monkeypatch.setattr(workshops, "LONGEST_SECONDS", 0.1)
        with pytest.raises(TakesTooLongError, match=r"within 0\.1 s"):
            shop.do(time.sleep, 60.0)
        monkeypatch.undo()
        assert shop.do(abs, -3) == 3


def test_work_that_a_stopped_process_does_not_take_in_is_given_up(monkeypatch, without_collector, fork_server):
    monkeypatch.setattr(workshops, "LONGEST_SECONDS", 0.1)
    with leaves_no_fork(fork_server), closing(Workshop(1, fork_server)) as shop:
        shop.start()
        assert eventually(lambda: shop.is_ready, bool)
        (helper,) = shop._helpers
        os.kill(helper.pid, signal.SIGSTOP)
        with pytest.raises(TakesTooLongError, match=r"within 0\.1 s"):
            shop.do(len, "x" * 10_000_000)
        monkeypatch.undo()
        assert shop.do(abs, -3) == 3


def test_without_processes_nothing_is_done(fork_server):
    with pytest.raises(UnavailableError):
        Workshop(0, fork_server).do(planning.decided, AFTER[0])


def test_where_no_process_can_begin_nobody_is_stopped_and_a_later_one_begins(monkeypatch, without_collector, fork_server):
    """As in a service that has used up its descriptors."""
    searched, decided = [], planning.decided
    for snapshot in AFTER[:2]:
        decided(snapshot)  # machine code and modules that a first search loads are files
    used_up, of_others = next(free_descriptors(os.getpid())), resource.getrlimit(resource.RLIMIT_NOFILE)
    monkeypatch.setattr(planning, "decided", lambda snapshot: searched.append(snapshot) or decided(snapshot))
    with leaves_no_fork(fork_server), closing(Workshop(1, fork_server)) as shop:
        decider = Decider(Metrics(), None, shop)
        resource.setrlimit(resource.RLIMIT_NOFILE, (used_up, of_others[1]))
        try:
            with decider._searching(is_long=False):
                decider.decided(AFTER[0], "short")
            monkeypatch.setattr(planning, "LONG", 0)
            decider.decided(AFTER[1], "long")
            with pytest.raises(UnavailableError, match="no process is there"):
                shop.do(abs, -3)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, of_others)
        assert searched == AFTER[:2]
        assert shop.do(abs, -3) == 3


def test_where_no_thread_can_begin_nobody_waits_for_a_process_that_nobody_welcomes(without_collector, fork_server):
    with leaves_no_fork(fork_server), closing(Workshop(1, fork_server)) as shop:
        before = threading.stack_size(2**46)  # bytes that no address space has
        try:
            with pytest.raises(NobodyThereError):
                shop.do(abs, -3)
        finally:
            threading.stack_size(before)
        assert shop.do(abs, -3) == 3


def test_where_processes_end_before_they_are_ready_long_searches_are_made_here(monkeypatch, without_collector, fork_server):
    monkeypatch.setattr(planning, "LONG", 0)
    monkeypatch.setattr(workshops, "_help", works.stillborn)
    with leaves_no_fork(fork_server), closing(Workshop(2, fork_server)) as shop:
        assert Decider(Metrics(), None, shop).decided(AFTER[0], "long").plan == planning.decided(AFTER[0]).plan


class Watched(Workshop):
    """Counts what it is asked, and does it here."""

    def __init__(self):
        super().__init__(0, warm.fork_server())
        self.started = self.asked = 0

    @property
    def is_ready(self):
        return self.started > 0

    @property
    def size(self):
        return 1

    def start(self):
        self.started += 1

    def do(self, work, *args):
        self.asked += 1
        return work(*args)


def test_a_search_alone_stays_here_and_two_at_a_time_begin_the_workshop(monkeypatch):
    shop, both = Watched(), threading.Barrier(2, timeout=240.0)
    decider = Decider(Metrics(), None, shop)
    decider.decided(AFTER[0], "one")
    assert (shop.started, shop.asked) == (0, 0)
    decided = planning.decided

    def together(snapshot):
        both.wait()
        return decided(snapshot)

    with monkeypatch.context() as patch, ThreadPoolExecutor(2) as threads:
        patch.setattr(planning, "decided", together)
        assert len(list(threads.map(lambda snapshot: decider.decided(snapshot, "two"), AFTER[:2]))) == 2
    assert eventually(lambda: shop.started, lambda started: started == 1) == 1
    asked = shop.asked
    decider.decided(AFTER[2], "three")
    assert shop.asked == asked + 1


def test_a_long_search_goes_there_even_alone_and_short_ones_stay_here_meanwhile(monkeypatch):
    short, long = AFTER[0], AFTER[1]
    monkeypatch.setattr(planning, "is_long", lambda _, num_workers: num_workers == len(long.alive))
    short = replace(short, alive=short.alive[1:])
    shop, begun, goes_on, decided = Watched(), threading.Event(), threading.Event(), planning.decided
    decider = Decider(Metrics(), None, shop)

    def held(snapshot):
        begun.set()
        assert goes_on.wait(120.0)
        return decided(snapshot)

    monkeypatch.setattr(planning, "decided", held)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(decider.decided, long, "long")
        assert begun.wait(120.0)
        assert decider.decide(short).plan is not None
        assert shop.asked == 1
        goes_on.set()
        assert waiting.result(timeout=240.0).plan is not None
    decider.decide(long)
    assert shop.asked == 2


def test_a_service_that_finds_a_job_that_may_ask_for_a_long_search_begins_the_workshop(monkeypatch, tmp_path):
    settings = Settings(database_url=f"sqlite:///{tmp_path}/kintsugi.sqlite3", plans_ahead=False)
    with TestClient(create_app(settings)) as client:
        assert client.post("/v1/jobs", json=new_job()).status_code == 201
        assert client.post("/v1/jobs", json=new_job(id="long", workers=7)).status_code == 201
    shop = Watched()
    monkeypatch.setattr(planning, "LONG", 4 * 7)
    monkeypatch.setattr(assembly, "Workshop", lambda *_: shop)
    with TestClient(create_app(settings)) as client:
        assert client.get("/v1/jobs/llama/plan").status_code == 200
        assert shop.started == 0
        assert client.get("/v1/jobs/long/plan").status_code == 200
        assert shop.started > 0


def test_a_long_search_that_kills_its_process_leaves_the_service_as_it_was(monkeypatch, tmp_path, fork_server):
    monkeypatch.setattr(planning, "LONG", 0)
    settings = Settings(database_url=f"sqlite:///{tmp_path}/kintsugi.sqlite3", plans_ahead=False, planning_processes=1)
    with leaves_no_fork(fork_server), TestClient(create_app(settings), raise_server_exceptions=False) as client:
        assert client.post("/v1/jobs", json=new_job()).status_code == 201
        with monkeypatch.context() as patch:
            patch.setattr(planning, "decided", works.dies)
            answers = [client.post(EVENTS, json=event("a", 0, "w00")).status_code for _ in range(MOST_TRIES)]
        assert answers == [503, 503, 409]
        assert client.post(EVENTS, json=event("b", 0, "w00")).json()["generation"] == 1
