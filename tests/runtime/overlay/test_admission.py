"""Asking to join: beside others of the same name, and while nobody answers."""

import queue
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from kintsugi.core.errors import InvalidInputError, ReconfigurationError, UnavailableError
from kintsugi.core.overlay import WorkerState
from kintsugi.core.overlay_messages import OverlayEvent, OverlayEventKind
from kintsugi.core.version import PROTOCOL
from kintsugi.runtime.overlay import admission, exits, links
from kintsugi.runtime.overlay.committed import GivenUpError
from kintsugi.runtime.overlay.coordinator import Coordinator
from tests.patience import eventually
from tests.processes import free_port
from tests.runtime.overlay.crew import OPTIONS, Crew, Member, perceptron
from tests.runtime.overlay.desk import Desk
from tests.runtime.overlay.test_churn import check
from tests.runtime.pausing import be_away


@pytest.fixture(autouse=True)
def nobody_asked() -> Iterator[None]:
    exits.forget_exit_event()
    yield
    exits.forget_exit_event()


def test_a_neighbour_that_cannot_be_reached_is_asked_for_now_and_then_alone():
    desk = Desk()
    lost = {"worker": "z", "address": f"127.0.0.1:{free_port()}", "state_bytes": 1, "shard_bytes": 1, "gradient_bytes": 1}
    desk.post(OverlayEvent(kind=OverlayEventKind.WORKER_JOINED, id="z", protocol=PROTOCOL, **lost))
    crew = Crew(desk, replace(OPTIONS, join_timeout_seconds=6.0))
    joiner = crew.start("b")
    joiner.join(120.0)
    assert isinstance(joiner.error, UnavailableError)
    assert 0 < desk.num(OverlayEventKind.LINK_CONNECTED) <= 30


class SilentDesk(Desk):
    """Takes a question, and does not answer."""

    def __init__(self) -> None:
        super().__init__()
        self.is_asked, self.may_answer = threading.Event(), threading.Event()

    def overlay(self, *arguments):
        self.is_asked.set()
        assert self.may_answer.wait(120.0)
        return super().overlay(*arguments)


def test_a_scheduler_that_does_not_answer_holds_nobody_who_is_asked_to_leave():
    crew, port = Crew(SilentDesk()), free_port()
    joiner = crew.start("a", host="127.0.0.1", port=port)
    try:
        assert crew.desk.is_asked.wait(120.0)
        exits.ask_to_leave()
        joiner.join(120.0)
        assert not joiner.is_alive()
    finally:
        crew.desk.may_answer.set()
    assert isinstance(joiner.error, GivenUpError)
    assert "was asked to leave" in str(joiner.error)
    socket.create_server(("127.0.0.1", port)).close()


def test_a_worker_that_is_paused_while_it_joins_has_its_time_afterwards():
    class PausedDesk(Desk):
        is_first = True

        def overlay(self, *arguments):
            if self.is_first:
                self.is_first = False
                be_away(1.6)
                raise UnavailableError("does not answer", field="service")
            return super().overlay(*arguments)

    crew = Crew(PausedDesk(), replace(OPTIONS, join_timeout_seconds=1.5))
    crew.start("a").await_steps(1)
    crew.finish()


def test_a_neighbour_that_is_not_there_yet_holds_nobody_who_is_asked_to_leave():
    class Noted(Desk):
        is_refused = threading.Event()

        def post(self, event):
            try:
                return super().post(event)
            except BaseException:
                self.is_refused.set()
                raise

    crew = Crew(Noted())
    crew.start("a").await_steps(1)
    joiner = crew.start("d", ("nobody",))
    assert Noted.is_refused.wait(120.0)
    exits.ask_to_leave()
    joiner.join(120.0)
    assert isinstance(joiner.error, GivenUpError)
    joiner.error = None
    crew.finish()


def test_a_worker_of_another_version_is_refused_and_the_others_do_not_notice(monkeypatch):
    crew = Crew()
    crew.start_connected("a", "b")
    before = crew.desk.now
    monkeypatch.setattr(admission, "PROTOCOL", PROTOCOL + 1)
    model, optimizer = perceptron()
    with pytest.raises(ReconfigurationError, match=f"is version {PROTOCOL + 1} here and {PROTOCOL} with a") as refused:
        Coordinator(model, optimizer, service=crew.desk, job="job", worker="c", options=OPTIONS)
    assert refused.value.field == "protocol"
    crew.members["a"].await_steps(crew.members["a"].num_steps + 1)
    assert crew.desk.now.workers == before.workers
    monkeypatch.undo()
    crew.finish()
    check(crew)


def test_names_may_be_as_long_as_any_and_may_hold_what_separates_them():
    crew = Crew()
    crew.start_connected("a" * 200, "b" * 200, "a-b", "a", "b")
    crew.finish()
    check(crew)
    assert any(len(line.contributors) == 5 for line in crew.lines)


class Meeting(Desk):
    """All that ask under one name before any of them joins see the same overlay."""

    def __init__(self) -> None:
        super().__init__()
        self.both = threading.Barrier(2)
        self.num_asked = 0

    def overlay(self, after_generation, wait_seconds, term):
        told = super().overlay(after_generation, wait_seconds, term)
        if after_generation is None and threading.current_thread().name == "overlay-asks" and self.now.generation > 0:
            with self._changed:
                self.num_asked += 1
                is_early = self.num_asked <= 2
            if is_early:
                self.both.wait(120.0)
        return told


