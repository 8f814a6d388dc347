"""The receiving side of a replication: shards from all neighbours at once, each stretch proven by its hash."""

import hashlib
import threading
from collections.abc import Callable, Mapping
from typing import Any

import torch

from kintsugi.core.overlay import Replication
from kintsugi.runtime.overlay.messages import Message
from kintsugi.runtime.overlay.ranges import ByteRange, Ranges, length, united, within, without
from kintsugi.runtime.overlay.shares import share_ranges
from kintsugi.runtime.overlay.sources import GONE, OPEN, SEAL, SHARD
from restorer.packing import PackedState

Ask = Callable[[str, Ranges], None]
"""Asks a source for ranges."""


class Arrival:
    """The state of one replication on its way. Threads of several links bring it."""

    def __init__(self, generation: int, on_change: Callable[[], None]) -> None:
        """Expect the replication of that generation; `on_change` is called when a source begins, and at the end, good or bad."""
        self.generation = generation
        self.number: int | None = None
        """Reductions that the state has seen; none before the first source told."""
        self.failure = ""
        """Why it cannot be completed."""
        self.opened: set[str] = set()
        """Sources that have begun to send."""
        self._packed: PackedState | None = None
        self._assigned: dict[str, Ranges] = {}
        self._proven: Ranges = ()
        self._running: dict[str, tuple[int, Any]] = {}
        self._proofs: dict[ByteRange, str] = {}
        self._on_change = on_change
        self._lock = threading.Lock()
        self.received_bytes = 0

    @property
    def is_complete(self) -> bool:
        """Whether every byte is here and proven."""
        packed = self._packed
        return packed is not None and length(self._proven) == packed.num_bytes

    @property
    def state(self) -> PackedState:
        """The complete state."""
        assert self._packed is not None
        return self._packed

    def proof(self) -> str:
        """SHA-256 over the sources' hashes in the order of the bytes that they cover."""
        found = hashlib.sha256()
        for stretch, seal in sorted(self._proofs.items()):
            found.update(f"{stretch[0]}-{stretch[1]}:{seal}\n".encode())
        return found.hexdigest()

    def take(self, worker: str, message: Message) -> None:
        """Take in what a source sent; what belongs to another replication is passed over."""
        if message.fields.get("replication") != self.generation:
            return
        with self._lock:
            _TAKES[message.kind](self, worker, message)
        if self.failure or self.is_complete or message.kind == OPEN:
            self._on_change()

    def reconcile(self, replication: Replication, ask: Ask) -> None:
        """Ask the sources that are left for what those that are lost have not sent."""
        with self._lock:
            asked = self._reassigned(replication)
        for source, ranges in asked.items():
            ask(source, ranges)

    def _reassigned(self, replication: Replication) -> dict[str, Ranges]:
        if self._packed is None:
            return {}
        num_bytes = self._packed.num_bytes
        planned = share_ranges(replication, num_bytes)
        self._assigned = {source: ranges for source, ranges in self._assigned.items() if source in planned}
        expected = united(*(self._assigned.get(source, ranges) for source, ranges in planned.items()))
        missing = without(((0, num_bytes),), united(self._proven, expected))
        asked: dict[str, Ranges] = {}
        for source, ranges in planned.items():
            share = within(missing, ranges)
            missing = without(missing, share)
            if share:
                asked[source] = share
        if missing:
            first = min(planned)
            asked[first] = united(asked.get(first, ()), missing)
        for source, ranges in asked.items():
            self._assigned[source] = united(self._assigned.get(source, ()), ranges)
        return asked

    def _open(self, worker: str, message: Message) -> None:
        header, number = str(message.fields["header"]).encode(), int(message.fields["round"])
        if self._packed is None:
            self._packed, self.number = PackedState.blank(header), number
        elif (self._packed.header, self.number) != (header, number):
            self.failure = f"{worker} holds another state than the other sources"
            return
        self.opened.add(worker)
        told = tuple((begin, end) for begin, end in message.fields["ranges"])
        self._assigned[worker] = united(self._assigned.get(worker, ()), told)

    def _shard(self, worker: str, message: Message) -> None:
        begin = int(message.fields["at"])
        if self._packed is None or begin + message.num_bytes > self._packed.num_bytes:
            self.failure = f"{worker} sends what does not belong to the state"
            return
        _, seal = self._running.setdefault(worker, (begin, hashlib.sha256()))
        seal.update(message.payload)
        self._packed.write(begin, torch.frombuffer(message.payload, dtype=torch.uint8))
        self.received_bytes += message.num_bytes

    def _seal(self, worker: str, message: Message) -> None:
        begin, end, told = int(message.fields["begin"]), int(message.fields["end"]), str(message.fields["sha256"])
        start, seal = self._running.pop(worker, (None, None))
        if seal is None or start != begin or seal.hexdigest() != told:
            self.failure = f"bytes {begin} to {end} from {worker} are not what it sent"
            return
        self._proofs[begin, end] = told
        self._proven = united(self._proven, ((begin, end),))

    def _gone(self, worker: str, _message: Message) -> None:
        self.failure = f"{worker} has let go of its copy"


_TAKES: Mapping[str, Callable[[Arrival, str, Message], None]] = {
    OPEN: Arrival._open,
    SHARD: Arrival._shard,
    SEAL: Arrival._seal,
    GONE: Arrival._gone,
}
