"""The ear of a worker: a thread that obeys at once what cannot wait for the main thread.

The main thread may be deep in a pass or in a collective; the listener keeps the heartbeat, hands rendezvous keys over,
and frees the main thread when a step is called off. Everything else it puts into the main thread's inbox.
"""

import os
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn, Protocol

from kintsugi.core.errors import CommunicationError
from kintsugi.core.logs import get_logger
from kintsugi.runtime.messages import (
    Arm,
    CallOff,
    CheckpointEvery,
    Delivered,
    FromWorker,
    Heartbeat,
    Prepare,
    Probe,
    Published,
    ToWorker,
)
from restorer.groups import Groups
from restorer.rendezvous import Rendezvous


def attempt_name(attempt: int) -> str:
    """Name of the groups of an attempt; their rendezvous keys begin with it."""
    return f"attempt{attempt}"


class Line(Protocol):
    """To whoever conducts a worker: the agent's pipe, or one without copies to the governor in the same process."""

    def send(self, message: Any, /) -> None:
        """Tell something."""

    def poll(self, timeout: float | None, /) -> bool:
        """Whether there is a message within the time."""

    def recv(self) -> Any:
        """The next message; waits for it. Raises EOFError or OSError at the line's end."""


class Listener:
    """Both directions of the line to the agent. The process ends with it."""

    def __init__(
        self, connection: Line, heartbeat_seconds: float, at_once: Callable[[Arm | CheckpointEvery | Probe], None]
    ) -> None:
        """`at_once` obeys, without waiting, what concerns neither the plan nor the state."""
        self._connection = connection
        self._at_once = at_once
        self._heartbeat_seconds = heartbeat_seconds
        self._send_lock = threading.Lock()
        self._inbox: queue.SimpleQueue[ToWorker] = queue.SimpleQueue()
        self._rendezvous: Rendezvous | None = None
        self._groups: Groups | None = None
        self._called_off = 0
        self.is_leaving = False
        """Set once the process was asked to end; the next heartbeat says so."""

    def start(self) -> None:
        """Begin to listen, in a thread of its own."""
        threading.Thread(target=self._listen, name="listener", daemon=True).start()

    def send(self, message: FromWorker) -> None:
        """Tell the agent something; from any thread."""
        with self._send_lock:
            tell_or_leave(self._connection, message)

    def next(self) -> ToWorker:
        """The next message for the main thread; waits for it."""
        return self._inbox.get()

    def require_current(self, attempt: int) -> None:
        """Leave what was called off.

        Raises:
            CommunicationError: a later attempt was begun.
        """
        if self._called_off > attempt:
            raise CommunicationError(f"attempt {attempt} was called off")

    def groups_for(self, attempt: int, make: Callable[[Rendezvous], Groups]) -> Groups:
        """The groups of an attempt, given up as soon as it is called off; `make` gets their rendezvous.

        Raises:
            CommunicationError: it was called off already.
        """
        assert self._rendezvous is not None
        self._groups = make(self._rendezvous)
        self.require_current(attempt)
        return self._groups

    def _listen(self) -> None:
        """A heartbeat is due at its time, however much there is to hear: the addresses of a thousand workers come in one stream."""
        due_at = time.monotonic() + self._heartbeat_seconds
        try:
            while True:
                left = due_at - time.monotonic()
                if left > 0.0 and self._connection.poll(left):
                    self._hear_or_end(self._connection.recv())
                elif left <= 0.0:
                    self.send(Heartbeat(self.is_leaving))
                    due_at = time.monotonic() + self._heartbeat_seconds
        except (EOFError, OSError):
            leave()

    def _hear_or_end(self, message: ToWorker) -> None:
        """A worker that hears nothing more could neither be freed nor ended: out of descriptors, say, groups cannot be given up."""
        try:
            self._hear(message)
        except Exception:
            get_logger("kintsugi.runtime").exception("the worker ends: it could not obey", message=type(message).__name__)
            os._exit(1)

    def _hear(self, message: ToWorker) -> None:
        if isinstance(message, Delivered):
            self._deliver(message)
            return
        if isinstance(message, Arm | CheckpointEvery | Probe):
            self._at_once(message)
            return
        if isinstance(message, Prepare):
            self._rendezvous = Rendezvous(self._publisher(message.attempt))
        if isinstance(message, CallOff):
            self._call_off(message.attempt)
        self._inbox.put(message)

    def _publisher(self, attempt: int) -> Callable[[str, bytes], None]:
        return lambda key, value: self.send(Published(attempt, key, value))

    def _deliver(self, message: Delivered) -> None:
        if self._rendezvous is not None and message.key.startswith(f"{attempt_name(message.attempt)}/"):
            self._rendezvous.deliver(message.key, message.value)

    def _call_off(self, attempt: int) -> None:
        self._called_off = attempt
        if self._rendezvous is not None:
            self._rendezvous.close()
        if self._groups is not None:
            self._groups.abort()


def tell_or_leave(line: Line, message: Any) -> None:
    """Tell something, or end: whichever thread is the first to find the agent gone, nobody is there to read of its error."""
    try:
        line.send(message)
    except ConnectionError:
        leave()


def leave() -> NoReturn:
    """End at once: the agent is gone, and the main thread may be stuck in a collective."""
    os._exit(0)