class LateLink(Meeting):
    """The link with the first of two becomes one only once there is one with the second."""

    def __init__(self) -> None:
        super().__init__()
        self.is_greeted, self.num_joined = threading.Event(), 0

    def post(self, event: OverlayEvent):
        if event.kind is OverlayEventKind.WORKER_JOINED and event.worker == "d":
            with self._changed:
                self.num_joined += 1
                is_second = self.num_joined > 1
            if is_second:
                assert self.is_greeted.wait(120.0)
        return super().post(event)

    def delay(self, monkeypatch, crew: Crew) -> None:
        """Hold back what worker a does with the first greeting of the others."""
        greet = links.greet

        def greet_late(connection, identity, worker, **told):
            peer = greet(connection, identity, worker, **told)
            if not self.is_greeted.is_set():
                self.is_greeted.set()
                assert eventually(lambda: crew.members["a"].coordinator.links.get("d"), bool).peer.incarnation > peer.incarnation
            return peer

        monkeypatch.setattr(links, "greet", greet_late)


class Twin(Member):
    """Tells when it has ended."""

    def __init__(self, crew: Crew, over: "queue.SimpleQueue[Twin]") -> None:
        super().__init__(crew, "d", ("a",), {})
        self.over = over

    def run(self) -> None:
        super().run()
        self.over.put(self)


def join_twice(crew: Crew) -> None:
    """Two join as worker d at once: the later one stays, and the other is told."""
    over: queue.SimpleQueue[Twin] = queue.SimpleQueue()
    crew.start("a").await_steps(1)
    twins = [Twin(crew, over) for _ in range(2)]
    for twin in twins:
        twin.start()
    replaced = over.get(timeout=240.0)
    assert isinstance(replaced.error, GivenUpError)
    assert "joined under this worker's name" in str(replaced.error)
    if hasattr(replaced, "coordinator"):
        replaced.coordinator.close()
    (crew.members["d"],) = (twin for twin in twins if twin is not replaced)
    crew.members["d"].await_steps(2)
    crew.finish()


def test_of_two_that_join_under_one_name_at_once_the_later_one_takes_the_place_and_the_other_is_told():
    join_twice(Crew(Meeting()))


def test_a_late_link_with_the_one_that_was_replaced_does_not_cut_the_other_off(monkeypatch):
    crew = Crew(LateLink())
    crew.desk.delay(monkeypatch, crew)
    join_twice(crew)
    assert not [event.id for event in crew.desk.events if event.id.startswith("cut-")]


def test_a_link_that_comes_and_goes_while_a_worker_begins_is_connected_anew(monkeypatch):
    """The other end let go of it on purpose, and tells nobody."""
    crew = Crew()
    crew.start("a").await_steps(1)
    start = links.Links.start

    def start_and_lose(own) -> None:
        start(own)
        assert eventually(lambda: own.get("a"), bool)
        others = crew.members["a"].coordinator.links
        assert eventually(lambda: others.get("d"), bool)  # who is called has the link a moment later
        others.disconnect(others.get("d"))
        assert own.await_none(120.0)

    monkeypatch.setattr(links.Links, "start", start_and_lose)
    crew.start("d", ("a",)).await_steps(2)
    crew.finish()
    check(crew)


def join_and_drain(desk: Desk, worker: str) -> None:
    """Somebody who never had the state is about to leave."""
    sizes = {"state_bytes": 1, "shard_bytes": 1}
    joined = {"address": f"127.0.0.1:{free_port()}", "neighbors": ("a",), "protocol": PROTOCOL, **sizes}
    desk.post(OverlayEvent(kind=OverlayEventKind.WORKER_JOINED, id=f"joins-{worker}", worker=worker, **joined))
    desk.post(OverlayEvent(kind=OverlayEventKind.WORKER_DRAINING, id=f"drains-{worker}", worker=worker))
    assert desk.now.worker(worker).state is WorkerState.DRAINING


@pytest.mark.parametrize("has_leaver", [False, True])
def test_the_place_of_the_only_one_that_holds_the_state_is_not_taken_while_it_lives(has_leaver):
    crew = Crew()
    crew.start("a").await_steps(1)
    if has_leaver:
        join_and_drain(crew.desk, "b")
    model, optimizer = perceptron()
    with pytest.raises(InvalidInputError, match="nobody else holds the state") as refused:
        Coordinator(model, optimizer, service=crew.desk, job="job", worker="a", options=OPTIONS)
    assert (refused.value.field, refused.value.value) == ("worker", "a")
    crew.members["a"].await_steps(crew.members["a"].num_steps + 1)
    crew.finish()
    check(crew)


def test_the_place_of_one_that_died_is_taken_though_nobody_noticed():
    crew = Crew()
    crew.start("a").await_steps(1)
    struck = crew.members["a"]
    struck.strike()
    struck.is_leaving.set()
    struck.join(120.0)
    assert crew.desk.now.worker("a").state is WorkerState.ACTIVE
    again = crew.start("a")
    again.await_steps(1)
    crew.finish()


def test_a_name_that_is_empty_is_none():
    with pytest.raises(InvalidInputError, match="worker: must be a name"):
        Coordinator(*perceptron(), service="http://127.0.0.1:1", job="job", worker="", options=OPTIONS)
