"""State on its way to this worker: kept when a migration is called off, so that the next one fetches only what is missing."""

import threading
from collections.abc import Collection
from dataclasses import dataclass, field

import torch
from torch import Tensor

from kintsugi.core.decision import StateKind
from kintsugi.core.errors import CommunicationError, ReconfigurationError
from restorer.packing import HOST, PackedState, StateEntries

StateKey = tuple[int, StateKind]
"""Layer and kind."""

ByteRange = tuple[int, int]
"""Half open."""

ArrivedState = dict[StateKey, StateEntries]
"""State that arrived."""


@dataclass(slots=True)
class _Arrival:
    packed: PackedState
    covered: list[ByteRange] = field(default_factory=list)
    """What has arrived; disjoint, ascending, neighbours merged."""

    def missing(self, begin: int, end: int) -> list[ByteRange]:
        gaps = []
        for start, stop in [*self.covered, (end, end)]:
            if begin < min(start, end):
                gaps.append((begin, min(start, end)))
            begin = max(begin, stop)
        return gaps

    def cover(self, begin: int, end: int) -> None:
        merged: list[ByteRange] = []
        for start, stop in sorted([*self.covered, (begin, end)]):
            if merged and start <= merged[-1][1]:
                merged[-1] = merged[-1][0], max(merged[-1][1], stop)
            else:
                merged.append((start, stop))
        self.covered = merged


class Staging:
    """What has arrived of the state of one version.

    A version is the number of steps that are committed. All holders of a layer hold the same bits after the same step, and a
    job that is mended never goes back behind a commit; so bytes of one version fit together, whichever holders and however
    many attempts they came from. Whoever goes back to a checkpoint must `clear`. State of another version is dropped.

    Streams of an attempt that is over may still be under way in threads left behind; what they bring is refused.
    """

    def __init__(self, device: torch.device = HOST) -> None:
        self.device = device
        """Where state lies, and is kept when it arrives; to and from CUDA devices it passes through pinned memory."""
        self._lock = threading.Lock()
        self._version: int | None = None
        self._turn = 0
        self._arrivals: dict[StateKey, _Arrival] = {}
        self.num_arrived_bytes = 0
        """Verified and taken in, over all attempts."""

    def begin(self, version: int, wanted: Collection[StateKey]) -> int:
        """Begin an attempt: keep what it wants of this version. Returns its turn, which its streams show."""
        with self._lock:
            kept = self._arrivals if version == self._version else {}
            self._arrivals = {key: arrival for key, arrival in kept.items() if key in wanted}
            self._version = version
            self._turn += 1
            return self._turn

    def clear(self) -> None:
        """Let go of everything: it was swapped in, or will not be."""
        with self._lock:
            self._arrivals, self._version = {}, None
            self._turn += 1

    def describe(self, turn: int, key: StateKey, header: bytes, source: str) -> int:
        """Note what a key's bytes belong to, and return how many there are.

        Raises:
            ReconfigurationError: another source said otherwise.
            CommunicationError: the attempt is over.
        """
        with self._lock:
            self._require(turn)
            arrival = self._arrivals.get(key)
            if arrival is None:
                arrival = self._arrivals[key] = _Arrival(PackedState.blank(header, self.device))
            elif arrival.packed.header != header:
                raise ReconfigurationError(
                    f"{key[1].value} state of layer {key[0]} is not the same on all its sources", field="transfer", value=source
                )
            return arrival.packed.num_bytes

    def missing(self, key: StateKey, begin: int, end: int) -> list[ByteRange]:
        """The parts of a range that have not arrived."""
        with self._lock:
            return self._arrivals[key].missing(begin, end)

    def take(self, turn: int, key: StateKey, begin: int, chunk: Tensor) -> None:
        """Take in verified bytes; a device takes them fastest from pinned memory. On return the chunk may be written again.

        Raises:
            CommunicationError: the attempt is over.
        """
        with self._lock:
            self._require(turn)
            arrival = self._arrivals[key]
            arrival.packed.write(begin, chunk)
            arrival.cover(begin, begin + len(chunk))
            self.num_arrived_bytes += len(chunk)

    def arrived(self) -> ArrivedState:
        """Everything that was wanted.

        Raises:
            CommunicationError: some of it has not arrived.
        """
        with self._lock:
            for (layer, kind), arrival in self._arrivals.items():
                if gaps := arrival.missing(0, arrival.packed.num_bytes):
                    raise CommunicationError(f"{kind.value} state of layer {layer} lacks bytes {gaps[0][0]} to {gaps[0][1]}")
            return {key: arrival.packed.entries for key, arrival in self._arrivals.items()}

    def _require(self, turn: int) -> None:
        if turn != self._turn:
            raise CommunicationError("the transfer was called off")
