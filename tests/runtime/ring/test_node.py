import socket
import threading
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from kintsugi.core.errors import InvalidInputError
from kintsugi.runtime.ring.callbacks import Callbacks
from kintsugi.runtime.ring.links import listener
from kintsugi.runtime.ring.messages import Agreement, Message, Restart
from kintsugi.runtime.ring.node import RingNode
from kintsugi.runtime.ring.options import RingOptions
from kintsugi.runtime.ring.signals import Decided, Lost, Received, Send, Signal
from kintsugi.runtime.ring.state import State
from kintsugi.runtime.ring.transition import transition
from kintsugi.runtime.ring.wire import framed
from tests.runtime.ring.rings import PATIENCE, WAIT_SECONDS, Ring
from tests.runtime.scarce import no_descriptors


@pytest.mark.parametrize(("size", "lost"), [(3, "b"), (5, "bd"), (5, "ab"), (7, "bcd"), (2, "a"), (4, "ab"), (4, "abc")])
def test_survivors_agree_on_who_is_left(size: int, lost: str) -> None:
    with Ring(size) as ring:
        ring.kill(*lost)
        left = [name for name in ring.names if name not in lost]
        ring.wait_for(left)
        assert len({ring.nodes[name].agreement for name in left}) == 1


def test_a_frozen_member_is_left_out_and_learns_it_when_it_returns() -> None:
    with Ring(4) as ring:
        ring.connect()
        ring.freeze("b")
        ring.wait_for("acd")
        assert any("b" in heard.frozen for heard in ring.heard.values())
        ring.thaw("b")
        ring.wait(lambda: ring.nodes["b"].is_left_out)
        assert ring.nodes["b"].agreement == ring.nodes["a"].agreement
        assert not ring.nodes["b"].commit(0, 1)
        assert not ring.nodes["b"].commit(1, 1)


def test_successive_losses_down_to_one() -> None:
    with Ring(5) as ring:
        for count, name in enumerate("ecab", 1):
            ring.kill(name)
            ring.wait_for([other for other in ring.names if other not in "ecab"[:count]])
        assert ring.nodes["d"].agreement.members == ("d",)
        assert ring.nodes["d"].commit(ring.nodes["d"].agreement.generation, 1)


def test_the_survivors_know_the_last_committed_step_and_what_was_said() -> None:
    with Ring(3) as ring:
        assert ring.nodes["a"].commit(0, 1, "of a")
        ring.kill("c")
        ring.wait_for("ab")
        agreement = ring.nodes["b"].agreement
        assert agreement.committed_step == 1
        assert [(c.worker, c.committed_step, c.note) for c in agreement.contributions] == [("a", 1, "of a"), ("b", 0, "")]
        assert agreement.note == "a+b"
        assert not ring.nodes["a"].commit(0, 2)
        assert ring.nodes["b"].commit(1, 2)


def test_a_member_that_cannot_go_on_says_so_commits_no_more_and_is_left_out() -> None:
    with Ring(3) as ring:

        def fail(_: Agreement) -> None:
            raise KeyError("a defect")

        ring.nodes["b"]._callbacks = replace(ring.nodes["b"]._callbacks, on_agreement=fail)
        ring.kill("a")
        ring.wait_for("c")
        ring.wait(lambda: bool(ring.heard["b"].failed))
        assert isinstance(ring.heard["b"].failed[0], KeyError)
        assert not ring.nodes["b"].commit(ring.nodes["b"].agreement.generation, 1)


def test_a_reported_loss_needs_no_broken_connection() -> None:
    with Ring(4) as ring:
        ring.nodes["a"].report_lost("c")
        ring.wait_for("abd")
        ring.wait(lambda: ring.nodes["c"].is_left_out)


def test_a_loss_that_its_other_neighbour_does_not_see_is_mended() -> None:
    """The member before the lost one is to begin, and has heard nothing: the one after it does not wait for ever."""
    with Ring(4) as ring:
        ring.nodes["c"]._put(Lost("b"))
        ring.wait_for("acd")
        ring.wait(lambda: ring.nodes["b"].is_left_out)


def test_a_worker_is_taken_in_and_takes_part() -> None:
    with Ring(3) as ring:
        assert ring.nodes["b"].commit(0, 1)
        ring.join("x", "b", "c")
        ring.wait_for("abcx")
        agreement = ring.nodes["a"].agreement
        assert (agreement.committed_step, [joiner.note for joiner in agreement.joined]) == (1, ["new"])
        assert ring.nodes["x"].commit(agreement.generation, 2)
        ring.kill("a")
        ring.wait_for("bcx")
        assert ring.nodes["b"].agreement.committed_step == 2
        assert ring.nodes["b"].agreement.joined == ()


