"""Waiting for operations of a collective library in a way that can always be given up.

gloo wakes nobody whose message is half sent or half received when its connection closes (`Pair::signalException` knows only
operations that have not begun), so shutting sockets down is not enough to free a survivor. The waiting is therefore done by a
thread that can be left behind; it ends with its operation's own timeout at the latest.
"""

import queue
import threading
from typing import Protocol

from kintsugi.core.errors import CommunicationError

_GIVEN_UP = "the groups were given up"


class Operation(Protocol):
    """Something that gloo works on; keeps its buffers for as long as it is referred to."""

    def wait(self) -> object:
        """Block until it is done. Raises RuntimeError when it fails."""


class Waiter:
    """Waits on behalf of one thread at a time; `abort`, from any thread, ends this wait and all later ones."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._operations: queue.SimpleQueue[Operation | None] = queue.SimpleQueue()
        self._outcomes: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._is_aborted = False

    def wait(self, operation: Operation) -> None:
        """Block until the operation is done.

        Raises:
            CommunicationError: it failed, or `abort` was called.
        """
        if self._is_aborted:
            raise CommunicationError(_GIVEN_UP)
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()
        self._operations.put(operation)
        failure = self._outcomes.get()
        if self._is_aborted:
            raise CommunicationError(_GIVEN_UP)
        if failure is not None:
            raise CommunicationError(failure)

    def abort(self) -> None:
        """Free the waiting thread, whatever the operation does."""
        self._is_aborted = True
        self._outcomes.put(None)

    def close(self) -> None:
        """Let the thread end once its last operation has."""
        self._operations.put(None)

    def _work(self) -> None:
        while (operation := self._operations.get()) is not None:
            failure = None
            try:
                operation.wait()
            except RuntimeError as error:
                failure = str(error).partition("\n")[0]
            del operation  # a reference would keep the group's sockets open
            self._outcomes.put(failure)
