"""Rings of members in this process, that talk over loopback and can be struck."""

import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from kintsugi.core.errors import UnavailableError
from kintsugi.runtime.ring.callbacks import Callbacks
from kintsugi.runtime.ring.lease import Lease
from kintsugi.runtime.ring.links import listener
from kintsugi.runtime.ring.messages import Agreement, Joiner
from kintsugi.runtime.ring.node import RingNode
from kintsugi.runtime.ring.options import RingOptions
from kintsugi.runtime.ring.signals import Lost, Missed, Received

PATIENCE = RingOptions(heartbeat_seconds=0.05, heartbeat_timeout_seconds=1.0, start_timeout_seconds=30.0, retry_seconds=0.05)
WAIT_SECONDS = 60.0


class MemoryLease:
    """A lease in this process; may be switched off."""

    def __init__(self) -> None:
        self.agreements: dict[int, Agreement] = {}
        self.is_away = False
        self._lock = threading.Lock()

    def decide(self, agreement: Agreement) -> Agreement:
        if self.is_away:
            raise UnavailableError("is away", field="lease")
        with self._lock:
            return self.agreements.setdefault(agreement.generation, agreement)

    def held(self, generation: int) -> Agreement | None:
        if self.is_away:
            raise UnavailableError("is away", field="lease")
        with self._lock:
            latest = max(self.agreements, default=-1)
            return self.agreements[latest] if latest >= generation else None


@dataclass
class Heard:
    """What one member was told."""

    agreements: list[Agreement] = field(default_factory=list)
    left_out: list[Agreement] = field(default_factory=list)
    stopped: list[int] = field(default_factory=list)
    frozen: list[str] = field(default_factory=list)
    failed: list[Exception] = field(default_factory=list)


