"""Workers join, leave and fail while the others train; replicas stay bitwise equal, and no step has two sums."""

import socket
import threading
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import nn

from kintsugi.core.errors import ReconfigurationError
from kintsugi.core.overlay import Overlay, WorkerState
from kintsugi.core.overlay_messages import OverlayEvent, OverlayEventKind
from kintsugi.runtime.overlay import arrival, losses, sources
from kintsugi.runtime.overlay.committed import GivenUpError
from kintsugi.runtime.overlay.coordinator import Coordinator
from kintsugi.runtime.overlay.exchange import Exchange
from kintsugi.runtime.overlay.messages import NO_BYTES, Message, write
from kintsugi.runtime.overlay.reduction import DOWN, TreeReduction
from kintsugi.runtime.overlay.sources import SEAL
from tests.runtime.overlay.crew import OPTIONS, Build, Crew, Line, cut, perceptron, replayed, wide
from tests.runtime.overlay.desk import Desk


def test_workers_join_and_leave_a_running_job():
    crew = Crew()
    crew.start("a").await_steps(2)
    crew.start("b", ("a",)).await_steps(2)
    crew.start("c", ("a", "b")).await_steps(3)
    leaver = crew.members["a"]
    leaver.is_leaving.set()
    leaver.join(120.0)
    crew.members["c"].await_steps(6)
    crew.finish()
    check(crew)
    assert crew.desk.now.restarts == 0
    assert crew.desk.num(OverlayEventKind.WORKER_FAILED) == 0


def check(crew: Crew) -> None:
    """Replicas were bitwise equal after every step, and the losses are those of an uninterrupted run."""
    check_lines(crew.witnessed, crew.build)


def check_lines(lines: Sequence[Line], build: Build = perceptron) -> None:
    """As `check`, for what workers wrote down."""
    digests: dict[int, dict[str, list[Line]]] = {}
    for line in lines:
        digests.setdefault(line.number, {}).setdefault(line.digest, []).append(line)
    apart = {number: found for number, found in digests.items() if len(found) > 1}
    assert not apart, f"replicas differ after reductions {apart}"
    losses = replayed(lines, build)
    for line in lines:
        if line.worker in line.contributors:
            assert line.loss == pytest.approx(losses[line.step - 1][line.worker], rel=1e-12, abs=1e-14)


def test_the_last_mean_of_a_worker_that_leaves_comes_late_and_as_it_was(monkeypatch):
    """Nobody waits for it any more: the others make further steps while it is on its way."""
    crew, last, is_late = Crew(Desk(all_links_alike=True)), [], threading.Event()
    may_come = threading.Event()

    def slow(connection: socket.socket, message: Message) -> None:
        if threading.current_thread().name == "overlay-link-c-writes" and message.kind == DOWN:
            agreed = (message.fields.get("header") or {}).get("ready")
            if agreed is not None and "c" not in agreed["synchronization"]["order"]:
                last.append(message.fields["pass"])
            elif message.fields["pass"] in last:
                is_late.set()
                assert may_come.wait(120.0)
        write(connection, message)

    monkeypatch.setattr("kintsugi.runtime.overlay.link.write", slow)
    crew.start_connected("a", "b", "c")
    leaver = crew.members["c"]
    leaver.is_leaving.set()
    assert is_late.wait(120.0)
    for worker in ("a", "b"):
        crew.members[worker].await_steps(crew.members[worker].num_steps + 4)
    may_come.set()
    leaver.join(120.0)
    found = leaver.coordinator.digest()
    crew.finish()
    check(crew)
    assert found in {line.digest for line in crew.lines if line.step == leaver.coordinator.step}


def test_a_worker_is_lost_in_the_middle_of_a_reduction():
    crew = Crew()
    crew.start("a").await_steps(1)
    for worker, neighbors in (("b", ("a",)), ("c", ("a", "b")), ("d", ("b", "c"))):
        crew.start(worker, neighbors).await_steps(1)
    crew.members["d"].pause_seconds = 30.0
    crew.members["d"].await_steps(1)
    crew.members["b"].strike()
    crew.desk.until(lambda overlay: overlay.restarts > 0)
    crew.members["d"].pause_seconds = 0.0
    crew.members["d"].is_leaving.set()
    crew.members["c"].await_steps(crew.members["c"].num_steps + 3)
    crew.finish()
    check(crew)
    assert crew.desk.now.restarts == 1


def test_who_cannot_apply_a_step_that_the_others_have_takes_part_no_more():
    crew, is_full = Crew(), threading.Event()

    def fail_once() -> None:
        if is_full.is_set():
            is_full.clear()
            raise MemoryError("no room for the update")

    crew.start("a").await_steps(1)
    failed = crew.start("b", ("a",), before_step=fail_once)
    failed.await_steps(2)
    is_full.set()
    failed.join(120.0)
    assert isinstance(failed.error, MemoryError)
    failed.error = None
    with pytest.raises(GivenUpError, match=r"failed here \(MemoryError\), which the others have; join again"):
        failed.coordinator.update()
    crew.members["a"].await_steps(crew.members["a"].num_steps + 3)
    crew.finish()
    check(crew)


