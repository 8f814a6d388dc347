"""Strangers at a worker's door, and in the place of one that is called: whatever they say, nothing comes of it."""

import json
import math
from contextlib import ExitStack, nullcontext
from dataclasses import asdict

import pytest

from kintsugi.core.checks import LONGEST_NAME
from kintsugi.core.errors import CommunicationError, ForbiddenError
from kintsugi.runtime.overlay import deadline, greeting, links
from kintsugi.runtime.overlay.greeting import Identity, Meeting, answers, dial, greet, is_there, welcome
from kintsugi.runtime.overlay.link import Limits
from kintsugi.runtime.overlay.links import Links
from kintsugi.runtime.overlay.messages import read
from kintsugi.runtime.overlay.options import OverlayOptions
from tests.patience import PATIENCE_SECONDS, eventually
from tests.runtime.overlay.strangers import HEAD_BYTES, answering, caller, frame, is_hung_up_on, say

OWN = Identity(job="job", worker="a", key=b"secret")
LIMITS = Limits(window_bytes=1024, timeout_seconds=10.0)
HELLO = {"job": "job", "worker": "x", "incarnation": 0, "to": "a", "number": 1, "generation": 0, "nonce": "n", **asdict(LIMITS)}
WELCOME = {"incarnation": 0, "number": 1, "nonce": "n", **asdict(LIMITS)}
NO_NUMBERS = [None, True, -1, 1.0, math.inf, math.nan, 2**63, "1", [], {}]
NO_TEXTS = [None, 1, "\ud800", "\n", [], [[["x"]]], {}]
MISFITS = [
    *[{name: value} for name in ("incarnation", "number") for value in NO_NUMBERS],
    *[{"nonce": value} for value in NO_TEXTS],
    *[{"window_bytes": value} for value in (0, *NO_NUMBERS)],
    *[{"timeout_seconds": value} for value in (None, True, 0, -1.0, math.inf, math.nan, 10**400, "1", [], {})],
]


def opened(stack: ExitStack, own: Identity) -> Links:
    """Who waits for strangers for longer than these tests wait for anything."""
    found = Links(own, OverlayOptions(connect_timeout_seconds=2 * PATIENCE_SECONDS), host="127.0.0.1")
    found.start()
    stack.callback(found.close)
    return found


@pytest.fixture
def door():
    with ExitStack() as stack:
        yield opened(stack, OWN)


@pytest.mark.parametrize("header", [b"{", b'["hello",[]]', b'["hello",null]', b"[" * 5_000])
def test_whoever_says_what_is_no_greeting_is_hung_up_on(door, header):
    with caller(door.port) as stranger:
        stranger.sendall(frame(header))
        assert is_hung_up_on(stranger)


@pytest.mark.parametrize(
    "misfit", [*MISFITS, *[{"generation": value} for value in NO_NUMBERS], *[{"worker": value} for value in NO_TEXTS]], ids=ascii
)
def test_whoever_greets_with_what_is_no_number_or_no_text_is_hung_up_on(door, misfit):
    with caller(door.port) as stranger:
        say(stranger, "hello", HELLO | misfit)
        assert is_hung_up_on(stranger)


@pytest.mark.parametrize("proof", [*NO_TEXTS, "\u00e9", "guessed"], ids=ascii)
def test_whoever_proves_nothing_is_hung_up_on(door, proof):
    with caller(door.port) as stranger:
        say(stranger, "hello", HELLO)
        assert read(stranger).kind == "welcome"
        say(stranger, "proof", {"proof": proof})
        assert is_hung_up_on(stranger)
    assert door.up == ()


def test_a_proof_that_another_worker_gave_proves_nothing(door):
    """Whoever calls two workers as each other, and passes on what they say."""
    with ExitStack() as stack:
        other = opened(stack, Identity(job="job", worker="b", key=b"secret"))
        stranger, second = (stack.enter_context(caller(one.port)) for one in (door, other))
        say(stranger, "hello", HELLO | {"worker": "b"})
        say(second, "hello", HELLO | {"worker": "a", "to": "b", "nonce": read(stranger).fields["nonce"]})
        say(stranger, "proof", {"proof": read(second).fields["proof"]})
        assert is_hung_up_on(stranger)
    assert door.up == ()


TOO_LONG = [frame(b" " * 16_385)[:HEAD_BYTES], frame(b'["hello",{}]', b"x")[:HEAD_BYTES]]


@pytest.mark.parametrize("head", TOO_LONG, ids=["header", "payload"])
def test_whoever_announces_more_than_a_greeting_is_not_listened_to(door, head):
    with caller(door.port) as stranger:
        stranger.sendall(head)
        assert is_hung_up_on(stranger)
    why = "does not speak the overlay's language"
    with answering(lambda line: (line.sendall(head), line.recv(65_536))) as address, pytest.raises(CommunicationError, match=why):
        called(address)


def test_the_longest_names_fit_into_greetings(door):
    job, one, other = ("".join([letter] * LONGEST_NAME) for letter in "\U0001d49c\U0001d49e\U0001d49f")
    with ExitStack() as stack:
        both = [opened(stack, Identity(job=job, worker=worker)) for worker in (one, other)]
        address = f"127.0.0.1:{both[1].port}"
        assert both[0].connect(other, address).peer.worker == other
        assert is_there(address, both[0].identity, other, 0, PATIENCE_SECONDS)
        with pytest.raises(ForbiddenError, match=f"this is worker {other}"):
            both[0].connect(one, address)


