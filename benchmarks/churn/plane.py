"""What nodes of the test bed send each other: gradients over one connection per link, pieces of a state over another.

The same lines carry every method that is compared; methods differ in who sends which bytes along which way, and in who waits.
A piece that is not for the node that gets it is received whole and then sent on (store and forward).
"""

import queue
import socket
import struct
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

PORT = 7070
PIECE_BYTES = 256 * 1024
_PIECES_AHEAD = 4
_PATIENCE_SECONDS = 600.0
_HELLO_BYTES = 32
_HEADER = struct.Struct("!QIB")
"""Where a piece begins in the state, its length, and how many more nodes it has to pass."""


class Purpose(StrEnum):
    """What a connection carries."""

    GRADIENTS = "gradients"
    STATE = "state"


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """Consecutive bytes of the state along a way."""

    way: tuple[str, ...]
    """The source first, the joiner last, neighbours behind each other."""
    first_byte: int
    num_bytes: int

    def pieces(self) -> Iterable[tuple[int, int]]:
        """First byte and length of each piece."""
        last = self.first_byte + self.num_bytes
        return ((first, min(PIECE_BYTES, last - first)) for first in range(self.first_byte, last, PIECE_BYTES))


class Lines:
    """The connections of one node to its neighbours."""

    def __init__(self, name: str, address: str) -> None:
        """Take connections from now on."""
        self.name = name
        self.state = memoryview(b"")
        """What is sent, or filled; set before pieces come."""
        self._arrived = threading.Condition()
        self._num_arrived_bytes = 0
        self._lines: dict[tuple[str, Purpose], socket.socket] = {}
        self._outboxes: dict[str, queue.Queue[tuple[bytes, memoryview]]] = {}
        self._changed = threading.Condition()
        self._server = socket.create_server((address, PORT), backlog=64)
        threading.Thread(target=self._accept, name="accept", daemon=True).start()

    def connect(self, peer: str, address: str) -> None:
        """Open both connections to a neighbour."""
        for purpose in Purpose:
            line = socket.create_connection((address, PORT), timeout=_PATIENCE_SECONDS)
            line.sendall(f"{self.name} {purpose.value}".ljust(_HELLO_BYTES).encode())
            self._add(peer, purpose, line)

    def wait_for(self, peers: Sequence[str]) -> None:
        """Return once both connections to all of `peers` are there.

        Raises:
            TimeoutError: they did not come.
        """
        wanted = {(peer, purpose) for peer in peers for purpose in Purpose}
        with self._changed:
            if not self._changed.wait_for(lambda: wanted <= self._lines.keys(), _PATIENCE_SECONDS):
                raise TimeoutError(f"{self.name} misses {sorted(wanted - self._lines.keys())}")

    def close(self) -> None:
        """Close every connection."""
        self._server.close()
        for line in self._lines.values():
            with suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)
            line.close()

    def send_array(self, peer: str, values: NDArray[np.float32]) -> None:
        """Send gradients to a neighbour."""
        self._lines[peer, Purpose.GRADIENTS].sendall(values.data)

    def receive_array(self, peer: str, values: NDArray[np.float32]) -> None:
        """Fill `values` with what a neighbour sends."""
        _fill(self._lines[peer, Purpose.GRADIENTS], values.data.cast("B"))

    def send_state(self, send: Send) -> None:
        """Send this node's part of the state; returns when the last piece is on its way."""
        path = send.way[2:]
        names = "".join(name.ljust(_HELLO_BYTES) for name in path).encode()
        for first, length in send.pieces():
            header = _HEADER.pack(first, length, len(path)) + names
            self._outboxes[send.way[1]].put((header, self.state[first : first + length]), timeout=_PATIENCE_SECONDS)

    def wait_for_state(self, num_bytes: int) -> None:
        """Return once so many bytes of the state have come.

        Raises:
            TimeoutError: they did not.
        """
        with self._arrived:
            if not self._arrived.wait_for(lambda: self._num_arrived_bytes >= num_bytes, _PATIENCE_SECONDS):
                raise TimeoutError(f"{self._num_arrived_bytes} of {num_bytes} bytes of the state came")
            self._num_arrived_bytes = 0

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                line, _ = self._server.accept()
                hello = bytearray(_HELLO_BYTES)
                _fill(line, memoryview(hello))
                peer, purpose = hello.decode().split()
                self._add(peer, Purpose(purpose), line)

    def _add(self, peer: str, purpose: Purpose, line: socket.socket) -> None:
        line.settimeout(None)
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if purpose is Purpose.STATE:
            self._outboxes[peer] = queue.Queue(maxsize=_PIECES_AHEAD)
            threading.Thread(target=self._send_pieces, args=(line, self._outboxes[peer]), name="pieces", daemon=True).start()
            threading.Thread(target=self._take_pieces, args=(line,), name="take", daemon=True).start()
        with self._changed:
            self._lines[peer, purpose] = line
            self._changed.notify_all()

    @staticmethod
    def _send_pieces(line: socket.socket, outbox: "queue.Queue[tuple[bytes, memoryview]]") -> None:
        with suppress(OSError):
            while True:
                header, piece = outbox.get()
                line.sendall(header)
                line.sendall(piece)

    def _take_pieces(self, line: socket.socket) -> None:
        header = memoryview(bytearray(_HEADER.size))
        with suppress(OSError, EOFError):
            while True:
                _fill(line, header)
                first, length, num_hops = _HEADER.unpack(header)
                if num_hops:
                    self._pass_on(line, first, length, num_hops)
                else:
                    _fill(line, self.state[first : first + length])
                    with self._arrived:
                        self._num_arrived_bytes += length
                        self._arrived.notify_all()

    def _pass_on(self, line: socket.socket, first: int, length: int, num_hops: int) -> None:
        content = memoryview(bytearray(num_hops * _HELLO_BYTES + length))
        _fill(line, content)
        names, piece = bytes(content[: num_hops * _HELLO_BYTES]), content[num_hops * _HELLO_BYTES :]
        following = names[:_HELLO_BYTES].decode().strip()
        self._outboxes[following].put((_HEADER.pack(first, length, num_hops - 1) + names[_HELLO_BYTES:], piece))


def _fill(line: socket.socket, target: memoryview) -> None:
    """Receive as many bytes as `target` has.

    Raises:
        EOFError: the line ended.
    """
    while target:
        count = line.recv_into(target)
        if not count:
            raise EOFError
        target = target[count:]