def test_a_link_is_cut_and_the_reduction_goes_around_it():
    crew = Crew()
    crew.start_connected("a", "b")
    crew.start("c", ("a", "b")).await_steps(2)
    used = crew.desk.now.synchronization.parents
    cut(crew, *next(iter(used.items())))
    overlay = crew.desk.until(lambda overlay: overlay.restarts > 0)
    assert set(overlay.synchronization.order) == {"a", "b", "c"}
    assert overlay.synchronization.parents != used
    for member in crew.members.values():
        member.await_steps(member.num_steps + 3)
    before_anybody_left = list(crew.lines)
    crew.finish()
    check(crew)
    assert all(line.contributors == ("a", "b", "c") for line in before_anybody_left if line.worker == "c")


class TwoWords(Desk):
    """Hears that a worker failed once two have said so of somebody."""

    def __init__(self) -> None:
        super().__init__()
        self.said = threading.Barrier(2, timeout=240.0)

    def post(self, event: OverlayEvent) -> Overlay:
        if event.kind is OverlayEventKind.WORKER_FAILED:
            self.said.wait()
        return super().post(event)


def test_of_two_that_take_each_other_for_dead_one_goes_on(monkeypatch):
    monkeypatch.setattr(losses, "is_there", lambda *_: False)
    crew = Crew(desk=TwoWords())
    crew.start_connected("a", "b")
    cut(crew, "a", "b")
    overlay = crew.desk.until(lambda overlay: overlay.restarts > 0)
    (lost,) = (crew.members[one.id] for one in overlay.workers if one.state is WorkerState.FAILED)
    (kept,) = (member for member in crew.members.values() if member is not lost)
    lost.join(120.0)
    assert isinstance(lost.error, GivenUpError)
    assert "it does not answer at its address" in str(lost.error)
    lost.error = None
    lost.is_struck.set()  # the others may have done without its last reduction
    kept.await_steps(kept.num_steps + 3)
    crew.finish()
    check(crew)
    assert crew.desk.num(OverlayEventKind.WORKER_FAILED) == 1


class Hoarder(torch.optim.Adam):
    """Keeps what cannot be sent, from its first step on."""

    def step(self, closure=None) -> None:
        super().step(closure)
        for state in self.state.values():
            state["seen"] = {1}


def hoarding() -> tuple[nn.Module, torch.optim.Optimizer]:
    model, optimizer = perceptron()
    return model, Hoarder(model.parameters(), optimizer.defaults["lr"])


def test_a_state_that_cannot_be_sent_keeps_the_joiner_out_and_does_not_hurt_who_holds_it(monkeypatch):
    monkeypatch.setattr(Coordinator, "digest", lambda _: "")
    crew = Crew(build=hoarding)
    crew.start("a").await_steps(1)
    joiner = crew.start("b", ("a",))
    joiner.join(120.0)
    assert isinstance(joiner.error, ReconfigurationError)
    assert "a cannot send its state: optimizer.seen: holds a set" in str(joiner.error)
    joiner.error = None
    crew.members["a"].await_steps(crew.members["a"].num_steps + 3)
    crew.finish()
    check(crew)
    assert crew.desk.now.restarts == 0


def test_links_are_asked_for_and_given_up_at_the_end_of_a_step():
    crew = Crew()
    crew.start_connected("a", "b")
    crew.start("c", ("a",)).await_steps(1)
    crew.members["b"].coordinator.connect_link("c")
    crew.desk.until(lambda overlay: any(link.between == ("b", "c") and link.is_measured for link in overlay.links))
    crew.members["c"].coordinator.disconnect_link("a")
    crew.desk.until(lambda overlay: all(link.between != ("a", "c") for link in overlay.links))
    for member in crew.members.values():
        member.await_steps(member.num_steps + 3)
    assert crew.members["a"].coordinator.links.await_none(0.0) is False
    before_anybody_left = list(crew.lines)
    crew.finish()
    check(crew)
    assert crew.desk.now.restarts == 0
    assert all(line.contributors == ("a", "b", "c") for line in before_anybody_left if line.worker == "c")


def test_a_worker_comes_and_goes_under_the_same_name():
    crew = Crew()
    crew.start("a").await_steps(1)
    for _ in range(3):
        guest = crew.start("b", ("a",))
        guest.await_steps(1)
        guest.is_leaving.set()
        guest.join(120.0)
        assert not guest.is_alive()
        assert guest.error is None
    crew.finish()
    check(crew)
    assert crew.desk.num(OverlayEventKind.WORKER_DRAINING) == 4
    assert crew.desk.num(OverlayEventKind.WORKER_FAILED) == 0
    assert crew.desk.now.restarts == 0


