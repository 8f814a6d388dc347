"""Questions between two workers are bounded: peers that are dead, frozen or wrong cost their timeout at most."""

import socket
import struct
import threading

import pytest
from structlog.testing import capture_logs

from kintsugi.core.errors import CommunicationError
from kintsugi.runtime.synchronization.exchange import Exchange, Kind
from tests.patience import eventually
from tests.runtime.scarce import many_descriptors, no_descriptors


@pytest.fixture
def ends():
    """Makes ends of conversations, closed at the end."""
    opened = []

    def end(**options) -> Exchange:
        exchange = Exchange("127.0.0.1", **{"largest_bytes": 100, "timeout_seconds": 120.0, "retry_seconds": 600.0, **options})
        opened.append(exchange)
        return exchange

    yield end
    for exchange in opened:
        exchange.close()


def asked(one: Exchange, other: Exchange, content: bytes = b"abc", size: int = 3) -> bytes | None:
    answer = bytearray(size)
    return bytes(answer) if one.ask(other.address, Kind.AVERAGE, bytearray(content), memoryview(answer)) else None


def test_questions_are_answered_over_one_connection(ends):
    one, other = ends(), ends()
    assert asked(one, other) is None, "nobody answers yet"
    other.serve(lambda kind, content: bytearray(reversed(content)) if kind is Kind.AVERAGE else None)
    assert [asked(one, other, bytes([n, 2, 3])) for n in range(3)] == [bytes([3, 2, n]) for n in range(3)]
    other.serve(None)
    assert asked(one, other) is None
    assert one.can_ask(other.address)


def test_a_dead_peer_is_found_at_once_and_left_alone(ends):
    one, other = ends(), ends()
    other.serve(lambda _, content: bytearray(content))
    assert asked(one, other) == b"abc"
    other.close()
    with pytest.raises(CommunicationError, match="did not answer"):
        asked(one, other)
    assert not one.can_ask(other.address)


def test_a_peer_may_be_asked_again_after_a_while(ends):
    one, other = ends(retry_seconds=0.0), ends()
    other.close()
    with pytest.raises(CommunicationError):
        asked(one, other)
    assert one.can_ask(other.address)


def test_a_frozen_peer_costs_the_timeout(ends):
    one = ends(timeout_seconds=0.05)
    with socket.create_server(("127.0.0.1", 0)) as frozen, pytest.raises(CommunicationError, match="timed out"):
        one.ask(frozen.getsockname(), Kind.READ, bytearray(), memoryview(bytearray(3)))


def test_an_answer_of_another_size_is_no_answer(ends):
    one, other = ends(), ends()
    other.serve(lambda _, content: bytearray(content))
    with pytest.raises(CommunicationError, match="3 bytes where 5 were expected"):
        asked(one, other, size=5)


def test_too_large_a_message_is_cut_off(ends):
    one, other = ends(), ends(largest_bytes=2)
    other.serve(lambda _, content: bytearray(content))
    with pytest.raises(CommunicationError):
        asked(one, other)


def test_nonsense_ends_the_connection_and_nothing_else(ends):
    one, other = ends(), ends()
    other.serve(lambda _, content: bytearray(content))
    with socket.create_connection(other.address, timeout=120.0) as stranger:
        stranger.sendall(struct.pack("!BQ", 99, 0))
        assert stranger.recv(1) == b""
    assert asked(one, other) == b"abc"


def test_who_announces_much_and_sends_little_takes_no_memory(ends):
    """A stranger's nine bytes took as much as the largest model may have."""
    one, other = ends(), ends(largest_bytes=2**44)
    other.serve(lambda _, content: bytearray(content))
    with socket.create_connection(other.address, timeout=120.0) as stranger:
        stranger.sendall(struct.pack("!BQ", Kind.AVERAGE, 2**44) + b"abc")
        assert asked(one, other) == b"abc"
        (answering,) = [thread for peer, thread in other._accepted.items() if peer.getpeername() == stranger.getsockname()]
        stranger.sendall(bytes(2**16))
        assert answering.is_alive()


def test_a_large_message_is_taken_whole_and_a_small_one_after_it(ends):
    one, other = ends(largest_bytes=2**24), ends(largest_bytes=2**24)
    other.serve(lambda _, content: bytearray(content))
    large = bytes(range(251)) * 20_000
    assert [asked(one, other, content, len(content)) for content in (large, b"abc", large[1:])] == [large, b"abc", large[1:]]


def test_peers_are_answered_again_once_there_are_threads(ends, monkeypatch):
    one, other = ends(retry_seconds=0.0), ends()
    other.serve(lambda _, content: bytearray(content))

    def none(_):
        raise RuntimeError("can't start new thread")

    with capture_logs() as logs:
        monkeypatch.setattr(threading.Thread, "start", none)
        with pytest.raises(CommunicationError):
            asked(one, other)
        assert eventually(lambda: [log["event"] for log in logs], bool) == ["cannot answer those who call"]
        monkeypatch.undo()
    assert asked(one, other) == b"abc"


def test_closing_frees_who_waits(ends):
    one = ends()
    errors = []
    with socket.create_server(("127.0.0.1", 0)) as silent:

        def ask() -> None:
            try:
                one.ask(silent.getsockname(), Kind.READ, bytearray(), memoryview(bytearray(3)))
            except CommunicationError as error:
                errors.append(error)

        thread = threading.Thread(target=ask)
        thread.start()
        connection, _ = silent.accept()
        with connection:
            connection.recv(1)
            one.close()
            thread.join(120.0)
    assert len(errors) == 1
    with pytest.raises(CommunicationError, match="closed"):
        one.ask(("127.0.0.1", 1), Kind.READ, bytearray(), memoryview(bytearray(3)))


def test_closing_frees_who_is_just_about_to_wait(ends, monkeypatch):
    """The connection is made, and nobody knows of it yet, when all that are known are shut down."""
    one, connect = ends(), socket.create_connection

    def connect_while_it_closes(*arguments, **options):
        connection = connect(*arguments, **options)
        one.close()
        return connection

    monkeypatch.setattr(socket, "create_connection", connect_while_it_closes)
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(CommunicationError, match="was closed"):
        one.ask(silent.getsockname(), Kind.READ, bytearray(), memoryview(bytearray(3)))
    assert not one._connections


def test_peers_are_answered_again_once_there_are_descriptors(ends):
    """To accept a connection takes one; without any the kernel keeps those who call waiting."""
    one, other = ends(), ends()
    other.serve(lambda _, content: bytearray(content))
    with capture_logs() as logs, no_descriptors() as caller:
        caller.connect(other.address)
        told = eventually(lambda: [log["event"] for log in logs], bool)
    assert told == ["cannot answer those who call"]
    assert asked(one, other) == b"abc"


def test_peers_are_answered_by_processes_with_very_many_descriptors(ends):
    with many_descriptors(1100):
        one, other = ends(), ends()
        other.serve(lambda _, content: bytearray(content))
        assert asked(one, other) == b"abc"
