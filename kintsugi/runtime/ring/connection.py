"""One TCP connection to another member: frames in and out, without ever waiting."""

import errno
import socket
import time
from collections.abc import Iterator

from kintsugi.runtime.ring.wire import Frame, framed, frames
from restorer.sockets import kept_apart

Address = tuple[str, int]
"""Host and TCP port."""

_CHUNK_BYTES = 1 << 16


class Connection:
    """A connection that is open, or being opened. Its owner watches the socket and closes it."""

    def __init__(self, accepted: socket.socket | None = None, *, peer: str = "", patience_seconds: float) -> None:
        """`peer` is empty until an accepted connection says its name; silence for longer than the patience ends it."""
        self.socket = accepted or kept_apart(socket.socket)
        self.socket.setblocking(False)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.peer = peer
        self.patience_seconds = patience_seconds
        self.heard_at = time.monotonic()
        self.is_connecting = accepted is None
        self.has_heard = False
        self._received = bytearray()
        self._unsent = bytearray()

    @property
    def wants_to_write(self) -> bool:
        """Whether something waits for room, or for the connection itself."""
        return self.is_connecting or bool(self._unsent)

    def open(self, address: Address) -> None:
        """Begin to connect.

        Raises:
            OSError: it cannot be; ConnectionRefusedError where nobody listens there any more.
        """
        error = self.socket.connect_ex(address)
        if error not in (0, errno.EINPROGRESS):
            raise OSError(error, f"{address[0]}:{address[1]} cannot be reached")

    def send(self, frame: Frame) -> None:
        """Put a frame on its way.

        Raises:
            OSError: the connection is gone.
        """
        self._unsent += framed(frame)
        if not self.is_connecting:
            self.flush()

    def flush(self) -> None:
        """Write what there is room for; the first time, see what came of the attempt to connect.

        Raises:
            OSError: the connection is gone, or never came about.
        """
        if self.is_connecting:
            if error := self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                raise OSError(error, f"{self.peer} cannot be reached")
            self.is_connecting = False
        while self._unsent:
            try:
                sent = self.socket.send(self._unsent)
            except BlockingIOError:
                return
            del self._unsent[:sent]

    def receive(self) -> Iterator[Frame]:
        """The frames that have come.

        Raises:
            OSError: the connection is gone; all that came before has been told.
            CommunicationError: it is no member that talks.
        """
        try:
            chunk = self.socket.recv(_CHUNK_BYTES)
        except BlockingIOError:
            return
        if not chunk:
            raise ConnectionResetError(errno.ECONNRESET, f"{self.peer} closed the connection")
        self.heard_at, self.has_heard = time.monotonic(), True
        self._received += chunk
        yield from frames(self._received)

    def close(self) -> None:
        """Close the socket."""
        self.socket.close()
