"""All workers of this host as the agent sees them: started together, listened to together, ended on every path."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait

from kintsugi.runtime.messages import FromWorker, Stop
from kintsugi.runtime.models import TrainingJob
from kintsugi.runtime.processes import WorkerHandle, forkserver
from kintsugi.runtime.worker import WorkerOptions


@dataclass(frozen=True, slots=True)
class News:
    """What happened since the fleet was last listened to."""

    messages: tuple[tuple[WorkerHandle, FromWorker], ...]
    ended: tuple[WorkerHandle, ...]
    """Processes that are gone; what they said before is among the messages."""


class Fleet:
    """Living workers by id, in the order they were started."""

    def __init__(self, make_job: Callable[[], TrainingJob], options: WorkerOptions) -> None:
        self._make_job = make_job
        self._options = options
        self.handles: dict[str, WorkerHandle] = {}

    def start(self, workers: Sequence[str]) -> None:
        """Start one process per worker; returns before they know their model."""
        context = forkserver()
        for worker in workers:
            self.handles[worker] = WorkerHandle(worker, self._make_job, self._options, context)

    def listen(self, wake: Connection, timeout_seconds: float) -> News:
        """Wait for messages, ends of processes or the `wake` pipe; at most `timeout_seconds`."""
        connections = {handle.connection: handle for handle in self.handles.values()}
        sentinels = {handle.process.sentinel: handle for handle in self.handles.values()}
        ready = wait([*connections, *sentinels, wake], timeout=timeout_seconds)
        ended = tuple(sentinels[item] for item in ready if isinstance(item, int))
        if wake in ready:
            wake.recv()
        speakers = [connections[item] for item in ready if isinstance(item, Connection) and item in connections]
        messages = tuple((handle, message) for handle in dict.fromkeys([*speakers, *ended]) for message in _drain(handle))
        return News(messages, ended)

    def silent_for(self, seconds: float) -> list[WorkerHandle]:
        """Workers that said nothing for so long and have nothing unread in their pipe, or whose pipe is broken."""
        limit = time.monotonic() - seconds
        return [
            handle
            for handle in self.handles.values()
            if handle.is_broken or (handle.last_heard_at < limit and not handle.connection.poll())
        ]

    def remove(self, handle: WorkerHandle) -> None:
        """Fence a worker and forget it."""
        del self.handles[handle.worker]
        handle.fence()

    def close(self) -> None:
        """End all processes: those that wait for messages by themselves, the others by SIGKILL."""
        for handle in self.handles.values():
            handle.send(Stop())
        while self.handles:
            self.remove(next(iter(self.handles.values())))


def _drain(handle: WorkerHandle) -> Iterator[FromWorker]:
    """All messages that are there; the end of the pipe is noticed by the process's sentinel."""
    while not handle.is_broken and handle.connection.poll():
        message = handle.receive()
        if message is None:
            return
        yield message
