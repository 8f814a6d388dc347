"""What travels over a link: messages with a channel, a kind, a few fields and bytes, framed and checksummed."""

import json
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np
import xxhash

from kintsugi.core.errors import CommunicationError
from kintsugi.runtime.overlay.deadline import Deadline

_FRAME = struct.Struct("!BIIQ")
"""Channel, bytes of the header, bytes of the payload, XXH3 of both: it finds damage at several times the rate of a CRC-32."""
NO_BYTES = memoryview(b"")
MOST_HEADER_BYTES = 64 * 2**20
MOST_PAYLOAD_BYTES = 64 * 2**20


class Channel(IntEnum):
    """Who goes first where several wait for the same link: the lower one."""

    CONTROL = 0
    SHARDS = 1
    REDUCTION = 2
    ROUNDS = 3
    """Reductions that are over, for those that join."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message."""

    channel: Channel
    kind: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    payload: memoryview = NO_BYTES

    @property
    def num_bytes(self) -> int:
        """Of the payload."""
        return self.payload.nbytes


def write(connection: socket.socket, message: Message) -> None:
    """Send one message whole.

    Raises:
        OSError: the connection is broken, or did not take anything for its timeout.
    """
    header = json.dumps([message.kind, message.fields], separators=(",", ":")).encode()
    payload = message.payload.cast("B")
    head = _FRAME.pack(message.channel, len(header), payload.nbytes, _checksum(header, payload)) + header
    sent = connection.sendmsg([head, payload])
    if sent < len(head):
        connection.sendall(head[sent:])
        sent = len(head)
    if sent < len(head) + payload.nbytes:
        connection.sendall(payload[sent - len(head) :])


def read(
    connection: socket.socket,
    *,
    most_header_bytes: int = MOST_HEADER_BYTES,
    most_payload_bytes: int = MOST_PAYLOAD_BYTES,
    deadline: Deadline | None = None,
) -> Message:
    """Receive one message whole.

    Args:
        connection: over which it comes.
        most_header_bytes: and
        most_payload_bytes: that are taken; whoever announces more is not listened to.
        deadline: by which all of it has to be there; None where it may take long as long as something comes.

    Raises:
        OSError: the connection is broken or silent.
        CommunicationError: it was closed, or what came is no message.
    """
    channel, header_bytes, payload_bytes, seal = _FRAME.unpack(_exactly(connection, _FRAME.size, deadline))
    if channel not in _CHANNELS or header_bytes > most_header_bytes or payload_bytes > most_payload_bytes:
        raise CommunicationError("does not speak the overlay's language", field="link")
    header, payload = _exactly(connection, header_bytes, deadline), _exactly(connection, payload_bytes, deadline)
    if _checksum(header, payload) != seal:
        raise CommunicationError("a message arrived damaged", field="link")
    try:
        kind, fields = json.loads(bytes(header))
    except (ValueError, TypeError, RecursionError) as error:
        raise CommunicationError(f"a message arrived that is none: {error}", field="link") from error
    if not isinstance(kind, str) or not isinstance(fields, dict):
        raise CommunicationError("a message arrived that is none: it has no kind, or no fields", field="link")
    return Message(Channel(channel), kind, fields, payload)


_CHANNELS = frozenset(channel.value for channel in Channel)


def _checksum(header: bytes | memoryview, payload: memoryview) -> int:
    found = xxhash.xxh3_64(header)
    found.update(payload)
    return found.intdigest()


def hold_to(deadline: Deadline, connection: socket.socket) -> None:
    """Let the next wait on a connection end with a deadline.

    Raises:
        TimeoutError: it is over.
    """
    seconds = deadline.left_seconds
    if not seconds:
        raise TimeoutError("timed out")
    connection.settimeout(seconds)


def _exactly(connection: socket.socket, num_bytes: int, deadline: Deadline | None) -> memoryview:
    buffer = np.empty(num_bytes, np.uint8).data
    filled = 0
    while filled < num_bytes:
        if deadline is not None:
            hold_to(deadline, connection)
        count = connection.recv_into(buffer[filled:], num_bytes - filled, socket.MSG_WAITALL)
        if not count:
            raise CommunicationError("the other end closed the connection", field="link")
        filled += count
    return buffer