def test_a_worker_that_begins_before_the_next_member_has_heard_of_it_waits_and_costs_nobody_his_place() -> None:
    with Ring(3, options=RingOptions()) as ring:
        ring.connect()
        links, may_tell = ring.nodes["c"]._links, threading.Event()
        send = links.send

        def late_send(worker: str, message: Message) -> None:
            if isinstance(message, Restart):
                may_tell.wait(WAIT_SECONDS)
            send(worker, message)

        links.send = late_send  # type: ignore[method-assign]
        ring.join("x", "b")
        ring.wait(lambda: len(ring.nodes["a"]._links._connections) == 3)
        ring.wait(lambda: not any(connection.is_connecting for connection in ring.nodes["x"]._links._connections))
        assert ring.nodes["a"].agreement.generation == 0
        may_tell.set()
        ring.wait_for("abcx")
        ring.wait(lambda: ring.nodes["x"]._links.hears("a"))
        assert {node.agreement.generation for node in ring.nodes.values()} == {1}
        assert ring.heard["x"].stopped == []


def test_down_to_one_and_growing_again() -> None:
    with Ring(3) as ring:
        ring.kill("b", "c")
        ring.wait_for("a")
        ring.join("b", "a")
        ring.wait_for("ab")
        ring.join("d", "b")
        ring.wait_for("abd")
        ring.kill("a")
        ring.wait_for("bd")


def test_who_missed_the_agreement_that_took_a_worker_in_reaches_it_all_the_same() -> None:
    with Ring(2) as ring:
        ring.join("x", "a")
        ring.wait_for("abx")
        ring.join("y", "a")
        ring.wait_for("abxy")
        latest = ring.nodes["a"].agreement
        assert [[joiner.worker for joiner in found] for found in (latest.earlier, latest.joined)] == [["x"], ["y"]]
        where = dict.fromkeys("ab", ("127.0.0.1", 1))
        callbacks = ring._callbacks("b")
        with RingNode("b", Agreement(0, ("a", "b")), listener("127.0.0.1"), where, callbacks, options=PATIENCE) as behind:
            behind._take(Decided(latest))  # next to it is now x, of which it has not heard
            assert "x" in behind._links.peers
        ring.kill("x")
        ring.wait_for("aby")
        assert [joiner.worker for joiner in ring.nodes["a"].agreement.newcomers] == ["y"]


def test_a_worker_that_asks_while_a_loss_is_mended_is_taken_in_with_it_or_next() -> None:
    with Ring(4) as ring:
        ring.kill("c")
        ring.join("x", "a")
        ring.wait_for("abdx")


def test_members_agree_anew_where_one_has_something_to_say() -> None:
    with Ring(3) as ring:
        assert ring.nodes["b"].commit(0, 1, "leaves")
        ring.nodes["b"].renew(0)
        ring.wait(lambda: all(node.agreement.generation == 1 for node in ring.nodes.values()))
        ring.nodes["b"].renew(0)  # is over
        assert ring.nodes["a"].agreement.members == ring.names
        assert [contribution.note for contribution in ring.nodes["a"].agreement.contributions] == ["", "leaves", ""]


def test_what_is_lost_with_one_of_two_connections_is_said_again() -> None:
    """Both of two members connect to the other one. Nobody is lost with one connection, only what was under way on it."""
    with Ring(2) as ring:
        pairs = [("a", "b"), ("b", "a")]

        def heard(name: str, other: str) -> int:
            return sum(one.peer == other and one.has_heard for one in ring.nodes[name]._links._connections)

        ring.wait(lambda: all(heard(*pair) == 2 for pair in pairs))
        ring.hold("b")
        ring.nodes["a"].renew(0)
        ring.lose_under_way("a", "b", b"ballot")
        ring.thaw("b")
        ring.wait(lambda: all(node.agreement.generation == 1 for node in ring.nodes.values()))
        assert all(node.agreement.members == ("a", "b") for node in ring.nodes.values())


def test_a_ring_that_is_cut_before_its_first_connections_stand_need_not_bear_with_silence() -> None:
    ring = Ring(3, options=replace(PATIENCE, start_timeout_seconds=10 * WAIT_SECONDS))
    ring.hide("a", "b")
    with ring:
        ring.wait_for("ac")
        ring.wait(lambda: ring.nodes["b"].is_left_out)


