"""Whoever connects is nobody until it has said its name: it takes no memory, and its words buy it no time."""

import select
import socket
from collections.abc import Iterator

import pytest

from kintsugi.core.errors import CommunicationError
from kintsugi.runtime.ring.connection import Connection
from kintsugi.runtime.ring.wire import MOST_NAME_BYTES, Frame, framed


def heard(connection: Connection) -> list[Frame]:
    select.select([connection.socket], [], [], 60.0)
    return list(connection.receive())


@pytest.fixture
def caller() -> Iterator[tuple[Connection, socket.socket]]:
    """A connection that was accepted, and the socket of whoever calls."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname(), 60.0) as far:
        connection = Connection(server.accept()[0], patience_seconds=60.0, reach_seconds=60.0)
        yield connection, far
        connection.close()


def test_a_long_message_is_waited_for_only_from_a_member(caller: tuple[Connection, socket.socket]) -> None:
    connection, far = caller
    far.sendall(framed("a" * 200))
    assert heard(connection) == ["a" * 200]
    far.sendall((MOST_NAME_BYTES + 1).to_bytes(4) + b"\x00")
    with pytest.raises(CommunicationError, match="announces 1025 bytes"):
        heard(connection)
    connection.meet("a" * 200)
    far.sendall(b"{")
    assert heard(connection) == []


def test_signs_of_life_before_a_name_are_none(caller: tuple[Connection, socket.socket]) -> None:
    connection, far = caller
    began_at = connection.heard_at
    far.sendall(framed(None))
    assert heard(connection) == [None]
    assert (connection.heard_at, connection.has_heard) == (began_at, False)
    connection.meet("a")
    far.sendall(framed(None))
    assert heard(connection) == [None]
    assert connection.has_heard
    assert began_at < connection.heard_at
