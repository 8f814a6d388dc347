"""Links between two workers over real sockets: greetings, priorities, bounds and losses."""

import socket
import threading
from contextlib import ExitStack, suppress
from dataclasses import replace
from queue import SimpleQueue

import pytest
from structlog.testing import capture_logs

from kintsugi.core.errors import CommunicationError, ForbiddenError, InvalidInputError
from kintsugi.runtime.overlay.greeting import Identity, is_there
from kintsugi.runtime.overlay.inbox import CalledOffError, Inbox, Pass, Phase
from kintsugi.runtime.overlay.link import PING, Limits, Link, Peer
from kintsugi.runtime.overlay.links import Links
from kintsugi.runtime.overlay.messages import Channel, Message, read, write
from kintsugi.runtime.overlay.options import OverlayOptions
from kintsugi.runtime.overlay.outbox import Outbox
from kintsugi.runtime.overlay.probe import KINDS, Prober
from tests.patience import eventually
from tests.runtime.overlay.crew import Crew, wide
from tests.runtime.scarce import no_descriptors, no_threads

OPTIONS = OverlayOptions(link_timeout_seconds=60.0)


@pytest.fixture
def stack():
    with ExitStack() as opened:
        yield opened


def links(stack: ExitStack, worker: str, **identity) -> Links:
    found = Links(Identity(**{"job": "job", "worker": worker, **identity}), OPTIONS, host="127.0.0.1")
    found.start()
    stack.callback(found.close)
    return found


def address(of: Links) -> str:
    return f"127.0.0.1:{of.port}"


def test_messages_arrive_in_the_order_of_their_channels(stack):
    one, other = links(stack, "a"), links(stack, "b")
    heard: SimpleQueue = SimpleQueue()
    for channel in Channel:
        other.hear(
            channel, lambda worker, message: heard.put((worker, message.channel, message.fields["n"], bytes(message.payload)))
        )
    one.connect("b", address(other))
    for number in range(3):
        one.send("b", Message(Channel.REDUCTION, "x", {"n": number}, memoryview(b"abc")))
    assert [heard.get(timeout=240.0) for _ in range(3)] == [("a", Channel.REDUCTION, number, b"abc") for number in range(3)]
    assert one.up == ("b",)


def test_strangers_are_refused(stack):
    one, other = links(stack, "a", key=b"secret"), links(stack, "b", key=b"guessed")
    with pytest.raises(ForbiddenError, match="does not know the job's key"):
        one.connect("b", address(other))
    with pytest.raises(ForbiddenError, match="this is worker b"):
        one.connect("c", address(other))
    with pytest.raises(ForbiddenError, match="this is job other"):
        one.connect("d", address(links(stack, "d", job="other")))
    assert one.up == ()
    assert other.up == ()


def test_nobody_is_there(stack):
    one, gone = links(stack, "a"), links(stack, "b")
    gone.close()
    with pytest.raises(CommunicationError, match="cannot be reached"):
        one.connect("b", address(gone))
    with pytest.raises(CommunicationError, match="no link"):
        one.send("b", Message(Channel.CONTROL, "x"))
    assert not one.tell("b", "x", {})
    for host, port in [("127.0.0.1", one.port), ("no..host", 0)]:
        with pytest.raises(InvalidInputError, match="cannot listen there"):
            Links(Identity(job="job", worker="c"), OPTIONS, host=host, port=port)


def test_neighbours_are_answered_again_once_there_are_descriptors(stack):
    """To accept a connection takes one; without any the kernel keeps those who call waiting."""
    one, other = links(stack, "a"), links(stack, "b")
    with capture_logs() as logs, no_descriptors() as caller:
        caller.connect(("127.0.0.1", other.port))
        eventually(lambda: [log["event"] for log in logs], lambda told: told == ["cannot answer those who call"])
    assert one.connect("b", address(other)).peer.worker == "b"


def test_neighbours_are_answered_again_once_there_are_threads(stack):
    one, other = links(stack, "a"), links(stack, "b")
    with capture_logs() as logs, no_threads("overlay-answers"):
        with pytest.raises(CommunicationError, match=r"cannot be reached|closed"):
            one.connect("b", address(other))
        assert eventually(lambda: [log["event"] for log in logs], lambda told: told == ["cannot answer those who call"])
    assert one.connect("b", address(other)).peer.worker == "b"


@pytest.mark.parametrize("which", ["reads", "writes"])
def test_a_link_without_threads_is_none(stack, which):
    one, other = links(stack, "a"), links(stack, "b")
    with no_threads(f"overlay-link-b-{which}"), pytest.raises(CommunicationError, match="it gets no thread"):
        one.connect("b", address(other))
    assert one.up == ()
    assert one.connect("b", address(other)).peer.worker == "b"


