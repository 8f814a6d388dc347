"""Waiting for operations of a collective library in a way that can always be given up.

gloo wakes nobody whose message is half sent or half received when its connection closes (`Pair::signalException` knows only
operations that have not begun), so shutting sockets down is not enough to free a survivor. The waiting is therefore done by a
thread that can be left behind; it ends with its operation's own timeout at the latest.
"""

import queue
import threading
import time
from collections.abc import Callable
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
        self.require_use()
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
        self.require_use()

    def abort(self) -> None:
        """Free whoever waits, whatever the operations do."""
        with self._changed:
            self._is_aborted = True
            self._changed.notify_all()

    def close(self) -> None:
        """Let the thread end once its last operation has."""
        self._queue.put(None)

    def await_end(self, timeout_seconds: float) -> None:
        """Wait, once it is closed, until its thread has ended; an operation that nobody ends is not waited for longer."""
        if self._thread is not None:
            self._thread.join(timeout_seconds)

    def require_use(self) -> None:
        """Require that nobody has called `abort`.

        Raises:
            CommunicationError: somebody has.
        """
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


class OwnWaiter(Waiter):
    """For a thread that is itself left behind when its operations are given up: it waits for them without another thread's help."""

    def __init__(self, on_abort: Callable[[], None]) -> None:
        """Without a thread.

        Args:
            on_abort: called, from any thread, when the waiting is given up: whoever waits for the thread goes on without it.
        """
        super().__init__("")
        self._on_abort = on_abort

    def begin(self, operation: Operation) -> Waiting:
        """Nothing but a place: the wait begins when somebody comes for it."""
        self.require_use()
        return Waiting(self, operation)

    def settle(self, waiting: Waiting) -> None:
        """Wait here.

        Raises:
            CommunicationError: `abort` was called, before or meanwhile.
        """
        self.require_use()
        _finish(waiting)
        waiting.operation = None
        self.require_use()

    def abort(self) -> None:
        """Let no later operation begin, and tell whoever waits for the thread."""
        super().abort()
        self._on_abort()

    def close(self) -> None:
        """No thread has to end."""


def _finish(waiting: Waiting) -> None:
    assert waiting.operation is not None
    waiting.began_at = time.monotonic()
    try:
        waiting.operation.wait()
    except Exception as error:  # whatever it is: who waits would wait for ever if this thread ended
        waiting.failure = str(error).partition("\n")[0] or type(error).__name__
    waiting.ended_at = time.monotonic()
