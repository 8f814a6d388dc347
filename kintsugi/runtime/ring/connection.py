"""One TCP connection to another member: frames in and out, without ever waiting."""

import errno
import socket
import time
from collections.abc import Iterator
from contextlib import suppress

from kintsugi.runtime.ring.wire import MOST_BYTES, MOST_NAME_BYTES, Frame, framed, frames
from restorer.sockets import kept_apart

Address = tuple[str, int]
"""Host and TCP port."""

_CHUNK_BYTES = 1 << 16

_USER_TIMEOUT: int | None = getattr(socket, "TCP_USER_TIMEOUT", None)
"""The option that ends a connection on which what was sent is not acknowledged; null where the platform has none."""


class Connection:
    """A connection that is open, or being opened. Its owner watches the socket and closes it."""

    def __init__(
        self, accepted: socket.socket | None = None, *, peer: str = "", patience_seconds: float, reach_seconds: float
    ) -> None:
        """Nothing is sent yet.

        Args:
            accepted: somebody else's attempt to connect, that succeeded.
            peer: empty until an accepted connection says its name.
            patience_seconds: silence that ends it once it stands; what comes before a name counts as such. Whoever is at its
                other end may still be loading.
            reach_seconds: for the other end's host to answer the attempt, and to acknowledge what is sent. It does so at once even
                where the process is busy or stands still: if not, the host or the way to it is gone.
        """
        self.socket = accepted or kept_apart(socket.socket)
        self.socket.setblocking(False)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if _USER_TIMEOUT is not None:
            self.socket.setsockopt(socket.IPPROTO_TCP, _USER_TIMEOUT, round(1000 * reach_seconds))
        self.peer = peer
        self.reach_seconds = reach_seconds
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

    def is_silent(self, now: float) -> bool:
        """Whether nothing was heard for too long, on the monotonic clock."""
        return now - self.heard_at > (
            min(self.reach_seconds, self.patience_seconds) if self.is_connecting else self.patience_seconds
        )

    def meet(self, peer: str) -> None:
        """Whoever connected has said its name: from now on it is heard."""
        self.peer, self.heard_at, self.has_heard = peer, time.monotonic(), True

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
        """The frames that have come; those that nobody took the last time first.

        Raises:
            OSError: the connection is gone; all that came before has been told.
            CommunicationError: it is no member that talks.
        """
        with suppress(BlockingIOError):
            self._take_in(self.socket.recv(_CHUNK_BYTES))
        yield from frames(self._received, lambda: MOST_BYTES if self.peer else MOST_NAME_BYTES)

    def close(self) -> None:
        """Close the socket."""
        self.socket.close()

    def _take_in(self, chunk: bytes) -> None:
        if not chunk:
            raise ConnectionResetError(errno.ECONNRESET, f"{self.peer} closed the connection")
        if self.peer:
            self.heard_at, self.has_heard = time.monotonic(), True
        self._received += chunk
