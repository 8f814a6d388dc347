"""Writes a worker's part of a checkpoint, beside the training or before it goes on.

Either way the state is copied first and written by a thread of its own, so a worker whose step is called off is free at
once, and what is written is of one step. At most so many copies are in flight; the next one waits for room, but not for a disk
that hangs: then the training goes on without that checkpoint, and with the next ones once the disk answers.
"""

import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from kintsugi.runtime import endings
from kintsugi.runtime.checkpoints.manifest import FileRecord
from kintsugi.runtime.checkpoints.recording import CheckpointOptions, Strategy
from kintsugi.runtime.checkpoints.snapshots import Entries, SnapshotPool, write_part
from kintsugi.runtime.messages import PartFailed, PartWritten
from kintsugi.runtime.presence import Presence

_LOOK_SECONDS = 0.01
"""How often who waits looks whether its step was called off."""
_NICENESS = 10
"""How far what is written beside the training goes behind it where both want a processor."""
_LAST_SECONDS = 60.0
"""For what is being written when the process ends."""


@dataclass(slots=True, eq=False)
class _Order:
    """A copy that is to be written."""

    attempt: int
    step: int
    temporary: Path
    parts: dict[str, Entries]
    snapshot_seconds: float
    backpressure_seconds: float
    is_told: bool = False
    """Whether it was said that the disk holds it up."""


class PartWriter:
    """One worker's writes, in order, by one thread."""

    def __init__(
        self,
        options: CheckpointOptions,
        tell: Callable[[PartWritten | PartFailed], None],
        *,
        before_part: Callable[[int, Sequence[Path] | None], None],
        sync: Callable[[], None],
    ) -> None:
        """`before_part` is told the step of every part, and before the last what was written; `sync` comes before its end."""
        self._options = options
        self._tell = tell
        self._before_part = before_part
        self._sync = sync
        self._pool = SnapshotPool()
        self._orders: SimpleQueue[_Order | None] = SimpleQueue()
        self._changed = threading.Condition()
        self._in_flight: list[_Order] = []
        self._moved_at = 0.0
        """When the disk had done something last, or was asked again after it had done everything."""
        self._thread: threading.Thread | None = None

    def take(
        self, attempt: int, step: int, temporary: Path, parts: Mapping[str, Entries], require_current: Callable[[], None]
    ) -> float:
        """Copy `parts` and have them written; seconds that training stood still for it. Where the disk hangs that is told instead.

        Raises:
            CommunicationError: `require_current` said that the step was called off.
        """
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="checkpoint", daemon=True)
            self._thread.start()
            endings.before_exit(self.close)
        began = time.monotonic()
        if not self._wait_for(self._options.max_in_flight - 1, require_current):
            self._tell_hung(attempt, step, temporary)
            return time.monotonic() - began
        has_room = time.monotonic()
        copied = self._pool.copy(parts)
        is_copied = time.monotonic()
        order = _Order(attempt, step, temporary, copied, is_copied - has_room, has_room - began)
        with self._changed:
            if not self._in_flight:
                self._moved_at = time.monotonic()
            self._in_flight.append(order)
        self._orders.put(order)
        if self._options.strategy is Strategy.BLOCKING:
            self.drain(require_current)
        return time.monotonic() - began

    def drain(self, require_current: Callable[[], None]) -> None:
        """Wait until nothing is in flight; what a disk that hangs holds up is told of.

        Raises:
            CommunicationError: `require_current` said that the step was called off.
        """
        if not self._wait_for(0, require_current):
            with self._changed:
                late = [order for order in self._in_flight if not order.is_told]
            for order in late:
                order.is_told = True
                self._tell_hung(order.attempt, order.step, order.temporary)

    def close(self) -> None:
        """End the thread, once it has written what is in flight; a disk that does not answer is waited for a minute."""
        if self._thread is not None:
            endings.is_over(self.close)
            self._orders.put(None)
            self._thread.join(0.0 if self._is_hung() else _LAST_SECONDS)
            self._thread = None

    @property
    def in_flight(self) -> tuple[tuple[int, int], ...]:
        """Attempt and step of what is being written."""
        with self._changed:
            return tuple((order.attempt, order.step) for order in self._in_flight)

    def _wait_for(self, at_most: int, require_current: Callable[[], None]) -> bool:
        """Whether no more than so many copies are in flight; False where the disk hangs."""
        presence = Presence()
        with self._changed:
            while len(self._in_flight) > at_most:
                require_current()
                if self._is_hung(presence.back_at):
                    return False
                self._changed.wait(_LOOK_SECONDS)
        return True

    def _is_hung(self, back_at: float = 0.0) -> bool:
        """Whether nothing was written for long; not while this very process was away, until `back_at`."""
        silent_seconds = time.monotonic() - max(self._moved_at, back_at)
        return bool(self._in_flight) and silent_seconds > self._options.disk_timeout_seconds

    def _tell_hung(self, attempt: int, step: int, temporary: Path) -> None:
        why = f"{temporary.parent} has not answered for {self._options.disk_timeout_seconds:g} s"
        self._tell(PartFailed(attempt, step, why, is_late=True))

    def _work(self) -> None:
        if self._options.strategy is Strategy.OVERLAPPED:
            _give_way()
        while (order := self._orders.get()) is not None:
            try:
                self._tell(self._written(order))
            except Exception as error:  # whatever it is, who waits for the part must learn of it
                self._tell(PartFailed(order.attempt, order.step, f"{type(error).__name__}: {error}"))
            finally:
                self._pool.give_back(order.parts)
                with self._changed:
                    self._in_flight.remove(order)
                    self._moved_at = time.monotonic()
                    self._changed.notify_all()

    def _written(self, order: _Order) -> PartWritten:
        began = time.monotonic()
        files: dict[str, FileRecord] = {}
        for number, (part, entries) in enumerate(order.parts.items()):
            is_last = number == len(order.parts) - 1
            self._before_part(order.step, [order.temporary / name for name in files] if is_last else None)
            files |= write_part(order.temporary, part, entries)
            self._moved_at = time.monotonic()
        self._sync()
        write_seconds = time.monotonic() - began
        is_blocking = self._options.strategy is Strategy.BLOCKING
        stall = order.snapshot_seconds + order.backpressure_seconds + (write_seconds if is_blocking else 0.0)
        return PartWritten(
            attempt=order.attempt,
            step=order.step,
            files=files,
            snapshot_seconds=order.snapshot_seconds,
            backpressure_seconds=order.backpressure_seconds,
            write_seconds=write_seconds,
            stall_seconds=stall,
        )


def _give_way() -> None:
    """Lower this thread's priority, where threads have one of their own."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), os.getpriority(os.PRIO_PROCESS, 0) + _NICENESS)
