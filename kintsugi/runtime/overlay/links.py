"""All links of a worker: the socket at which neighbours call, the calls to others, and who hears what arrives."""

import hashlib
import hmac
import secrets
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from kintsugi.core.errors import CommunicationError, ForbiddenError, InvalidInputError
from kintsugi.runtime.overlay.link import Link, Peer, prepare
from kintsugi.runtime.overlay.messages import Channel, Message, read, write
from kintsugi.runtime.overlay.options import OverlayOptions

_BACKLOG = 64
_HELLO, _WELCOME, _REFUSED, _PROOF = "hello", "welcome", "refused", "proof"

Hears = Callable[[str, Message], None]
"""Takes the neighbour's name and its message, in the thread that read it: it must not block for long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """As whom a worker greets its neighbours."""

    job: str
    worker: str
    incarnation: int = 0
    key: bytes = b""
    """Shared by the job's workers: both ends of a connection prove that they know it."""


class Links:
    """The links of one worker. Of several connections with one neighbour the newest counts."""

    def __init__(self, identity: Identity, options: OverlayOptions, *, host: str, port: int = 0) -> None:
        """Listen at `host` and `port` (0: any that is free).

        Raises:
            InvalidInputError: this machine has no such address, or the port is taken.
        """
        self.identity, self._options = identity, options
        self.generation = 0
        """The newest overlay that this worker knows; told in greetings."""
        self.on_up: Callable[[Link], None] = lambda _: None
        self.on_loss: Callable[[Link, str], None] = lambda _, __: None
        self._hears: dict[Channel, Hears] = {}
        self._links: dict[str, Link] = {}
        self._numbers: dict[str, int] = {}
        self._lock = threading.Lock()
        self._ended = threading.Condition()
        self._is_closed = False
        try:
            self._listener = socket.create_server((host, port), backlog=_BACKLOG)
        except OSError as error:
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
        host, _, port = address.rpartition(":")
        timeout = self._options.connect_timeout_seconds
        try:
            connection = socket.create_connection((host.strip("[]"), int(port)), timeout)
            try:
                link = self._greet(connection, worker)
            except BaseException:
                connection.close()
                raise
        except (OSError, ValueError) as error:
            raise CommunicationError(f"cannot be reached at {address}: {error}", field="worker", value=worker) from error
        return link

    def disconnect(self, worker: str) -> None:
        """End the link with a neighbour on purpose."""
        with self._lock:
            link = self._links.pop(worker, None)
        if link is not None:
            link.close()
        with self._ended:
            self._ended.notify_all()

    def drop(self, is_stale: Callable[[Message], bool]) -> None:
        """Forget what waits to be sent of reductions that were called off."""
        for link in list(self._links.values()):
            link.drop(is_stale)

    def close(self) -> None:
        """End all links and stop listening."""
        with self._lock:
            self._is_closed = True
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        if self._acceptor.is_alive():
            self._acceptor.join(self._options.connect_timeout_seconds)
        for worker in list(self._links):
            self.disconnect(worker)

    def _accept(self) -> None:
        while not self._is_closed:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), name="overlay-answers", daemon=True).start()

    def _greet(self, connection: socket.socket, worker: str) -> Link:
        connection.settimeout(self._options.connect_timeout_seconds)
        mine, number = secrets.token_hex(16), self._numbers.get(worker, 0) + 1
        own = self.identity
        hello = {
            "job": own.job,
            "worker": own.worker,
            "incarnation": own.incarnation,
            "to": worker,
            "number": number,
            "generation": self.generation,
            "nonce": mine,
        }
        write(connection, Message(Channel.CONTROL, _HELLO, hello))
        answer = read(connection)
        if answer.kind != _WELCOME:
            raise ForbiddenError(f"refused: {answer.fields.get('why', answer.kind)}", field="worker", value=worker)
        if not hmac.compare_digest(str(answer.fields["proof"]), self._proof(mine, worker)):
            raise ForbiddenError("does not know the job's key", field="worker", value=worker)
        proof = self._proof(str(answer.fields["nonce"]), own.worker)
        write(connection, Message(Channel.CONTROL, _PROOF, {"proof": proof}))
        peer = Peer(
            worker=worker,
            incarnation=int(answer.fields["incarnation"]),
            number=int(answer.fields["number"]),
            generation=self.generation,
        )
        return self._take(connection, peer)

    def _answer(self, connection: socket.socket) -> None:
        """Exchange greetings with somebody who called; who does not greet properly is hung up on."""
        try:
            connection.settimeout(self._options.connect_timeout_seconds)
            hello = read(connection)
            why = self._objection(hello)
            if why:
                write(connection, Message(Channel.CONTROL, _REFUSED, {"why": why}))
                raise ForbiddenError(why, field="link")
            self._take(connection, self._welcome(connection, hello.fields))
        except (OSError, CommunicationError, ForbiddenError, KeyError, ValueError, TypeError):
            connection.close()

    def _objection(self, hello: Message) -> str:
        own = self.identity
        if hello.kind != _HELLO or hello.fields.get("job") != own.job:
            return f"this is job {own.job}"
        return "" if hello.fields.get("to") == own.worker else f"this is worker {own.worker}"

    def _welcome(self, connection: socket.socket, hello: Mapping[str, Any]) -> Peer:
        worker, mine = str(hello["worker"]), secrets.token_hex(16)
        number = max(int(hello["number"]), self._numbers.get(worker, 0) + 1)
        own = self.identity
        welcome = {
            "incarnation": own.incarnation,
            "number": number,
            "nonce": mine,
            "proof": self._proof(str(hello["nonce"]), own.worker),
        }
        write(connection, Message(Channel.CONTROL, _WELCOME, welcome))
        proof = read(connection)
        if proof.kind != _PROOF or not hmac.compare_digest(str(proof.fields["proof"]), self._proof(mine, worker)):
            raise ForbiddenError("does not know the job's key", field="worker", value=worker)
        return Peer(worker=worker, incarnation=int(hello["incarnation"]), number=number, generation=int(hello["generation"]))

    def _proof(self, nonce: str, prover: str) -> str:
        return hmac.new(self.identity.key, f"{self.identity.job}/{prover}/{nonce}".encode(), hashlib.sha256).hexdigest()

    def _take(self, connection: socket.socket, peer: Peer) -> Link:
        """Make a connection the link with a neighbour; an earlier one ends without a loss being told."""
        prepare(connection, self._options.link_timeout_seconds)
        link = Link(connection, peer, self._options, on_message=self._dispatch, on_loss=self._lose)
        with self._lock:
            if self._is_closed:
                raise CommunicationError("the worker leaves", field="link")
            before = self._links.get(peer.worker)
            self._links[peer.worker], self._numbers[peer.worker] = link, peer.number
        if before is not None:
            before.close()
        link.start()
        self.on_up(link)
        return link

    def _dispatch(self, link: Link, message: Message) -> None:
        hears = self._hears.get(message.channel)
        if hears is not None and self._links.get(link.peer.worker) is link:
            hears(link.peer.worker, message)

    def await_none(self, timeout_seconds: float) -> bool:
        """Whether all links ended within the time: the neighbours hung up."""
        with self._ended:
            return self._ended.wait_for(lambda: not self.up, timeout_seconds)

    def _lose(self, link: Link, why: str) -> None:
        with self._ended:
            self._ended.notify_all()
        if self._links.get(link.peer.worker) is link and not self._is_closed:
            self.on_loss(link, why)
