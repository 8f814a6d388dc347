"""The two ends of a worker's inner line: its listener believes to talk with an agent, and talks with the governor beside it."""

import queue
from collections import deque
from collections.abc import Callable

from kintsugi.runtime.messages import FromWorker, ToWorker


class Inward:
    """A connection without a pipe: nothing is copied, and nothing on it can break."""

    def __init__(self, hear: Callable[[FromWorker], None]) -> None:
        """`hear` takes what the worker says, in the thread that says it."""
        self._hear = hear
        self._queue: queue.SimpleQueue[ToWorker] = queue.SimpleQueue()
        self._next: deque[ToWorker] = deque()

    def tell(self, message: ToWorker) -> None:
        """To the worker; from any thread."""
        self._queue.put(message)

    # What the listener calls, in its thread.

    def send(self, message: FromWorker, /) -> None:
        """From the worker."""
        self._hear(message)

    def poll(self, timeout: float | None = 0.0) -> bool:
        """Whether there is a message within the time."""
        if not self._next:
            try:
                self._next.append(self._queue.get(timeout=timeout))
            except queue.Empty:
                return False
        return True

    def recv(self) -> ToWorker:
        """The next message; waits for it."""
        return self._next.popleft() if self._next else self._queue.get()