def test_a_loss_is_told_once_and_a_hang_up_not_at_all(stack):
    one, other = links(stack, "a"), links(stack, "b")
    lost: SimpleQueue = SimpleQueue()
    up: SimpleQueue = SimpleQueue()
    one.on_loss = other.on_loss = lambda link, why: lost.put((link.peer.worker, link.peer.number, why))
    other.on_up = lambda link: up.put(link.peer.worker)
    one.connect("b", address(other))
    assert up.get(timeout=240.0) == "a"
    other.disconnect(other.get("a"))
    assert lost.get(timeout=240.0) == ("b", 1, "link: the other end closed the connection")
    assert one.await_none(120.0)
    assert one.connect("b", address(other)).peer.number == 2
    assert lost.empty()


def test_what_an_earlier_life_connected_late_does_not_take_the_place_of_the_link_with_a_later_one(stack):
    earlier, later, other = links(stack, "a", incarnation=1), links(stack, "a", incarnation=2), links(stack, "b")
    lost: SimpleQueue = SimpleQueue()
    earlier.on_loss = lambda _link, why: lost.put(why)
    later.connect("b", address(other))
    kept = eventually(lambda: other.get("a"), lambda link: link is not None)
    with suppress(CommunicationError):  # it may be hung up on before it has noticed that it was greeted
        earlier.connect("b", address(other))
        assert lost.get(timeout=240.0)
    with pytest.raises(CommunicationError, match="a later life of it is linked already"):
        other.connect("a", address(earlier))
    assert other.get("a") is kept
    assert later.up == ("b",)


def test_of_two_calls_the_later_one_counts_whichever_is_answered_first(stack, monkeypatch):
    one, other = links(stack, "a"), links(stack, "b")
    is_held, admit = threading.Event(), other._require_admitted
    monkeypatch.setattr(other, "_require_admitted", lambda connection: (admit(connection), is_held.wait(240.0)))
    first = one.connect("b", address(other))
    monkeypatch.setattr(other, "_require_admitted", admit)
    second = one.connect("b", address(other))
    kept = eventually(lambda: other.get("a"), lambda link: link is not None)
    is_held.set()
    assert eventually(lambda: not [t for t in threading.enumerate() if t.name == "overlay-answers"], bool)
    assert (second.peer.number, other.get("a"), one.get("b")) == (first.peer.number + 1, kept, second)
    assert kept.is_up


def test_to_end_a_link_that_was_replaced_leaves_the_later_one(stack):
    one, other = links(stack, "a"), links(stack, "b")
    first = one.connect("b", address(other))
    second = one.connect("b", address(other))
    one.disconnect(first)
    assert one.get("b") is second


def test_a_message_that_its_hearer_cannot_take_is_a_loss_that_is_told(stack):
    one, other = links(stack, "a"), links(stack, "b")
    lost: SimpleQueue = SimpleQueue()
    other.hear(Channel.CONTROL, lambda _, message: message.fields["missing"])
    other.on_loss = lambda link, why: lost.put((link.peer.worker, why))
    one.connect("b", address(other))
    with capture_logs() as logs:
        assert one.tell("b", "x", {})
        assert lost.get(timeout=240.0) == ("a", "a message could not be taken: KeyError: 'missing'")
    assert ("error", "a message could not be taken") in [(log["log_level"], log["event"]) for log in logs]


def test_what_was_sent_before_a_hang_up_arrives(stack):
    one, other = links(stack, "a"), links(stack, "b")
    heard: SimpleQueue = SimpleQueue()
    other.hear(Channel.REDUCTION, lambda _, message: heard.put(message.num_bytes))
    one.connect("b", address(other))
    for _ in range(8):
        one.send("b", Message(Channel.REDUCTION, "x", {}, memoryview(bytes(2**20))))
    one.disconnect(one.get("b"))
    assert [heard.get(timeout=240.0) for _ in range(8)] == [2**20] * 8


def test_a_knock_is_answered_by_the_life_that_is_meant_alone(stack):
    one, other = links(stack, "a"), links(stack, "b")
    assert is_there(address(other), one.identity, "b", 0, 60.0)
    assert not is_there(address(other), one.identity, "b", 1, 60.0)
    assert not is_there(address(other), one.identity, "c", 0, 60.0)
    assert other.up == ()
    other.close()
    assert not is_there(address(other), one.identity, "b", 0, 60.0)
    assert not is_there("nowhere", one.identity, "b", 0, 60.0)


def test_a_door_that_the_kernel_still_holds_open_is_no_answer():
    own = Identity(job="job", worker="a")
    with socket.create_server(("127.0.0.1", 0)) as torn_down:
        at = f"127.0.0.1:{torn_down.getsockname()[1]}"
        assert is_there(at, own, "b", 0, 0.05)
        torn_down.accept()[0].close()

        def hang_up() -> None:
            torn_down.accept()[0].close()

        hanging_up = threading.Thread(target=hang_up, daemon=True)
        hanging_up.start()
        assert not is_there(at, own, "b", 0, 60.0)
        hanging_up.join(120.0)