def test_of_too_many_callers_the_first_is_hung_up_on_and_neighbours_are_answered(door, monkeypatch):
    monkeypatch.setattr(links, "_MOST_CALLERS", 3)
    with ExitStack() as stack:
        neighbor = opened(stack, Identity(job="job", worker="b", key=b"secret"))
        link = neighbor.connect("a", f"127.0.0.1:{door.port}")
        eventually(lambda: door.up, lambda up: up == ("b",))
        first, second, *others = [stack.enter_context(caller(door.port)) for _ in range(4)]
        assert is_hung_up_on(first)
        say(second, "hello", HELLO)
        assert read(second).kind == "welcome"
        neighbor.disconnect(link)
        assert neighbor.connect("a", f"127.0.0.1:{door.port}").is_up
        assert is_hung_up_on(second)
        for stranger in others:
            say(stranger, "hello", HELLO)
            assert read(stranger).kind == "welcome"


def test_whoever_has_not_greeted_yet_is_hung_up_on_by_a_worker_that_ends(door):
    with caller(door.port) as stranger:
        assert eventually(lambda: door._callers)
        door.close()
        assert is_hung_up_on(stranger)


class Drip:
    """A connection over which a byte a second arrives; it is also the clock."""

    def __init__(self, *frames: bytes) -> None:
        self.content, self.now, self.allowed, self._timeout = bytearray(b"".join(frames)), 0.0, [], 5.0

    def monotonic(self) -> float:
        return self.now

    def gettimeout(self) -> float:
        return self._timeout

    def settimeout(self, seconds: float) -> None:
        self._timeout = seconds

    def sendmsg(self, parts) -> int:
        return sum(map(len, parts))

    def recv_into(self, buffer, _num_bytes: int, _flags: int) -> int:
        self.allowed.append(self._timeout)
        self.now += 1.0
        buffer[0] = self.content.pop(0)
        return 1


@pytest.mark.parametrize(
    "exchange",
    [
        lambda drip: greet(drip, OWN, "b", number=1, generation=0, limits=LIMITS),
        lambda drip: welcome(drip, OWN, lambda _: 0, limits=LIMITS),
        lambda _: greeting._knock("127.0.0.1:1", OWN, 5.0),
    ],
    ids=["greets", "welcomes", "knocks"],
)
def test_all_of_a_greeting_has_one_deadline(monkeypatch, exchange):
    """Else who sends a byte now and then holds a thread and a descriptor for as long as it likes."""
    drip = Drip(frame(b'["x",{}]'))
    monkeypatch.setattr(deadline, "time", drip)
    monkeypatch.setattr(greeting, "dial", lambda _address, _seconds: nullcontext(drip))
    with pytest.raises(TimeoutError):
        exchange(drip)
    assert drip.allowed == [5.0, 4.0, 3.0, 2.0, 1.0]


def test_the_deadline_of_a_greeting_goes_on_from_one_message_to_the_next(monkeypatch):
    hello = frame(json.dumps(["hello", HELLO]).encode())
    drip = Drip(hello, frame(b'["proof",{}]'))
    drip.settimeout(len(hello) + 2.0)
    monkeypatch.setattr(deadline, "time", drip)
    with pytest.raises(TimeoutError):
        welcome(drip, OWN, lambda _: 0, limits=LIMITS)
    assert drip.now == len(hello) + 2.0


def called(address: str) -> None:
    with dial(address, PATIENCE_SECONDS) as connection:
        greet(connection, OWN, "b", number=1, generation=0, limits=LIMITS)


@pytest.mark.parametrize("misfit", MISFITS, ids=ascii)
def test_whoever_welcomes_with_what_is_no_number_or_no_text_does_not_speak_the_language(misfit):
    def welcomes(connection) -> None:
        meeting = Meeting("job", OWN.worker, "b", (read(connection).fields["nonce"], WELCOME["nonce"]))
        say(connection, "welcome", WELCOME | {"proof": meeting.proof(b"secret", "welcome")} | misfit)

    with (
        answering(welcomes) as address,
        pytest.raises(CommunicationError, match=f"a greeting arrived without {next(iter(misfit))}"),
    ):
        called(address)


@pytest.mark.parametrize(
    ("kind", "fields", "error"),
    [
        ("welcome", [], CommunicationError),
        ("welcome", None, CommunicationError),
        ("welcome", {}, CommunicationError),
        ("welcome", WELCOME | {"proof": ["x"]}, CommunicationError),
        ("welcome", WELCOME | {"proof": "\ud800"}, CommunicationError),
        ("welcome", WELCOME | {"proof": "\u00e9"}, ForbiddenError),
        ("welcome", WELCOME | {"proof": "guessed"}, ForbiddenError),
        ("refused", {}, CommunicationError),
        ("refused", {"why": ["x"]}, CommunicationError),
        ("refused", {"why": "this is worker c"}, ForbiddenError),
    ],
    ids=ascii,
)
def test_whoever_is_called_and_answers_otherwise_is_refused(kind, fields, error):
    def answer(connection) -> None:
        read(connection)
        say(connection, kind, fields)

    with answering(answer) as address, pytest.raises(error):
        called(address)
    for knocks in (is_there, answers):
        with answering(answer) as address:
            assert not knocks(address, OWN, "b", 0, PATIENCE_SECONDS)