class Ring:
    """Members `a`, `b`, ... in one process. Use it as a context manager."""

    def __init__(self, size: int, *, options: RingOptions = PATIENCE, lease: Lease | None = None) -> None:
        self.names = tuple("abcdefghijklmnopqrstuvwxyz"[:size])
        self.lease: Any = lease or MemoryLease()
        self.heard = {name: Heard() for name in self.names}
        listening = {name: listener("127.0.0.1") for name in self.names}
        addresses = {name: found.getsockname()[:2] for name, found in listening.items()}
        self.nodes = {
            name: RingNode(
                name,
                Agreement(0, self.names),
                listening[name],
                addresses,
                self._callbacks(name),
                lease=self.lease,
                committed_step=0,
                options=options,
            )
            for name in self.names
        }

        self._addresses = addresses
        self._options = options
        self._nowhere = listener("127.0.0.1")
        self._deaf = socket.create_server(("127.0.0.1", 0), backlog=0)
        self._ignored: list[socket.socket] = []
        self._moves = {name: threading.Event() for name in self.names}
        self._stands = {name: threading.Event() for name in self.names}
        for name in self.names:
            self._moves[name].set()
            self._held_up(name)

    def _callbacks(self, name: str) -> Callbacks:
        heard = self.heard[name]
        return Callbacks(
            on_agreement=heard.agreements.append,
            on_left_out=heard.left_out.append,
            on_stop=heard.stopped.append,
            on_frozen=heard.frozen.append,
            on_failed=heard.failed.append,
            choose=lambda agreement: "+".join(agreement.members),
        )

    def freeze(self, name: str) -> None:
        """Its thread stands still until `thaw`; its sockets stay."""
        self._moves[name].clear()

    def hold(self, name: str) -> None:
        """The same, and it stands already."""
        self._stands[name].clear()
        self.freeze(name)
        self.nodes[name]._links.wake()
        assert self._stands[name].wait(WAIT_SECONDS)

    def lose_under_way(self, sender: str, receiver: str, wanted: bytes) -> None:
        """What has been sent over one of two connections, to a member that stands still, goes with that connection."""
        ours = self.nodes[sender]._links._to(receiver).socket
        among = self.nodes[receiver]._links._connections
        theirs = next(one.socket for one in among if one.socket.getpeername() == ours.getsockname())
        lost = b""

        def is_lost() -> bool:
            nonlocal lost
            with suppress(BlockingIOError):
                lost += theirs.recv(1 << 16)
            return wanted in lost

        self.wait(is_lost)
        for end in (ours, theirs):
            end.shutdown(socket.SHUT_RDWR)

    def thaw(self, name: str) -> None:
        self._moves[name].set()

    def cut(self, one: str, other: str) -> None:
        """What is between two members breaks, and what they try to open anew leads nowhere, without a refusal."""
        for name, peer in ((one, other), (other, one)):
            links = self.nodes[name]._links
            links._addresses[peer] = self._nowhere.getsockname()[:2]
            for connection in list(links._connections):
                if connection.peer == peer:
                    with suppress(OSError):
                        connection.socket.shutdown(socket.SHUT_RDWR)

    def hide(self, one: str, other: str) -> None:
        """Before the ring starts: nothing that one of them opens to the other one is answered, not even refused."""
        for _ in range(3):  # more than its queue holds: any further attempt is passed over
            self._ignored.append(socket.socket())
            self._ignored[-1].setblocking(False)
            self._ignored[-1].connect_ex(self._deaf.getsockname())
        for name, peer in ((one, other), (other, one)):
            self.nodes[name]._links._addresses[peer] = self._deaf.getsockname()[:2]

    def _held_up(self, name: str) -> None:
        links, moves, stands = self.nodes[name]._links, self._moves[name], self._stands[name]
        poll = links.poll

        def paused_poll(timeout_seconds: float) -> list[Lost | Missed | Received]:
            if not moves.is_set():
                stands.set()
            moves.wait(WAIT_SECONDS)
            return poll(timeout_seconds)

        links.poll = paused_poll  # type: ignore[method-assign]

    def __enter__(self) -> "Ring":
        for node in self.nodes.values():
            node.start()
        return self

    def __exit__(self, *_: object) -> None:
        for name, node in self.nodes.items():
            self.thaw(name)
            node.close()
        for end in (self._nowhere, self._deaf, *self._ignored):
            end.close()

    def join(self, name: str, *asked: str) -> None:
        """A worker that is new, or comes back, asks members to take it in, and begins once it is told that they did."""
        listening = listener("127.0.0.1")
        self._addresses[name] = listening.getsockname()[:2]
        for member in asked:
            self.nodes[member].admit(Joiner(name, self._addresses[name], "new"))
        self.wait(lambda: any(name in self.nodes[member].agreement.members for member in asked))
        agreement = next(self.nodes[member].agreement for member in asked if name in self.nodes[member].agreement.members)
        self.heard[name] = Heard()
        self.nodes[name] = RingNode(
            name,
            agreement,
            listening,
            self._addresses,
            self._callbacks(name),
            lease=self.lease,
            committed_step=agreement.committed_step,
            options=self._options,
        )
        self._moves[name] = threading.Event()
        self.thaw(name)
        self.nodes[name].start()

    def connect(self) -> None:
        """Until neighbours have heard each other: before, they bear with silence for longer."""
        neighbours = [*zip(self.names, (*self.names[1:], self.names[0]), strict=True)]
        both = [*neighbours, *((other, name) for name, other in neighbours)]
        self.wait(lambda: all(self.nodes[name]._links.hears(other) for name, other in both))

    def kill(self, *names: str) -> None:
        for name in names:
            self.thaw(name)
            self.nodes[name].close()

    def wait(self, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while not holds():
            assert time.monotonic() < deadline, self.heard
            time.sleep(0.002)

    def wait_for(self, members: Sequence[str]) -> None:
        """Until these are the members of the generation that each of them is in."""
        self.wait(lambda: all(self.nodes[name].agreement.members == tuple(members) for name in members))
