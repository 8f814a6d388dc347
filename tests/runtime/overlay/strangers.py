"""Those who reach a worker's port, or answer at one, and speak as they like."""

import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from socket import create_connection, create_server, socket

import xxhash

from kintsugi.runtime.overlay.messages import Channel, Message, write
from tests.patience import PATIENCE_SECONDS

_HEAD = struct.Struct("!BIIQ")
HEAD_BYTES = _HEAD.size
"""Of a frame before the header."""


def frame(header: bytes, payload: bytes = b"") -> bytes:
    """Bytes as a message travels, whatever they say."""
    return _HEAD.pack(Channel.CONTROL, len(header), len(payload), xxhash.xxh3_64_intdigest(header + payload)) + header + payload


def say(connection: socket, kind: str, fields: object) -> None:
    """Send something that may be a greeting."""
    write(connection, Message(Channel.CONTROL, kind, fields))  # type: ignore[arg-type]


def caller(port: int) -> socket:
    """Who called a worker, and says nothing yet."""
    return create_connection(("127.0.0.1", port), PATIENCE_SECONDS)


def is_hung_up_on(connection: socket) -> bool:
    """Whether the other end closes the connection, and says nothing before."""
    with suppress(ConnectionError):
        return not connection.recv(1)
    return True


@contextmanager
def answering(answer: Callable[[socket], None]) -> Iterator[str]:
    """The address of somebody who answers one call."""
    with create_server(("127.0.0.1", 0)) as door:
        door.settimeout(PATIENCE_SECONDS)

        def run() -> None:
            connection, _ = door.accept()
            with connection, suppress(OSError):
                connection.settimeout(PATIENCE_SECONDS)
                answer(connection)

        answers = threading.Thread(target=run, daemon=True)
        answers.start()
        yield f"127.0.0.1:{door.getsockname()[1]}"
        answers.join(PATIENCE_SECONDS)
        assert not answers.is_alive()
