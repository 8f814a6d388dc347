"""Waiting for operations of a collective library in a way that can always be given up.

gloo wakes nobody whose message is half sent or half received when its connection closes (`Pair::signalException` knows only
operations that have not begun), so shutting sockets down is not enough to free a survivor. The waiting is therefore done by a
thread that can be left behind; it ends with its operation's own timeout at the latest.
"""

import queue
import threading
import time
from dataclasses import dataclass
from typing import Protocol

from kintsugi.core.errors import CommunicationError

_GIVEN_UP = "the groups were given up"


class Operation(Protocol):
    """Something that gloo works on, or starts to when it is waited for; keeps its buffers for as long as it is referred to."""

    def wait(self) -> object:
        """Block until it is done. Raises RuntimeError when it fails."""


@dataclass(slots=True, eq=False)
class Waiting:
    """A place in the queue of a waiter."""

    waiter: "Waiter"
    operation: Operation | None
    """None once it is over: a reference would keep the group's sockets open."""
    failure: str | None = None
    began_at: float = 0.0
    """When the thread came to it, on the monotonic clock in seconds."""
    ended_at: float = 0.0

    def wait(self) -> None:
        """Block until the operation is done.

        Raises:
            CommunicationError: it failed, or the waiter was told to `abort`.
        """
        self.waiter.settle(self)
        if self.failure is not None:
            raise CommunicationError(self.failure)


class Waiter:
    """Waits for operations one after the other; `abort`, from any thread, ends all waits, and no later operation is begun."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._queue: queue.SimpleQueue[Waiting | None] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_aborted = False

    def begin(self, operation: Operation) -> Waiting:
        """Have the thread wait for the operation once it is through with all earlier ones.

        Raises:
            CommunicationError: `abort` was called.
        """
        self._require_use()
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()
        waiting = Waiting(self, operation)
        self._queue.put(waiting)
        return waiting

    def wait(self, operation: Operation) -> None:
        """Block until the operation is done.

        Raises:
            CommunicationError: it failed, or `abort` was called.
        """
        self.begin(operation).wait()

    def settle(self, waiting: Waiting) -> None:
        """Block until the operation is over.

        Raises:
            CommunicationError: `abort` was called.
        """
        with self._changed:
            self._changed.wait_for(lambda: waiting.operation is None or self._is_aborted)
        self._require_use()

    def abort(self) -> None:
        """Free whoever waits, whatever the operations do."""
        with self._changed:
            self._is_aborted = True
            self._changed.notify_all()

    def close(self) -> None:
        """Let the thread end once its last operation has."""
        self._queue.put(None)

    def _require_use(self) -> None:
        if self._is_aborted:
            raise CommunicationError(_GIVEN_UP)

    def _work(self) -> None:
        while (waiting := self._queue.get()) is not None:
            if not self._is_aborted:
                _finish(waiting)
            with self._changed:
                waiting.operation = None
                self._changed.notify_all()
            del waiting


def _finish(waiting: Waiting) -> None:
    assert waiting.operation is not None
    waiting.began_at = time.monotonic()
    try:
        waiting.operation.wait()
    except Exception as error:  # whatever it is: who waits would wait for ever if this thread ended
        waiting.failure = str(error).partition("\n")[0] or type(error).__name__
    waiting.ended_at = time.monotonic()
