"""A joining worker goes when it is asked to, and does not wait for a state that nobody holds."""

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

import pytest

from kintsugi.core.errors import UnavailableError
from kintsugi.core.overlay import Overlay, WorkerState
from kintsugi.core.overlay_messages import OverlayEvent, OverlayEventKind
from kintsugi.runtime.overlay import exits, sources
from kintsugi.runtime.overlay.committed import GivenUpError
from kintsugi.runtime.overlay.links import Links
from kintsugi.runtime.overlay.options import OverlayOptions
from kintsugi.runtime.overlay.rounds import Rounds
from kintsugi.runtime.overlay.vigil import TELL_SECONDS, Vigil
from tests.planner.overlay.world import World
from tests.runtime.overlay.crew import OPTIONS, Crew
from tests.runtime.overlay.test_churn import check

PROMPT_SECONDS = 10.0
"""Far below the patience of a leave and of a join, and far above what a busy machine takes."""


@pytest.fixture(autouse=True)
def nobody_asked() -> Iterator[None]:
    exits.forget_exit_event()
    yield
    exits.forget_exit_event()


class Watched:
    """A vigil over a worker that joins next to `w00`, by a clock of its own."""

    def __init__(self, **told) -> None:
        self.world = World()
        self.world.join("w00")
        self.world.join("w01", "w00")
        self.now, self.silent, self.counts, self.awaited = 100.0, 0.0, False, []
        self.agent = SimpleNamespace(identity=SimpleNamespace(worker="w01"), overlay=self.overlay, state=WorkerState.JOINING)
        self.vigil = Vigil(
            self.agent,
            options=OverlayOptions(**told),
            counts=lambda: self.counts,
            awaited=self._awaited,
            silent_seconds=lambda: self.silent,
            wake=lambda: None,
            clock=lambda: self.now,
        )

    @property
    def overlay(self) -> Overlay:
        return self.world.overlay

    def after(self, seconds: float) -> Exception | None:
        """Why the wait is over, so much later."""
        self.now += seconds
        self.agent.overlay = self.overlay
        self.vigil.look()
        return self.vigil.error

    def _awaited(self) -> str:
        self.awaited.append(self.now)
        return "something"


def test_a_state_that_nobody_holds_is_not_waited_for():
    watched = Watched()
    assert watched.after(100.0) is None
    watched.world.tell("worker_failed", worker="w00", detail="no heartbeat for 10.0 s")
    assert watched.after(50.0) is None
    assert watched.after(9.0) is None
    error = watched.after(1.0)
    assert isinstance(error, UnavailableError)
    assert (error.field, error.value) == ("job", "llama")
    for told in ("w00 failed: no heartbeat for 10.0 s", "restore a checkpoint"):
        assert told in str(error)


def test_a_holder_that_comes_back_or_leaves_slowly_is_waited_for():
    watched = Watched()
    watched.world.tell("worker_failed", worker="w00")
    assert watched.after(1.0) is None
    watched.world.join("w00", incarnation=1)
    assert watched.overlay.worker("w00").state is WorkerState.ACTIVE
    assert watched.after(100.0) is None
    watched.world.tell("worker_draining", worker="w00", incarnation=1)
    assert watched.after(100.0) is None
    watched.world.tell("worker_left", worker="w00", incarnation=1)
    assert watched.after(9.0) is None
    assert watched.after(9.0) is None
    assert watched.after(1.0) is not None


def test_what_a_silent_scheduler_does_not_tell_is_not_taken_for_a_loss():
    watched = Watched()
    watched.world.tell("worker_failed", worker="w00")
    assert watched.after(0.0) is None
    watched.silent = 95.0
    assert watched.after(100.0) is None
    watched.silent = 0.0
    assert watched.after(0.0) is not None


def test_who_counts_has_the_time_of_a_leave():
    watched = Watched(drain_timeout_seconds=1e-9)
    watched.counts = True
    assert watched.after(1.0) is None
    exits.ask_to_leave()
    assert isinstance(watched.after(0.0), GivenUpError)
    patient = Watched()
    patient.counts = True
    assert patient.after(0.0) is None
    patient.counts = False
    assert isinstance(patient.after(0.0), GivenUpError)


def test_what_is_waited_for_is_said_every_some_seconds():
    watched = Watched()
    for _ in range(25):
        watched.after(TELL_SECONDS / 10)
    assert len(watched.awaited) == 2


