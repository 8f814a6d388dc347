"""Questions and answers between two workers over connections of their own, beside whatever else both do.

request: kind and size, content                 a worker answers each connection in a thread of its own,
reply:   kind and size, content                 by whatever handler is set at that moment
"""

import select
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from enum import IntEnum

from kintsugi.core.errors import CommunicationError, InvalidInputError
from kintsugi.core.logs import get_logger

_HEADER = struct.Struct("!BQ")
_POLL_SECONDS = 0.2
"""How often a thread without requests looks whether it should end."""
_PIECE_BYTES = 1 << 20
"""Of a request that are made room for before any have come."""

Buffer = bytearray | memoryview
Address = tuple[str, int]


class Kind(IntEnum):
    """What a message asks for."""

    REFUSED = 0
    """The only reply without content: the worker does not answer such questions now."""
    AVERAGE = 1
    """Take the mean of your model and this one; the answer is yours before that."""
    READ = 2
    """Your cached model."""


Handler = Callable[[Kind, memoryview], Buffer | None]
"""Answers a request by its kind and content; None refuses it. Called from several threads."""


class Exchange:
    """One worker's end: it answers the others, and asks them."""

    def __init__(self, host: str, *, largest_bytes: int, timeout_seconds: float, retry_seconds: float) -> None:
        """Listens at once.

        Args:
            host: address of this machine where peers reach it.
            largest_bytes: of a message; who announces more is cut off.
            timeout_seconds: for connecting, and for each message once it has begun.
            retry_seconds: for which a peer that failed is not asked again.

        Raises:
            InvalidInputError: the host is no address of this machine.
        """
        self._largest_bytes, self._timeout_seconds, self._retry_seconds = largest_bytes, timeout_seconds, retry_seconds
        self._handler: Handler | None = None
        self._connections: dict[Address, socket.socket] = {}
        self._failed_at: dict[Address, float] = {}
        self._is_closed = threading.Event()
        self._accepted: dict[socket.socket, threading.Thread] = {}
        self._listener = _listener(host)
        self.address: Address = (host, self._listener.getsockname()[1])
        self._thread = threading.Thread(target=self._accept, name="exchange", daemon=True)
        self._thread.start()

    def serve(self, handler: Handler | None) -> None:
        """Answer requests by `handler` from now on; refuse them where there is none."""
        self._handler = handler

    def can_ask(self, peer: Address) -> bool:
        """Whether a peer has not failed lately."""
        failed_at = self._failed_at.get(peer)
        return failed_at is None or time.monotonic() - failed_at >= self._retry_seconds

    def ask(self, peer: Address, kind: Kind, content: Buffer, answer: memoryview) -> bool:
        """Send a request and write the answer into `answer`, which has its size; for one thread at a time.

        Returns:
            Whether the peer answered; False where it refused.

        Raises:
            CommunicationError: the peer is gone, too slow, or answers something else; it is not asked again for a while.
        """
        try:
            connection = self._connection_to(peer)
            connection.sendall(_HEADER.pack(kind, len(content)))
            connection.sendall(content)
            replied, size = _HEADER.unpack(_received(connection, bytearray(_HEADER.size)))
            if replied == Kind.REFUSED and size == 0:
                return False
            if size != len(answer):
                raise OSError(f"an answer of {size} bytes where {len(answer)} were expected")
            _received(connection, answer)
        except OSError as error:
            self._forget(peer)
            raise CommunicationError(f"{peer[0]}:{peer[1]} did not answer: {error}", field="peer", value=peer) from error
        return True

    def close(self) -> None:
        """Ask and answer no more; frees who waits in `ask`."""
        self._is_closed.set()
        for connection in (self._listener, *list(self._connections.values()), *list(self._accepted)):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._thread.join(self._timeout_seconds)
        for answering in list(self._accepted.values()):
            answering.join(self._timeout_seconds)
        for connection in list(self._connections.values()):
            connection.close()

    def _connection_to(self, peer: Address) -> socket.socket:
        if self._is_closed.is_set():
            raise OSError("the exchange is closed")
        connection = self._connections.get(peer)
        if connection is None:
            connection = socket.create_connection(peer, timeout=self._timeout_seconds)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._connections[peer] = connection
            if self._is_closed.is_set():  # and whoever closed it may have looked for connections before
                raise OSError("the exchange was closed")
        return connection

    def _forget(self, peer: Address) -> None:
        self._failed_at[peer] = time.monotonic()
        connection = self._connections.pop(peer, None)
        if connection is not None:
            connection.close()

    def _accept(self) -> None:
        """Until this end is closed: what keeps it from one caller (no descriptor, no thread) need not keep it from the next."""
        is_able = True
        with self._listener:
            while self._is_ready(self._listener):
                try:
                    self._begin_answers(self._listener.accept()[0])
                except (OSError, RuntimeError) as error:
                    if is_able and not self._is_closed.is_set():
                        log = get_logger("kintsugi.synchronization")
                        log.warning("cannot answer those who call", error=str(error))
                    is_able = False
                    self._is_closed.wait(_POLL_SECONDS)
                    continue
                is_able = True

    def _begin_answers(self, connection: socket.socket) -> None:
        """Answer a peer in a thread of its own.

        Raises:
            RuntimeError: no thread can be started; it is hung up on.
        """
        answering = threading.Thread(target=self._answer_all, args=(connection,), name="exchange-answers", daemon=True)
        self._accepted[connection] = answering
        try:
            answering.start()
        except RuntimeError:
            del self._accepted[connection]
            connection.close()
            raise

    def _answer_all(self, connection: socket.socket) -> None:
        """Until the peer hangs up or this end is closed."""
        with connection, suppress(OSError, ValueError):  # also of a kind that there is none of
            connection.settimeout(self._timeout_seconds)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            buffer = bytearray()
            while self._is_ready(connection):
                number, size = _HEADER.unpack(_received(connection, bytearray(_HEADER.size)))
                kind = Kind(number)
                if size > self._largest_bytes:
                    break
                _receive_growing(connection, buffer, size)
                with memoryview(buffer)[:size] as content:
                    self._answer(connection, kind, content)
        self._accepted.pop(connection, None)

    def _answer(self, connection: socket.socket, kind: Kind, content: memoryview) -> None:
        handler = self._handler
        answer = None if handler is None else handler(kind, content)
        if answer is None:
            connection.sendall(_HEADER.pack(Kind.REFUSED, 0))
            return
        connection.sendall(_HEADER.pack(kind, len(answer)))
        connection.sendall(answer)

    def _is_ready(self, waited_for: socket.socket) -> bool:
        """Wait until there is something to read; False once this end is closed."""
        ready = select.poll()  # unlike select, it takes descriptors of any number
        ready.register(waited_for, select.POLLIN)
        while not self._is_closed.is_set():
            if ready.poll(1000 * _POLL_SECONDS):
                return not self._is_closed.is_set()
        return False


def _listener(host: str) -> socket.socket:
    try:
        return socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except (OSError, UnicodeError) as error:
        raise InvalidInputError(
            f"cannot listen there ({error}); give an address of this machine", field="address", value=host
        ) from error


def _received(connection: socket.socket, into: Buffer) -> Buffer:
    """Fill a buffer.

    Raises:
        OSError: the connection ended before, or stood still for its timeout.
    """
    view, filled = memoryview(into), 0
    while filled < len(view):
        count = connection.recv_into(view[filled:])
        if count == 0:
            raise ConnectionResetError("the connection ended")
        filled += count
    return into


def _receive_growing(connection: socket.socket, buffer: bytearray, size: int) -> None:
    """Fill the first `size` bytes of a buffer, which grows with what comes: whoever calls may announce much, and send nothing.

    Raises:
        OSError: as `_received` says.
    """
    filled = 0
    while filled < size:
        until = min(size, max(len(buffer), 2 * filled, _PIECE_BYTES))
        buffer.extend(bytes(max(until - len(buffer), 0)))
        with memoryview(buffer)[filled:until] as piece:
            _received(connection, piece)
        filled = until