def test_what_is_not_acknowledged_breaks_a_connection_as_soon_as_silence_does() -> None:
    option = getattr(socket, "TCP_USER_TIMEOUT", None)
    if option is None:
        pytest.skip("this platform cannot limit how long a connection waits for an acknowledgement")
    with Ring(2) as ring:
        ring.connect()
        connections = [connection for node in ring.nodes.values() for connection in node._links._connections]
        limits = {connection.socket.getsockopt(socket.IPPROTO_TCP, option) for connection in connections}
        assert limits == {1000 * PATIENCE.heartbeat_timeout_seconds}


def test_who_was_given_up_by_a_member_that_is_gone_is_taken_back() -> None:
    """A breaks with b, c is cut off from b, and b dies once a has had its ballot without c: of a and c neither misses the other."""
    states = {name: State(name, Agreement(0, ("a", "b", "c")), 0) for name in "abc"}

    def feed(name: str, signal: Signal) -> list[Message]:
        states[name], actions = transition(states[name], signal, lambda _: "")
        return [action.message for action in actions if isinstance(action, Send)]

    [without_b], [without_c] = feed("a", Lost("b")), feed("b", Lost("c"))
    feed("c", Received("a", without_b))
    feed("a", Received("b", without_c))
    assert (states["a"].lost, states["a"].excluded, states["c"].lost) == ({"b"}, {"b", "c"}, set())
    ring = Ring(3)
    try:
        ring.kill("b")
        for name in "ac":
            ring.nodes[name]._state = states[name]
            ring.nodes[name].start()
        ring.wait_for("ac")
    finally:
        ring.__exit__()


def test_a_stranger_disturbs_nobody() -> None:
    with Ring(3) as ring:
        address = ring.nodes["a"]._links._addresses["b"]
        for said in (b"GET / HTTP/1.1\r\n\r\n", b"\x00\x00\x00\x02\xfex", b"\x00\x00\x00\x03\x01{}"):
            with socket.create_connection(address, 120.0) as stranger:
                stranger.sendall(said)
                stranger.settimeout(120.0)
                assert stranger.recv(1) == b""
        assert all(heard.stopped == [] for heard in ring.heard.values())


def test_a_member_without_an_address_is_refused() -> None:
    with listener("127.0.0.1") as listening, pytest.raises(InvalidInputError, match="missing"):
        RingNode("a", Agreement(0, ("a", "b")), listening, {"a": ("127.0.0.1", 1)}, Callbacks(on_agreement=print))


def test_a_generation_that_is_mended_from_the_beginning_is_told_and_stopped() -> None:
    with Ring(3) as ring:
        ring.kill("b", "c")
        ring.wait(lambda: ring.nodes["a"].agreement.members == ("a",))
        generation = ring.nodes["a"].agreement.generation
        ring.nodes["a"].adopt(Agreement(generation + 1, ("a", "b")))
        ring.wait(lambda: ring.nodes["a"].agreement.generation == generation + 2)
        assert ring.heard["a"].stopped[-1] == generation + 1
    stopped: list[int] = []
    listening = listener("127.0.0.1")
    addresses = dict.fromkeys("abc", listening.getsockname()[:2])
    callbacks = Callbacks(on_agreement=print, on_stop=stopped.append)
    with RingNode("a", Agreement(0, ("a", "b", "c")), listening, addresses, callbacks) as node:
        node._take(Lost("b"))
        node._take(Decided(Agreement(1, ("a", "b", "c"))))
    assert stopped == [0, 1]


def test_a_member_without_descriptors_goes_on_and_answers_those_who_called_once_it_has_some() -> None:
    with Ring(3) as ring:
        ring.connect()
        with capture_logs() as logs, no_descriptors() as caller:
            caller.connect(ring._addresses["b"])
            ring.wait(lambda: bool(logs))
            ring.hold("c")  # it lives, and would call those who go on without it, for which it needs a descriptor
            ring.nodes["a"].report_lost("c", is_certain=True)
            ring.wait_for("ab")
        assert {log["event"] for log in logs} == {"cannot answer those who call for a while"}
        assert all(not heard.failed for heard in ring.heard.values())
        caller_again = socket.create_connection(ring._addresses["b"], timeout=WAIT_SECONDS)
        with caller_again:
            caller_again.sendall(framed("nobody of this ring"))
            assert caller_again.recv(1) == b"", "it is hung up on"
