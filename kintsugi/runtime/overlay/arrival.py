"""The receiving side of a replication: shards from all neighbours at once, each stretch proven by its hash."""

import hashlib
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch
import xxhash

from kintsugi.core.overlay import Replication
from kintsugi.runtime.overlay import balance
from kintsugi.runtime.overlay.balance import Pace
from kintsugi.runtime.overlay.committed import Sum
from kintsugi.runtime.overlay.messages import Message
from kintsugi.runtime.overlay.ranges import ByteRange, Ranges, length, ranges_of, tail, united, within, without
from kintsugi.runtime.overlay.shares import share_ranges
from kintsugi.runtime.overlay.sources import GONE, OPEN, SEAL, SHARD
from restorer.packing import PackedState

Ask = Callable[[str, Ranges], None]
"""Asks a source for ranges, or not to send them."""


class Seal(Protocol):
    """A hash under way."""

    def update(self, data: memoryview, /) -> None:
        """Go on with these bytes."""

    def hexdigest(self) -> str:
        """Of all bytes so far."""


@dataclass(slots=True)
class _Stretch:
    """What a source has sent since its last seal."""

    begin: int
    end: int
    seal: Seal = field(default_factory=xxhash.xxh3_128)


class Arrival:
    """The state of one replication on its way. Threads of several links bring it."""

    def __init__(self, generation: int, on_change: Callable[[], None]) -> None:
        """Expect the replication of that generation; `on_change` is called when a source begins, and at the end, good or bad."""
        self.generation = generation
        self.at: Sum | None = None
        """The last reduction that the state has seen; none before the first source told."""
        self.failure = ""
        """Why it cannot be completed."""
        self.refusal = ""
        """Why no replication of this state could be."""
        self.opened: set[str] = set()
        """Sources that have begun to send."""
        self._packed: PackedState | None = None
        self._assigned: dict[str, Ranges] = {}
        self._proven: Ranges = ()
        self._running: dict[str, _Stretch] = {}
        self._paces: dict[str, Pace] = {}
        self._proofs: dict[ByteRange, str] = {}
        self._on_change = on_change
        self._lock = threading.Lock()
        self._num_writing = 0
        self._is_over = False
        self.received_bytes = 0

    @property
    def _is_complete(self) -> bool:
        """Whether every byte is here and proven, and none is being written."""
        packed, is_written = self._packed, self._num_writing or self._running
        return packed is not None and not is_written and length(self._proven) == packed.num_bytes

    def finish(self) -> PackedState | None:
        """The state once it is complete; None before.

        It becomes the training's own, tensors and all: what comes of it later, asked of two sources, is passed over.
        """
        with self._lock:
            self._is_over = self._is_complete
            return self._packed if self._is_over else None

    def proof(self) -> str:
        """SHA-256 over the sources' hashes in the order of the bytes that they cover."""
        found = hashlib.sha256()
        for stretch, seal in sorted(self._proofs.items()):
            found.update(f"{stretch[0]}-{stretch[1]}:{seal}\n".encode())
        return found.hexdigest()

    def take(self, worker: str, message: Message) -> None:
        """Take in what a source sent; what belongs to another replication is passed over."""
        if self._is_over or message.fields.get("replication") != self.generation:
            return
        is_news = _TAKES[message.kind](self, worker, message)
        if is_news or self.failure or self._is_complete:
            self._on_change()

    def reconcile(self, replication: Replication, ask: Ask, release: Ask) -> None:
        """Ask the sources that are left for what those that are lost have not sent, and who is early for what is late elsewhere."""
        with self._lock:
            asked = self._reassigned(replication)
            released = self._moved(asked)
        for source, ranges in released.items():
            release(source, ranges)
        for source, ranges in asked.items():
            ask(source, ranges)

    def _reassigned(self, replication: Replication) -> dict[str, Ranges]:
        if self._packed is None:
            return {}
        num_bytes = self._packed.num_bytes
        planned = share_ranges(replication, num_bytes)
        self._forget_all_but(planned)
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
            self._assign(source, ranges)
        return asked

    def _forget_all_but(self, sources: Mapping[str, Ranges]) -> None:
        self.opened &= sources.keys()
        for known in (self._assigned, self._paces, self._running):
            for lost in known.keys() - sources.keys():
                del known[lost]

    def _assign(self, source: str, ranges: Ranges) -> None:
        self._assigned[source] = united(self._assigned.get(source, ()), ranges)
        self._paces.setdefault(source, Pace()).assign(length(ranges))

    def _moved(self, asked: dict[str, Ranges]) -> dict[str, Ranges]:
        """What a slow source need not send any more; that another one sends it is put into `asked`."""
        for source, pace in self._paces.items():
            pace.left_bytes = length(self._missing_from(source))
        found = balance.move({source: pace for source, pace in self._paces.items() if source in self.opened}, time.monotonic())
        if found is None:
            return {}
        ranges = tail(self._missing_from(found.giver), found.num_bytes)
        self._assigned[found.giver] = without(self._assigned[found.giver], ranges)
        self._paces[found.giver].left_bytes -= length(ranges)
        self._assign(found.taker, ranges)
        asked[found.taker] = united(asked.get(found.taker, ()), ranges)
        return {found.giver: ranges}

    def _missing_from(self, source: str) -> Ranges:
        stretch = self._running.get(source)
        running = () if stretch is None else ((stretch.begin, stretch.end),)
        return without(self._assigned.get(source, ()), united(self._proven, running))

    def _open(self, worker: str, message: Message) -> bool:
        header, at = str(message.fields["header"]).encode(), Sum(int(message.fields["round"]), int(message.fields["attempt"]))
        with self._lock:
            if self._packed is None:
                self._packed, self.at = PackedState.blank(header), at
            elif (self._packed.header, self.at) != (header, at):
                self.failure = f"{worker} holds another state than the other sources"
                return True
            self.opened.add(worker)
            self._assign(worker, without(ranges_of(message.fields), self._assigned.get(worker, ())))
            self._paces[worker].is_whole = bool(message.fields.get("is_whole"))
        return True

    def _shard(self, worker: str, message: Message) -> bool:
        """Hashed and written by the link's own thread: those of other links do not wait for it."""
        begin, end = int(message.fields["at"]), int(message.fields["at"]) + message.num_bytes
        packed = self._packed
        if packed is None or begin < 0 or end > packed.num_bytes:
            self.failure = f"{worker} sends what does not belong to the state"
            return True
        with self._lock:
            if self._is_over or worker not in self.opened:  # complete without it, or lost meanwhile and replaced
                return False
            stretch = self._running.setdefault(worker, _Stretch(begin, begin))
            if begin != stretch.end:  # what is between them would count as proven
                self.failure = f"{worker} sends bytes from {begin} on behind those to {stretch.end}"
                return True
            self._num_writing += 1
        try:
            stretch.seal.update(message.payload)
            packed.write(begin, torch.frombuffer(message.payload, dtype=torch.uint8))
            return self._counted(worker, stretch, end, message.num_bytes)
        finally:
            with self._lock:
                self._num_writing -= 1

    def _counted(self, worker: str, stretch: _Stretch, end: int, num_bytes: int) -> bool:
        """Count a shard that was written; whether its source begins to be nearly through. One lost meanwhile counts no more."""
        with self._lock:
            if worker not in self.opened:
                return False
            stretch.end = end
            self.received_bytes += num_bytes
            pace, now = self._paces[worker], time.monotonic()
            was_busy = not pace.is_nearly_through(now)
            pace.count(num_bytes, now)
            return was_busy and pace.is_nearly_through(now)

    def _seal(self, worker: str, message: Message) -> bool:
        begin, end, told = int(message.fields["begin"]), int(message.fields["end"]), str(message.fields["xxh3"])
        with self._lock:
            if self._is_over or worker not in self.opened:
                return False
            stretch = self._running.pop(worker, None)
            if stretch is None or (stretch.begin, stretch.end) != (begin, end) or stretch.seal.hexdigest() != told:
                self.failure = f"bytes {begin} to {end} from {worker} are not what it sent"
                return True
            self._proofs[begin, end] = told
            self._proven = united(self._proven, ((begin, end),))
        return False

    def _gone(self, worker: str, message: Message) -> bool:
        why = message.fields.get("why")
        if why:
            self.refusal = f"{worker} cannot send its state: {why}"
        self.failure = f"{worker} has let go of its copy"
        return True


_TAKES: Mapping[str, Callable[[Arrival, str, Message], bool]] = {
    OPEN: Arrival._open,
    SHARD: Arrival._shard,
    SEAL: Arrival._seal,
    GONE: Arrival._gone,
}
