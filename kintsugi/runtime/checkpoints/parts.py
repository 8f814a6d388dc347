"""Which checkpoints are being written: one is whole once every writer of its attempt has told its part."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from kintsugi.runtime.messages import PartWritten

Key = tuple[int, int]
"""Attempt and step of a checkpoint."""

Writing = Mapping[str, Collection[Key]]
"""By worker, which checkpoints it was writing a part of when it was asked."""


@dataclass(slots=True)
class _Pending:
    """A checkpoint of which parts are being written."""

    expected: frozenset[str]
    parts: dict[str, PartWritten] = field(default_factory=dict)

    @property
    def missing(self) -> frozenset[str]:
        """Whose parts are not there yet."""
        return self.expected - self.parts.keys()


class Parts:
    """What is known of a job's checkpoints until they are whole, or never will be."""

    def __init__(self) -> None:
        self._writers: dict[int, frozenset[str]] = {}
        self._lost: dict[int, set[str]] = {}
        """By attempt, who of its writers writes no more."""
        self._pending: dict[Key, _Pending] = {}
        self._over: set[Key] = set()
        """Those that are whole, or never will be."""

    @property
    def pending(self) -> list[Key]:
        """Those that have parts, and may become whole."""
        return list(self._pending)

    def expect(self, attempt: int, workers: Collection[str]) -> None:
        """An attempt trains: who writes its checkpoints."""
        self._writers[attempt] = frozenset(workers)

    def is_over(self, key: Key) -> bool:
        """Whether nothing is waited for any more."""
        return key in self._over

    def add(self, worker: str, message: PartWritten) -> bool:
        """A part is there; whether its checkpoint may become whole by it."""
        key = (message.attempt, message.step)
        if message.attempt not in self._writers or key in self._over:
            return False
        pending = self._pending.setdefault(key, _Pending(self._writers[message.attempt]))
        pending.parts[worker] = message
        return pending.missing.isdisjoint(self._lost.get(message.attempt, ()))

    def take(self, key: Key) -> Mapping[str, PartWritten] | None:
        """All parts of a checkpoint that is whole, by their writers, once; null of one that is not."""
        if key not in self._pending or self._pending[key].missing:
            return None
        parts = self._pending[key].parts
        self.give_up(key)
        return parts

    def give_up(self, key: Key) -> None:
        """Wait for nothing more of it."""
        self._over.add(key)
        self._pending.pop(key, None)

    def lost(self, worker: str) -> list[Key]:
        """A worker's parts that are not there will never be; of which checkpoints."""
        for attempt, expected in self._writers.items():
            if worker in expected:
                self._lost.setdefault(attempt, set()).add(worker)
        return [key for key, pending in self._pending.items() if worker in pending.missing]

    def distrusted(self, step: int) -> list[Key]:
        """None of this step is to become whole; which have parts."""
        self._over.update((attempt, step) for attempt in self._writers)
        return [key for key in self._pending if key[1] == step]

    def forget(self) -> list[Key]:
        """Nobody writes any more of what was expected; which have parts."""
        self._writers.clear()
        self._lost.clear()
        return self.pending

    def is_hopeful(self, writing: Writing) -> bool:
        """Whether any is about to become whole: every part is there or being written."""
        keys = {key for keys in writing.values() for key in keys} | self._pending.keys()
        return any(self._can_become_whole(key, writing) for key in keys)

    def hopeless(self, writing: Writing) -> list[Key]:
        """Those that have parts and lack one that nobody writes."""
        return [key for key in self._pending if not self._can_become_whole(key, writing)]

    def _can_become_whole(self, key: Key, writing: Writing) -> bool:
        if key in self._over or key[0] not in self._writers:
            return False
        written = self._pending[key].parts.keys() if key in self._pending else set[str]()
        return all(worker in written or key in writing.get(worker, ()) for worker in self._writers[key[0]])