def ended(joiner) -> float:
    """Seconds until the joiner has ended, after it was asked to."""
    began = time.monotonic()
    exits.ask_to_leave()
    joiner.join(120.0)
    assert not joiner.is_alive()
    return time.monotonic() - began


@pytest.mark.parametrize("phase", ["link", "state", "restart"])
def test_a_worker_that_a_signal_asks_to_leave_while_it_joins_goes_at_once(monkeypatch, phase):
    crew = Crew()
    crew.start("a").await_steps(1)
    is_met, may_go_on = threading.Event(), threading.Event()
    put, connect, settle = sources._Stream._put, Links.connect, Rounds.settle

    def hold() -> None:
        is_met.set()
        assert may_go_on.wait(120.0)

    def put_later(stream, kind, *arguments):
        hold()
        put(stream, kind, *arguments)

    def connect_later(links, worker, address):
        hold()
        return connect(links, worker, address)

    def settle_later(rounds):
        if rounds._worker == "d":
            is_met.set()
            rounds._inbox.await_restart(10**9, 60.0)
        settle(rounds)

    if phase == "link":
        monkeypatch.setattr(Links, "connect", connect_later)
    elif phase == "state":
        monkeypatch.setattr(sources._Stream, "_put", put_later)
    else:
        monkeypatch.setattr(Rounds, "settle", settle_later)
    joiner = crew.start("d", ("a",))
    try:
        assert is_met.wait(120.0)
        assert ended(joiner) < PROMPT_SECONDS
    finally:
        may_go_on.set()
    assert isinstance(joiner.error, GivenUpError)
    assert "d" not in [worker.id for worker in crew.desk.now.workers]
    joiner.error = None
    crew.members["a"].await_steps(crew.members["a"].num_steps + 2)
    crew.finish()
    check(crew)
    assert crew.desk.num(OverlayEventKind.WORKER_LEFT) == 2
    assert crew.desk.now.restarts == 0


def test_a_joiner_whose_only_source_dies_is_told_so(monkeypatch):
    crew = Crew(options=replace(OPTIONS, ping_seconds=0.2, link_timeout_seconds=1.0))
    is_met, may_go_on = threading.Event(), threading.Event()

    def put_never(_stream, _kind, *_arguments):
        is_met.set()
        assert may_go_on.wait(120.0)

    monkeypatch.setattr(sources._Stream, "_put", put_never)
    monkeypatch.setattr("kintsugi.runtime.overlay.member._JOIN_SECONDS", 0.0)  # it is struck while it is stuck
    crew.start("a").await_steps(1)
    joiner = crew.start("d", ("a",))
    try:
        assert is_met.wait(120.0)
        crew.members["a"].strike()
        silent = {"worker": "a", "incarnation": crew.desk.now.worker("a").incarnation, "detail": "no heartbeat for 10.0 s"}
        crew.desk.post(OverlayEvent(kind=OverlayEventKind.WORKER_FAILED, id="silent", **silent))
        crew.desk.until(lambda overlay: overlay.worker("a").state is WorkerState.FAILED)
        joiner.join(PROMPT_SECONDS)
    finally:
        may_go_on.set()
    assert isinstance(joiner.error, UnavailableError)
    assert joiner.error.field == "job"
    crew.desk.until(lambda overlay: all(worker.id != "d" for worker in overlay.workers))
    joiner.error = None
    crew.finish()


def test_a_joiner_waits_for_a_holder_that_returns(monkeypatch):
    """It was thought dead, and joins again: nobody else goes meanwhile, and the state is the one that it has."""
    crew = Crew(options=replace(OPTIONS, ping_seconds=0.2, link_timeout_seconds=20.0))
    put, is_met, is_held = sources._Stream._put, threading.Event(), [True]

    def put_later(stream, kind, *arguments):
        is_met.set()
        if not is_held[0]:
            put(stream, kind, *arguments)

    monkeypatch.setattr(sources._Stream, "_put", put_later)
    crew.start("a").await_steps(1)
    joiner = crew.start("d", ("a",))
    assert is_met.wait(120.0)
    life = crew.desk.now.worker("a").incarnation
    lost = crew.members["a"]
    crew.desk.post(OverlayEvent(kind=OverlayEventKind.WORKER_FAILED, id="lost", worker="a", incarnation=life))
    lost.join(120.0)
    lost.coordinator.close()
    is_held[0] = False
    crew.start("a").await_steps(1)
    joiner.await_steps(1)
    crew.finish()
