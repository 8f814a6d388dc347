"""One link: a connection to a neighbour with a thread that reads, a thread that writes, and priorities between channels."""

import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from kintsugi.core.errors import CommunicationError
from kintsugi.core.logs import get_logger
from kintsugi.runtime.overlay.messages import Channel, Message, read, write
from kintsugi.runtime.overlay.options import OverlayOptions
from kintsugi.runtime.overlay.outbox import Outbox

_UNSENT_SECONDS = 0.02
"""What the kernel holds unsent is sent within this time: what is urgent does not wait behind more."""
_LEAST_UNSENT_BYTES, _MOST_UNSENT_BYTES = 128 * 2**10, 4 * 2**20
_TUNED_BYTES = 2**20
"""Payload after which the kernel is asked again how fast the link is."""
_TCP_INFO_BYTES, _DELIVERY_RATE_OFFSET = 168, 160
"""`struct tcp_info` of linux/tcp.h as far as `tcpi_delivery_rate`, in bytes per second."""
_JOIN_SECONDS = 5.0
PING, TAKEN = "ping", "taken"


_PINGS_IN_TIME = 3
"""At least, for an end that takes a link for lost sooner than this one: one lost ping is no lost link."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the other end of a link has to keep to, whatever its own options say."""

    window_bytes: int
    """Of reductions, that may wait here."""
    timeout_seconds: float
    """Silence after which the link is lost here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """Who is at the other end, as the two greeted each other."""

    worker: str
    incarnation: int
    number: int
    """Of the connection, the same at both ends: an event about it gets the same id from both."""
    generation: int
    """The overlay that whoever connected knew."""
    limits: Limits
    """That this end keeps to."""


class Link:
    """A connection to one neighbour. Messages of one channel arrive in order; the lower channel goes first."""

    def __init__(
        self,
        connection: socket.socket,
        peer: Peer,
        options: OverlayOptions,
        *,
        on_message: Callable[["Link", Message], None],
        on_loss: Callable[["Link", str], None],
    ) -> None:
        """Take over a connection on which greetings were exchanged; `on_loss` is called once, from one of its threads."""
        self.peer = peer
        self._connection, self._options = connection, options
        self._on_message, self._on_loss = on_message, on_loss
        self._outbox = Outbox(peer.limits.window_bytes)
        self._ping_seconds = min(options.ping_seconds, peer.limits.timeout_seconds / _PINGS_IN_TIME)
        self._lock = threading.Lock()
        self._is_over = False
        self._num_users = 2
        self._taken_bytes = 0
        name = f"overlay-link-{peer.worker}"
        self._threads = [
            threading.Thread(target=self._run, args=(work,), name=f"{name}-{what}", daemon=True)
            for what, work in (("reads", self._read), ("writes", self._write))
        ]

    def start(self) -> None:
        """Begin to read and write."""
        for thread in self._threads:
            thread.start()

    @property
    def is_up(self) -> bool:
        """Whether it still carries messages, as far as this end knows."""
        return not self._is_over

    def send(self, message: Message) -> None:
        """Let a message wait for its turn; returns before it is sent. Shards wait here while others do.

        Raises:
            CommunicationError: the link is lost.
        """
        self._outbox.put(message, self._options.link_timeout_seconds)

    def acknowledge(self, num_bytes: int) -> None:
        """So many bytes of reductions that came over this link were taken: tell its other end now and then."""
        with self._lock:
            self._taken_bytes += num_bytes
            told = self._taken_bytes
            if told < self._options.window_bytes // 4:
                return
            self._taken_bytes = 0
        with suppress(CommunicationError):
            self.send(Message(Channel.CONTROL, TAKEN, {"bytes": told}))

    def waiting_bytes(self, channel: Channel) -> int:
        """What waits to be sent on one channel."""
        return self._outbox.waiting_bytes(channel)

    def drop(self, is_stale: Callable[[Message], bool]) -> None:
        """Forget waiting messages of reductions that were called off."""
        self._outbox.drop(is_stale)

    def close(self) -> None:
        """End the link on purpose; nobody is told of a loss at this end."""
        self._end(None)
        for thread in self._threads:
            if thread is not threading.current_thread() and thread.is_alive():
                thread.join(_JOIN_SECONDS)

    def await_sent(self, timeout_seconds: float) -> bool:
        """Whether what waits was sent within the time."""
        return self._outbox.await_empty(timeout_seconds)

    def hang_up(self, timeout_seconds: float) -> None:
        """End the link on purpose once what waits was sent: the other end, which may be a step behind, hears all of it."""
        self.await_sent(timeout_seconds)
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_WR)
        reads = self._threads[0]
        if reads is not threading.current_thread() and reads.is_alive():
            reads.join(timeout_seconds)
        self.close()

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BlockingIOError:
            self._end(f"nothing moved for {self._options.link_timeout_seconds:g} s")
        except (OSError, CommunicationError) as error:
            self._end(str(error) or type(error).__name__)
        except Exception as error:  # what a message makes of who hears it: the loss must be told all the same
            get_logger("kintsugi.overlay").exception("a message could not be taken", worker=self.peer.worker)
            self._end(f"a message could not be taken: {type(error).__name__}: {error}")
        finally:
            self._let_go()

    def _read(self) -> None:
        while not self._is_over:
            message = read(self._connection)
            if message.kind == TAKEN:
                self._outbox.taken(int(message.fields["bytes"]))
            elif message.kind != PING:
                self._on_message(self, message)

    def _write(self) -> None:
        num_bytes = 0
        while not self._is_over:
            num_bytes += self._write_next()
            if num_bytes >= _TUNED_BYTES:
                num_bytes = 0
                tune(self._connection)

    def _write_next(self) -> int:
        """Bytes of the payload; nothing refers to it any more afterwards."""
        message = self._outbox.take(self._ping_seconds) or Message(Channel.CONTROL, PING)
        write(self._connection, message)
        return message.num_bytes

    def _end(self, why: str | None) -> None:
        with self._lock:
            was_over, self._is_over = self._is_over, True
        if was_over:
            return
        self._outbox.close()
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        if why is not None:
            self._on_loss(self, why)

    def _let_go(self) -> None:
        """Close the connection once neither thread can use its descriptor any more, which may be another file's then."""
        self._end(None)
        with self._lock:
            self._num_users -= 1
            is_last = not self._num_users
        if is_last:
            self._connection.close()


def prepare(connection: socket.socket, timeout_seconds: float) -> None:
    """Set a connection up for a link: nothing waits in the kernel for long, and silence is an error."""
    seconds, rest = divmod(timeout_seconds, 1.0)
    limit = struct.pack("@ll", int(seconds), int(rest * 1e6))
    connection.settimeout(None)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _LEAST_UNSENT_BYTES)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(timeout_seconds * 1000))


def tune(connection: socket.socket) -> None:
    """Have the kernel hold as much unsent as the link carries in a moment: with less, a fast link runs dry when this process waits
    for a processor.
    """
    told = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
    if len(told) == _TCP_INFO_BYTES:
        (bytes_per_second,) = struct.unpack_from("@Q", told, _DELIVERY_RATE_OFFSET)
        unsent = min(max(int(bytes_per_second * _UNSENT_SECONDS), _LEAST_UNSENT_BYTES), _MOST_UNSENT_BYTES)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, unsent)
