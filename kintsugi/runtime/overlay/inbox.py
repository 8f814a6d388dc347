"""What arrived of reductions: by attempt, round and phase; what is over is dropped, what is to come waits."""

import threading
from collections import deque
from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple

from kintsugi.core.errors import CommunicationError, UnavailableError
from kintsugi.runtime.overlay.messages import Message
from kintsugi.runtime.presence import await_changed


class Phase(IntEnum):
    """What a pass over the links is for; within an attempt they come in this order."""

    SETTLE = 0
    """Who has committed what?"""
    FORWARD = 1
    """Those that missed the last committed gradient get it."""
    REDUCE = 2


class Pass(NamedTuple):
    """One pass over the links: all messages of it carry these numbers. Later passes compare greater."""

    restarts: int
    """The overlay's, which counts the attempts."""
    phase: Phase
    round: int
    """Reductions of the job so far; 0 where it is not known yet."""

    def stamp(self) -> list[int]:
        """As it travels."""
        return [self.restarts, int(self.phase), self.round]


class CalledOffError(CommunicationError):
    """The overlay restarts its reductions, or the worker was closed: a pass that waits must end."""


def pass_of(message: Message) -> Pass:
    """The pass that a message belongs to."""
    restarts, phase, number = message.fields["pass"]
    return Pass(restarts, Phase(phase), number)


class Inbox:
    """Messages of the reduction channel, put by the links' threads and taken by whoever reduces."""

    def __init__(self, on_taken: Callable[[str, int], None]) -> None:
        """`on_taken` is told whose bytes were taken or dropped: no more than a window of them waits here for each neighbour."""
        self._on_taken = on_taken
        self._arrived: dict[Pass, deque[tuple[str, Message]]] = {}
        self._changed = threading.Condition()
        self._now = Pass(0, Phase.SETTLE, 0)
        self._restarts = 0
        self._is_closed = False

    def put(self, worker: str, message: Message) -> None:
        """Keep a message unless its pass is over."""
        key = pass_of(message)
        with self._changed:
            if key >= self._now:
                self._arrived.setdefault(key, deque()).append((worker, message))
                self._changed.notify_all()
                return
        self._on_taken(worker, message.num_bytes)

    def take(self, key: Pass, timeout_seconds: float) -> tuple[str, Message]:
        """The next message of a pass, with its sender; messages of earlier passes are forgotten.

        Raises:
            CalledOffError: the overlay has restarted its reductions since, or the inbox is closed.
            UnavailableError: nothing came in time.
        """
        with self._changed:
            self._advance(key)
            if not await_changed(self._changed, lambda: key in self._arrived or self._is_over(key.restarts), timeout_seconds):
                raise UnavailableError(f"nothing came for {timeout_seconds:g} s", field="reduction", value=key.round)
            self._check(key.restarts)
            worker, message = self._arrived[key].popleft()
            if not self._arrived[key]:
                del self._arrived[key]
        self._on_taken(worker, message.num_bytes)
        return worker, message

    def restart(self, restarts: int) -> None:
        """Call off what waits in an earlier attempt."""
        with self._changed:
            self._restarts = max(self._restarts, restarts)
            self._changed.notify_all()

    def await_restart(self, restarts: int, timeout_seconds: float) -> bool:
        """Whether an attempt later than `restarts` was announced within the time.

        Raises:
            CalledOffError: the inbox is closed.
        """
        with self._changed:
            told = await_changed(self._changed, lambda: self._is_over(restarts), timeout_seconds)
            self._check(self._restarts)
            return told

    def waiting_bytes(self) -> int:
        """Of all that arrived and was not taken."""
        with self._changed:
            return sum(message.num_bytes for queue in self._arrived.values() for _, message in queue)

    @property
    def is_closed(self) -> bool:
        """Whether every wait ends at once."""
        return self._is_closed

    def close(self) -> None:
        """End every wait."""
        with self._changed:
            self._is_closed = True
            self._arrived.clear()
            self._changed.notify_all()

    def _advance(self, key: Pass) -> None:
        if key > self._now:
            self._now = key
            for early in [one for one in self._arrived if one < key]:
                for worker, message in self._arrived.pop(early):
                    self._on_taken(worker, message.num_bytes)

    def _is_over(self, restarts: int) -> bool:
        return self._is_closed or self._restarts > restarts

    def _check(self, restarts: int) -> None:
        if self._is_closed:
            raise CalledOffError("the worker was closed", field="reduction")
        if self._restarts > restarts:
            raise CalledOffError("the reductions restart", field="reduction")
