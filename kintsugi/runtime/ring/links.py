"""All connections of one member, and the health of whoever is at their other ends. One thread uses it.

A connection that breaks means its peer is lost, and so does silence; a refused attempt to connect, that its process has ended.
"""

import selectors
import socket
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from functools import partial

from kintsugi.core.errors import CommunicationError
from kintsugi.core.logs import get_logger
from kintsugi.runtime.ring.connection import Address, Connection
from kintsugi.runtime.ring.messages import Hello, Message
from kintsugi.runtime.ring.options import RingOptions
from kintsugi.runtime.ring.signals import Lost, Missed, Received
from kintsugi.runtime.ring.wire import Frame
from restorer.sockets import kept_apart

_BACKLOG = 128


def listener(host: str) -> socket.socket:
    """A socket at which a member can be reached, on a free port: open it before the addresses are told to anybody.

    Raises:
        OSError: this machine has no such address.
    """
    return socket.create_server((host, 0), backlog=_BACKLOG)


class Links:
    """Connections by member; opened as needed, watched as long as they are open."""

    def __init__(
        self,
        member: str,
        listening: socket.socket,
        addresses: Mapping[str, Address],
        options: RingOptions,
        *,
        generation: Callable[[], int],
        fence: Callable[[str], None],
    ) -> None:
        """Takes `listening` over; `generation` tells in which one the member is, `fence` is told who froze."""
        self._member, self._addresses, self._options = member, dict(addresses), options
        self._generation, self._fence = generation, fence
        self._listening = listening
        self._listening.setblocking(False)
        self._wake, self._waker = socket.socketpair()
        for end in (self._wake, self._waker):
            end.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listening, selectors.EVENT_READ)
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._connections: list[Connection] = []
        self._unknown: dict[Connection, str] = {}
        """Who calls under a name that is not known yet: a newcomer may hear of its generation before this member does."""
        self._signals: list[Lost | Missed | Received] = []
        self._beaten_at = self._polled_at = time.monotonic()
        self._answers_at: float | None = None
        """When to answer calls again; null where they are answered."""
        self._log = get_logger("kintsugi.runtime").bind(member=member)

    @property
    def peers(self) -> frozenset[str]:
        """Whoever is at the other end of a connection, or of an attempt at one."""
        return frozenset(connection.peer for connection in self._connections if connection.peer)

    def learn(self, addresses: Mapping[str, Address]) -> None:
        """Know where further members listen, or those that came back; listen to those of them that have called already."""
        self._addresses |= addresses
        for connection, name in tuple(self._unknown.items()):
            if name in self._addresses:
                del self._unknown[connection]
                self._selector.register(connection.socket, selectors.EVENT_READ, connection)
                self._guarded(connection, partial(self._listen, connection, name))

    def hears(self, worker: str) -> bool:
        """Whether there is a connection to a member over which it has said something."""
        return any(connection.peer == worker and connection.has_heard for connection in self._connections)

    def send(self, worker: str, message: Message) -> None:
        """Send a message, over a new connection where there is none."""
        self.connect(worker)
        if (connection := self._to(worker)) is not None:
            self._send(connection, message)

    def connect(self, worker: str, *, patience_seconds: float | None = None) -> None:
        """Have a connection to a member; whether that works out is told by `poll`."""
        if self._to(worker) is not None:
            return
        patience_seconds = patience_seconds or self._options.heartbeat_timeout_seconds
        reach_seconds = self._options.heartbeat_timeout_seconds
        connection = Connection(peer=worker, patience_seconds=patience_seconds, reach_seconds=reach_seconds)
        self._add(connection)

        def introduce() -> None:
            connection.open(self._addresses[worker])
            connection.send(self._member)
            connection.send(Hello(self._generation()))

        self._guarded(connection, introduce)

    def leave(self, others: Collection[str]) -> None:
        """Close the connections to some."""
        for connection in [connection for connection in self._connections if connection.peer in others]:
            self._drop(connection)

    def wake(self) -> None:
        """Let `poll` return; from any thread."""
        with suppress(OSError):
            self._waker.send(b"w")

    def poll(self, timeout_seconds: float) -> list[Lost | Missed | Received]:
        """What happened, in the order of each connection; waits for something at most so long."""
        ready = [] if self._signals else self._selector.select(timeout_seconds)
        self._excuse_own_pause()
        self._answer_again()
        for key, events in ready:
            if key.fileobj is self._listening:
                self._accept()
            elif key.fileobj is self._wake:
                with suppress(BlockingIOError):
                    self._wake.recv(1024)
            elif key.data in self._connections:
                self._attend(key.data, events)
        self._beat()
        signals, self._signals = self._signals, []
        return signals

    def close(self) -> None:
        """Close every socket."""
        for connection in list(self._connections):
            self._drop(connection)
        for end in (self._listening, self._wake, self._waker):
            end.close()
        self._selector.close()

    def _to(self, worker: str) -> Connection | None:
        return next((connection for connection in self._connections if connection.peer == worker), None)

    def _add(self, connection: Connection) -> None:
        self._connections.append(connection)
        self._selector.register(connection.socket, selectors.EVENT_READ, connection)

    def _drop(self, connection: Connection) -> None:
        self._connections.remove(connection)
        if self._unknown.pop(connection, None) is None:
            self._selector.unregister(connection.socket)
        connection.close()

    def _lose(self, connection: Connection, *, is_certain: bool = False) -> None:
        """A connection is gone, and with the last one its peer; with another one what was on its way."""
        self._drop(connection)
        if connection.peer in self.peers:
            self._signals.append(Missed(connection.peer))
        elif connection.peer:
            self._signals.append(Lost(connection.peer, is_certain=is_certain))

    def _guarded(self, connection: Connection, action: Callable[[], None]) -> None:
        """Do something with a connection; what breaks it loses its peer."""
        try:
            action()
        except (OSError, CommunicationError) as error:
            self._lose(connection, is_certain=connection.is_connecting and isinstance(error, ConnectionRefusedError))
        else:
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.wants_to_write else 0)
            is_watched = connection in self._connections and connection not in self._unknown
            if is_watched and self._selector.get_key(connection.socket).events != events:
                self._selector.modify(connection.socket, events, connection)

    def _send(self, connection: Connection, frame: Frame) -> None:
        self._guarded(connection, lambda: connection.send(frame))

    def _accept(self) -> None:
        limit_seconds = self._options.heartbeat_timeout_seconds
        try:
            while True:
                accepted = kept_apart(lambda: self._listening.accept()[0])
                self._add(Connection(accepted, patience_seconds=limit_seconds, reach_seconds=limit_seconds))
        except (BlockingIOError, ConnectionError):
            pass
        except OSError as error:  # a want of descriptors: the kernel keeps those who call waiting
            self._log.warning("cannot answer those who call for a while", error=str(error))
            self._selector.unregister(self._listening)
            self._answers_at = time.monotonic() + self._options.retry_seconds

    def _answer_again(self) -> None:
        if self._answers_at is not None and time.monotonic() >= self._answers_at:
            self._answers_at = None
            self._selector.register(self._listening, selectors.EVENT_READ)

    def _attend(self, connection: Connection, events: int) -> None:
        def attend() -> None:
            if events & selectors.EVENT_WRITE:
                connection.flush()
            if events & selectors.EVENT_READ:
                self._take_in(connection)

        self._guarded(connection, attend)

    def _take_in(self, connection: Connection) -> None:
        for frame in connection.receive():
            connection.patience_seconds = self._options.heartbeat_timeout_seconds
            if isinstance(frame, str):
                if not self._meet(connection, frame):
                    return
            elif not connection.peer:
                raise CommunicationError("speaks before it said its name", field="connection")
            elif frame is not None:
                self._signals.append(Received(connection.peer, frame))

    def _meet(self, connection: Connection, name: str) -> bool:
        """Know who calls; whose name is not known has to wait, unheard, until it is or its time is up."""
        if name not in self._addresses:
            if connection.peer:
                raise CommunicationError(f"{name!r} is no member of this ring", field="connection", value=name)
            self._unknown[connection] = name
            self._selector.unregister(connection.socket)
            return False
        connection.meet(name)
        connection.send(Hello(self._generation()))
        return True

    def _listen(self, connection: Connection, name: str) -> None:
        """Take in what somebody has said that had to wait."""
        self._meet(connection, name)
        self._take_in(connection)

    def _excuse_own_pause(self) -> None:
        """Time in which this process itself stood still is nobody's silence."""
        now = time.monotonic()
        pause, self._polled_at = now - self._polled_at, now
        if pause > self._options.heartbeat_timeout_seconds / 2:
            for connection in self._connections:
                connection.heard_at = now

    def _beat(self) -> None:
        """Give signs of life, and miss those of others."""
        now = time.monotonic()
        if now - self._beaten_at < self._options.heartbeat_seconds:
            return
        self._beaten_at = now
        for connection in list(self._connections):
            if connection in self._connections and not connection.is_connecting and connection.peer:
                self._send(connection, None)
        for connection in self._silent(now):
            if connection.peer:
                self._fence(connection.peer)
            self._lose(connection)

    def _silent(self, now: float) -> Iterator[Connection]:
        for connection in list(self._connections):
            if connection in self._connections and connection.is_silent(now):
                yield connection
