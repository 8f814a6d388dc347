"""All links of a worker: the socket at which neighbours call, the calls to others, and who hears what arrives."""

import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from kintsugi.core.errors import CommunicationError, ForbiddenError, InvalidInputError
from kintsugi.core.logs import get_logger
from kintsugi.runtime.overlay.greeting import Identity, dial, greet, welcome
from kintsugi.runtime.overlay.link import Limits, Link, Peer, prepare
from kintsugi.runtime.overlay.messages import Channel, Message
from kintsugi.runtime.overlay.options import OverlayOptions

_BACKLOG = 64
_PAUSE_SECONDS = 0.1
"""Between two attempts to answer while that cannot be done."""
_MOST_CALLERS = 256
"""That have not greeted yet, each with a thread and a descriptor: many more than the neighbours that call at the same time."""

Hears = Callable[[str, Message], None]
"""Takes the neighbour's name and its message, in the thread that read it: it must not block for long."""


class Links:
    """The links of one worker. Of several connections with one neighbour the newest counts, unless it is with an earlier life."""

    def __init__(self, identity: Identity, options: OverlayOptions, *, host: str, port: int = 0) -> None:
        """Listen at `host` and `port` (0: any that is free).

        Raises:
            InvalidInputError: this machine has no such address, or the port is taken.
        """
        self.identity, self._options = identity, options
        self._limits = Limits(window_bytes=options.window_bytes, timeout_seconds=options.link_timeout_seconds)
        self.generation = 0
        """The newest overlay that this worker knows; told in greetings."""
        self.on_up: Callable[[Link], None] = lambda _: None
        self.on_loss: Callable[[Link, str], None] = lambda _, __: None
        self._hears: dict[Channel, Hears] = {}
        self._links: dict[str, Link] = {}
        self._numbers: dict[str, int] = {}
        self._callers: dict[socket.socket, None] = {}
        """That have not greeted yet, in the order in which they called."""
        self._lock = threading.Lock()
        self._ended = threading.Condition()
        self._is_closed = False
        try:
            self._listener = socket.create_server((host, port), backlog=_BACKLOG)
        except (OSError, UnicodeError) as error:
            raise InvalidInputError(f"cannot listen there: {error}", field="address", value=f"{host}:{port}") from error
        self.port: int = self._listener.getsockname()[1]
        self._acceptor = threading.Thread(target=self._accept, name="overlay-accepts", daemon=True)

    def hear(self, channel: Channel, hears: Hears) -> None:
        """Have the messages of one channel taken by `hears`; before `start`."""
        self._hears[channel] = hears

    def start(self) -> None:
        """Answer those who call."""
        self._acceptor.start()

    def get(self, worker: str) -> Link | None:
        """The link with a neighbour, if it is up."""
        link = self._links.get(worker)
        return link if link is not None and link.is_up else None

    @property
    def up(self) -> tuple[str, ...]:
        """Neighbours whose links are up, in ascending order."""
        return tuple(sorted(worker for worker, link in list(self._links.items()) if link.is_up))

    def send(self, worker: str, message: Message) -> None:
        """Let a message to a neighbour wait for its turn.

        Raises:
            CommunicationError: there is no link with it any more.
        """
        link = self.get(worker)
        if link is None:
            raise CommunicationError("there is no link with it", field="worker", value=worker)
        link.send(message)

    def tell(self, worker: str, kind: str, fields: Mapping[str, Any]) -> bool:
        """Send something short and urgent; whether there was a link for it."""
        try:
            self.send(worker, Message(Channel.CONTROL, kind, fields))
        except CommunicationError:
            return False
        return True

    def acknowledge(self, worker: str, num_bytes: int) -> None:
        """So many bytes of reductions from a neighbour were taken, or are of no use any more."""
        link = self.get(worker)
        if link is not None and num_bytes:
            link.acknowledge(num_bytes)

    def connect(self, worker: str, address: str) -> Link:
        """Call a neighbour and exchange greetings.

        Raises:
            CommunicationError: it is not there, or somebody else is.
            ForbiddenError: it refused, or does not know the job's key.
        """
        number = self._numbers.get(worker, 0) + 1
        try:
            connection = dial(address, self._options.connect_timeout_seconds)
            try:
                peer = greet(connection, self.identity, worker, number=number, generation=self.generation, limits=self._limits)
                return self._take(connection, peer)
            except BaseException:
                connection.close()
                raise
        except (OSError, ValueError) as error:
            raise CommunicationError(f"cannot be reached at {address}: {error}", field="worker", value=worker) from error

    def disconnect(self, link: Link) -> None:
        """End a link on purpose, once the neighbour has all that it was sent; one that was replaced has ended."""
        self._remove(link, lambda: link.hang_up(self._options.link_timeout_seconds))

    def drop(self, is_stale: Callable[[Message], bool]) -> None:
        """Forget what waits to be sent of reductions that were called off."""
        for link in list(self._links.values()):
            link.drop(is_stale)

    def close(self) -> None:
        """End all links and stop listening."""
        with self._lock:
            self._is_closed = True
            for caller in self._callers:
                _hang_up(caller)
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        if self._acceptor.is_alive():
            self._acceptor.join(self._options.connect_timeout_seconds)
        for link in list(self._links.values()):
            self._remove(link, link.close)

    def _remove(self, link: Link, end: Callable[[], None]) -> None:
        with self._lock:
            is_known = self._links.get(link.peer.worker) is link
            if is_known:
                del self._links[link.peer.worker]
        if is_known:
            end()
        with self._ended:
            self._ended.notify_all()

    def _accept(self) -> None:
        """Until this end is closed: what keeps it from one caller (no descriptor, no thread) need not keep it from the next."""
        is_able = True
        while not self._is_closed:
            try:
                self._begin_answer(self._listener.accept()[0])
            except (OSError, RuntimeError) as error:
                if is_able and not self._is_closed:
                    get_logger("kintsugi.overlay").warning("cannot answer those who call", error=str(error))
                is_able = False
                time.sleep(_PAUSE_SECONDS)
                continue
            is_able = True

    def _begin_answer(self, connection: socket.socket) -> None:
        """Answer somebody who called in a thread of its own.

        Raises:
            RuntimeError: no thread can be started; it is hung up on.
        """
        self._admit(connection)
        try:
            threading.Thread(target=self._answer, args=(connection,), name="overlay-answers", daemon=True).start()
        except RuntimeError:
            self._forget(connection)
            raise

    def _forget(self, connection: socket.socket) -> None:
        with self._lock:
            self._callers.pop(connection, None)
        connection.close()

    def _admit(self, connection: socket.socket) -> None:
        """Count somebody who called; of too many the first is hung up on: neighbours greet at once, even while strangers call."""
        with self._lock:
            self._callers[connection] = None
            if self._is_closed:
                _hang_up(connection)
            elif len(self._callers) > _MOST_CALLERS:
                first = next(iter(self._callers))
                del self._callers[first]
                _hang_up(first)

    def _require_admitted(self, connection: socket.socket) -> None:
        """Count a caller that has greeted no longer.

        Raises:
            CommunicationError: it was hung up on before.
        """
        with self._lock:
            if connection not in self._callers:
                raise CommunicationError("too many others called before it had greeted", field="link")
            del self._callers[connection]

    def _answer(self, connection: socket.socket) -> None:
        """Exchange greetings with somebody who called; who does not greet properly is hung up on."""
        with suppress(OSError, CommunicationError, ForbiddenError):
            try:
                connection.settimeout(self._options.connect_timeout_seconds)
                peer = welcome(connection, self.identity, lambda worker: self._numbers.get(worker, 0), limits=self._limits)
                self._require_admitted(connection)
                self._take(connection, peer)
            except BaseException:
                self._forget(connection)
                raise

    def _take(self, connection: socket.socket, peer: Peer) -> Link:
        """Make a connection the link with a neighbour; an earlier one ends without a loss being told.

        Raises:
            CommunicationError: this end leaves, or has no threads; or there is a later link with the neighbour, or with a later
                life of it.
        """
        prepare(connection, self._options.link_timeout_seconds)
        link = Link(connection, peer, self._options, on_message=self._dispatch, on_loss=self._lose)
        with self._lock:
            if self._is_closed:
                raise CommunicationError("the worker leaves", field="link")
            before = self._links.get(peer.worker)
            if before is not None and before.is_up:
                _require_latest(before.peer, peer)
            self._links[peer.worker], self._numbers[peer.worker] = link, peer.number
        if before is not None:
            before.close()
        self._start(link)
        self.on_up(link)
        return link

    def _start(self, link: Link) -> None:
        """Let a link begin.

        Raises:
            CommunicationError: there are no threads for it; it is gone again, for it would carry nothing.
        """
        try:
            link.start()
        except RuntimeError as error:
            self._remove(link, link.close)
            raise CommunicationError(f"it gets no thread: {error}", field="worker", value=link.peer.worker) from error

    def _dispatch(self, link: Link, message: Message) -> None:
        hears = self._hears.get(message.channel)
        if hears is not None and self._links.get(link.peer.worker) is link:
            hears(link.peer.worker, message)

    def await_sent(self, timeout_seconds: float) -> None:
        """Wait until what waits on any link was sent, or so long."""
        deadline = time.monotonic() + timeout_seconds
        for link in list(self._links.values()):
            link.await_sent(max(deadline - time.monotonic(), 0.0))

    def await_none(self, timeout_seconds: float) -> bool:
        """Whether all links ended within the time: the neighbours hung up."""
        with self._ended:
            return self._ended.wait_for(lambda: not self.up, timeout_seconds)

    def _lose(self, link: Link, why: str) -> None:
        with self._ended:
            self._ended.notify_all()
        if self._links.get(link.peer.worker) is link and not self._is_closed:
            self.on_loss(link, why)


def _hang_up(caller: socket.socket) -> None:
    """End a greeting under way; its own thread closes the connection."""
    with suppress(OSError):
        caller.shutdown(socket.SHUT_RDWR)


def _require_latest(linked: Peer, peer: Peer) -> None:
    """Require that a connection is no earlier one than the link that is there: of two calls the later may be answered first.

    Raises:
        CommunicationError: it is an earlier one.
    """
    if linked.incarnation > peer.incarnation:
        raise CommunicationError("a later life of it is linked already", field="worker", value=peer.worker)
    if linked.incarnation == peer.incarnation and linked.number > peer.number:
        raise CommunicationError("it has called again since", field="worker", value=peer.worker)
