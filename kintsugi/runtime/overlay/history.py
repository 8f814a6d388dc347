"""The last reductions of a source, kept for those that fetch its state: each goes on from the step of its copy.

Bounded by bytes. What somebody is being told is not forgotten before: the training waits once the bound is reached. A worker that
is slower than that would hold the others up as a member, too, and without a wait it would never catch up.
"""

import threading
from dataclasses import dataclass

from kintsugi.core.errors import CommunicationError
from kintsugi.runtime.overlay.committed import Committed, Sum

Key = tuple[str, int]
"""Joining worker and the generation of its replication."""


@dataclass(slots=True)
class _Follower:
    """How far one joining worker was told."""

    number: int
    is_told: bool
    """Whether this source is the one that tells it; others only keep what it might ask for."""


class History:
    """Reductions in order, without gaps. Put by the thread that trains, taken by those that send."""

    def __init__(self, max_bytes: int, patience_seconds: float) -> None:
        """Keep about `max_bytes`; a follower that is being told may hold the training up for `patience_seconds` at a time."""
        self._max_bytes, self._patience_seconds = max_bytes, patience_seconds
        self._kept: dict[int, Committed] = {}
        self._attempts: dict[int, int] = {}
        self._num_bytes = 0
        self._followers: dict[Key, _Follower] = {}
        self._changed = threading.Condition()

    @property
    def followers(self) -> tuple[Key, ...]:
        """For whom something is kept."""
        with self._changed:
            return tuple(self._followers)

    @property
    def num_bytes(self) -> int:
        """Of all that is kept."""
        return self._num_bytes

    def follow(self, key: Key, after: Sum, *, is_told: bool) -> None:
        """Keep what comes behind reduction `after`; `is_told` where it will ask this source first."""
        with self._changed:
            self._followers[key] = _Follower(after.number, is_told)
            self._attempts[after.number] = after.attempt

    def spare(self, key: Key) -> None:
        """It is told by another source: nothing waits for it here, unless it asks after all."""
        with self._changed:
            follower = self._followers.get(key)
            if follower is not None:
                follower.is_told = False
                self._changed.notify_all()

    def leave(self, key: Key) -> None:
        """Keep nothing for it any more."""
        with self._changed:
            self._followers.pop(key, None)
            self._forget_unneeded()
            self._changed.notify_all()

    def add(self, committed: Committed) -> None:
        """Keep a reduction if somebody follows; waits for room as long as somebody is being told."""
        with self._changed:
            if not self._followers:
                return
            num_bytes = _num_bytes(committed)
            self._changed.wait_for(lambda: self._has_room(num_bytes), self._patience_seconds)
            while self._kept and self._num_bytes + num_bytes > self._max_bytes:
                self._forget_first()
            self._kept[committed.number] = committed
            self._wait_no_more()
            self._attempts[committed.number] = committed.which.attempt
            self._num_bytes += num_bytes
            self._changed.notify_all()

    def next(self, key: Key, after: Sum, timeout_seconds: float) -> Committed | None:
        """What comes behind reduction `after`; None where nothing came in time.

        Raises:
            CommunicationError: it is not kept any more, nothing is kept for this follower, or it has another sum than this source.
        """
        with self._changed:
            follower = self._followers.get(key)
            if follower is None:
                raise CommunicationError("nothing is kept for it", field="worker", value=key[0])
            number = after.number
            follower.number, follower.is_told = number, True
            self._forget_unneeded()
            self._changed.notify_all()
            self._changed.wait_for(lambda: key not in self._followers or number < max(self._kept, default=number), timeout_seconds)
            if self._attempts.get(number, after.attempt) != after.attempt:
                raise CommunicationError(f"reduction {number} was summed again since", field="worker", value=key[0])
            if key in self._followers and number >= max(self._kept, default=number):
                return None
            if number + 1 not in self._kept:
                raise CommunicationError(f"reduction {number + 1} is not kept any more", field="worker", value=key[0])
            return self._kept[number + 1]

    def _has_room(self, num_bytes: int) -> bool:
        """Whether a reduction fits in, or only those stand in its way that nobody is being told."""
        first = min((one.number for one in self._followers.values() if one.is_told), default=None)
        needed = sum(_num_bytes(one) for number, one in self._kept.items() if first is not None and number > first)
        return not needed or needed + num_bytes <= self._max_bytes

    def _wait_no_more(self) -> None:
        """For those whose next reduction was forgotten: they cannot go on from here, however long they are waited for."""
        first = min(self._kept)
        for follower in self._followers.values():
            follower.is_told = follower.is_told and follower.number + 1 >= first

    def _forget_unneeded(self) -> None:
        first = min((one.number for one in self._followers.values()), default=None)
        while self._kept and (first is None or min(self._kept) <= first):
            self._forget_first()
        for number in [one for one in self._attempts if first is None or one < first]:
            del self._attempts[number]

    def _forget_first(self) -> None:
        self._num_bytes -= _num_bytes(self._kept.pop(min(self._kept)))


def _num_bytes(committed: Committed) -> int:
    return 0 if committed.vector is None else committed.vector.nbytes