class Obstacle:
    """The source that is the first to send a shard gets stuck there until it may go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.victim = ""
        self.is_met, self.may_go_on = threading.Event(), threading.Event()
        self._put, self._lock = sources._Stream._put, threading.Lock()
        obstacle = self

        def put(stream, kind, fields, payload=NO_BYTES):
            return obstacle.put(stream, kind, fields, payload)

        monkeypatch.setattr(sources._Stream, "_put", put)
        monkeypatch.setattr("kintsugi.runtime.overlay.member._JOIN_SECONDS", 0.0)  # it is struck while it is stuck

    def put(self, stream, kind, fields, payload) -> None:
        own = stream._links.identity.worker
        with self._lock:
            self.victim = self.victim or (own if kind == sources.SHARD else "")
        if kind == sources.SHARD and own == self.victim:
            self.is_met.set()
            self.may_go_on.wait(120.0)
        self._put(stream, kind, fields, payload)


@pytest.mark.parametrize("max_waiting_bytes", [2**30, 1])
def test_a_source_is_lost_in_the_middle_of_a_replication(monkeypatch, max_waiting_bytes):
    options = replace(OPTIONS, chunk_bytes=2**14, max_waiting_bytes=max_waiting_bytes)
    crew = Crew(Desk(all_links_alike=True), options, build=wide)
    crew.start_connected("a", "b", "c")
    obstacle = Obstacle(monkeypatch)
    joiner = crew.start("d", ("a", "b", "c"))
    assert obstacle.is_met.wait(120.0)
    if max_waiting_bytes > 1:  # many more reductions than ever waited for a joiner that was not told them in order
        crew.members["a"].await_steps(crew.members["a"].num_steps + 20)
    crew.members[obstacle.victim].strike()
    obstacle.may_go_on.set()
    joiner.await_steps(2)
    crew.finish()
    check(crew)
    requests = [event for event in crew.desk.events if event.kind is OverlayEventKind.REPLICATION_REQUESTED]
    assert crew.desk.now.restarts == 1 + sum(event.interrupted for event in requests)
    if max_waiting_bytes > 1:  # else who is asked in its place may have forgotten what the victim did not tell
        assert not requests


@pytest.mark.parametrize(
    ("is_kept", "num_requests"),
    [
        (lambda agreed: agreed["replications"], 1),  # d begins with a state that the others do not have
        (lambda agreed: "d" in agreed["synchronization"]["order"], 0),  # d counts from then on, and hands on what it has
    ],
)
def test_what_a_worker_had_alone_when_it_died_is_in_the_states_of_all_or_of_none(monkeypatch, is_kept, num_requests):
    crew = Crew(Desk(all_links_alike=True), replace(OPTIONS, chunk_bytes=2**14), build=wide)
    crew.start_connected("a", "b", "c")
    send_down, seal, is_sealed = TreeReduction._send_down, arrival._TAKES[SEAL], threading.Event()

    def keep(reduction, index):
        agreed = reduction._header.ready
        if crew.members["a"].is_struck.is_set() or agreed is None or not is_kept(agreed):
            send_down(reduction, index)
        else:
            reduction._num_final += 1

    def seal_and_tell(arriving, worker, message):
        found = seal(arriving, worker, message)
        if worker == "a":
            is_sealed.set()
        return found

    monkeypatch.setattr(TreeReduction, "_send_down", keep)
    monkeypatch.setitem(arrival._TAKES, SEAL, seal_and_tell)
    joiner = crew.start("d", ("a", "b", "c"))
    assert (is_sealed if num_requests else joiner.has_joined).wait(120.0)
    crew.members["a"].strike()
    joiner.await_steps(2)
    crew.finish()
    check(crew)
    assert crew.desk.num(OverlayEventKind.REPLICATION_REQUESTED) == num_requests


def test_a_worker_that_was_cut_off_is_told_so_and_joins_again():
    crew = Crew()
    crew.start_connected("a", "b")
    lost = crew.start("c", ("a",))
    lost.await_steps(1)
    cut(crew, "a", "c")
    lost.join(120.0)
    assert isinstance(lost.error, GivenUpError)
    assert "(cut off from the part of a, which goes on with 2 of 3; join again over another link)" in str(lost.error)
    lost.coordinator.close()
    again = crew.start("c", ("b",))
    again.await_steps(2)
    crew.finish()
    check(crew)
    assert again.coordinator.links.identity.incarnation > lost.coordinator.links.identity.incarnation


def test_a_link_over_which_what_belongs_to_no_pass_comes_is_given_up_and_the_reduction_goes_around_it(monkeypatch):
    send, is_garbled = Exchange.send, threading.Event()

    def garbled_once(self, worker, kind, fields, payload=NO_BYTES):
        if self._links.identity.worker == "c" and is_garbled.is_set():
            is_garbled.clear()
            fields = {"chunk": 99}
        send(self, worker, kind, fields, payload)

    crew = Crew()
    crew.start_connected("a", "b", "c")
    monkeypatch.setattr(Exchange, "send", garbled_once)
    is_garbled.set()
    (event,) = crew.desk.until(lambda _: crew.desk.num(OverlayEventKind.LINK_DISCONNECTED)) and [
        one for one in crew.desk.events if one.kind is OverlayEventKind.LINK_DISCONNECTED
    ]
    for member in crew.members.values():
        member.await_steps(member.num_steps + 2)
    crew.finish()
    check(crew)
    assert "c" in event.link
    assert "sent piece 99 of a vector" in event.detail