def test_damage_is_noticed():
    one, other = socket.socketpair()
    with one, other:
        write(one, Message(Channel.CONTROL, "x", {"n": 1}, memoryview(b"content")))
        frame = bytearray(other.recv(65_536))
        frame[-1] ^= 1
        one.sendall(frame)
        with pytest.raises(CommunicationError, match="damaged"):
            read(other)
        one.sendall(b"GET / HTTP/1.1\r\n\r\n")
        with pytest.raises(CommunicationError, match="language"):
            read(other)


def test_a_link_is_kept_alive_for_an_end_that_takes_it_for_lost_sooner():
    limits = Limits(window_bytes=1, timeout_seconds=0.3)
    peer = Peer(worker="b", incarnation=0, number=1, generation=0, limits=limits)
    mine, theirs = socket.socketpair()
    theirs.settimeout(20.0)
    options = OverlayOptions(ping_seconds=30.0, link_timeout_seconds=61.0)
    link = Link(mine, peer, options, on_message=lambda *_: None, on_loss=lambda *_: None)
    with theirs:
        link.start()
        try:
            assert read(theirs).kind == PING
        finally:
            link.close()


@pytest.mark.parametrize("windows", [(8_192, 2**24), (2**24, 8_192)], ids=["first", "second"])
def test_workers_with_other_windows_reduce(windows):
    """Who takes little at once is not waited for by who tells of much at once."""
    crew = Crew(build=wide)
    for worker, neighbors, num_bytes in zip("ab", (None, ("a",)), windows, strict=True):
        crew.start(worker, neighbors, options=replace(crew.options, window_bytes=num_bytes)).await_steps(1)
    for member in crew.members.values():
        member.await_steps(member.num_steps + 2)
    crew.finish()


def test_the_urgent_goes_first_and_a_full_window_holds_reductions_back():
    outbox = Outbox(window_bytes=8)
    for channel in (Channel.REDUCTION, Channel.SHARDS, Channel.REDUCTION, Channel.REDUCTION, Channel.CONTROL):
        outbox.put(Message(channel, "x", {}, memoryview(bytes(4))), 1.0)
    taken = [outbox.take(0.0) for _ in range(5)]
    assert [message and message.channel for message in taken] == [
        Channel.CONTROL,
        Channel.SHARDS,
        Channel.REDUCTION,
        Channel.REDUCTION,
        None,
    ]
    outbox.put(Message(Channel.ROUNDS, "x"), 1.0)
    told = outbox.take(0.0)
    assert told is not None
    assert told.channel is Channel.ROUNDS
    outbox.taken(4)
    assert outbox.take(0.0) is not None
    assert outbox.await_empty(0.0) is False
    assert outbox.take(0.0) is None
    assert outbox.await_empty(0.0)
    outbox.close()
    with pytest.raises(CommunicationError):
        outbox.put(Message(Channel.CONTROL, "x"), 1.0)


def message(restarts: int, phase: Phase, number: int, num_bytes: int = 2) -> Message:
    return Message(Channel.REDUCTION, "x", {"pass": [restarts, int(phase), number]}, memoryview(bytes(num_bytes)))


def test_an_inbox_keeps_what_is_to_come_and_drops_what_is_over():
    taken: list[tuple[str, int]] = []
    inbox = Inbox(lambda worker, num_bytes: taken.append((worker, num_bytes)))
    inbox.put("a", message(0, Phase.REDUCE, 1))
    inbox.put("b", message(0, Phase.REDUCE, 2, 3))
    assert inbox.take(Pass(0, Phase.REDUCE, 2), 1.0)[0] == "b"
    inbox.put("c", message(0, Phase.REDUCE, 1, 4))
    assert taken == [("a", 2), ("b", 3), ("c", 4)]
    assert inbox.waiting_bytes() == 0


def test_a_restart_calls_off_who_waits():
    inbox, raised = Inbox(lambda _worker, _num_bytes: None), []

    def wait() -> None:
        try:
            inbox.take(Pass(0, Phase.REDUCE, 1), 60.0)
        except CalledOffError as error:
            raised.append(error)

    waiter = threading.Thread(target=wait, daemon=True)
    waiter.start()
    inbox.restart(1)
    waiter.join(120.0)
    assert len(raised) == 1
    inbox.put("a", message(0, Phase.REDUCE, 1))
    with pytest.raises(CalledOffError):
        inbox.take(Pass(0, Phase.REDUCE, 1), 1.0)
    assert inbox.await_restart(0, 0.0)


def test_a_probe_tells_latency_and_rate(stack):
    one, other = links(stack, "a"), links(stack, "b")
    probers = [Prober(each, 60.0) for each in (one, other)]
    for each, prober in zip((one, other), probers, strict=True):
        each.hear(Channel.CONTROL, lambda worker, message, prober=prober: message.kind in KINDS and prober.hear(worker, message))
    found = probers[0].measure(probers[0].turn(one.connect("b", address(other))))
    assert found.alpha_seconds > 0
    assert found.beta_seconds_per_byte > 0
