"""All workers of this host as the agent sees them: listened to together, ended on every path."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait

from kintsugi.core.errors import ConflictError, ReconfigurationError, WorkerError
from kintsugi.core.logs import get_logger
from kintsugi.runtime.messages import FromWorker, Stop
from kintsugi.runtime.models import TrainingJob
from kintsugi.runtime.options import AgentOptions, WorkerOptions
from kintsugi.runtime.presence import Presence
from kintsugi.runtime.processes import FENCE_SECONDS, WorkerHandle, WorkerMain
from kintsugi.runtime.workers.entry import worker_main

ENDED = "its process ended or stopped before it was taken in"
"""Of a worker that was to join."""


@dataclass(frozen=True, slots=True)
class News:
    """What happened since the fleet was last listened to."""

    messages: tuple[tuple[WorkerHandle, FromWorker], ...]
    ended: tuple[WorkerHandle, ...]
    """Processes that are gone; what they said before is among the messages."""


class Fleet:
    """Living workers by id, in the order in which they were taken in, and those that are still arriving."""

    def __init__(self, make_job: Callable[[], TrainingJob], options: WorkerOptions, main: WorkerMain = worker_main) -> None:
        self._make_job = make_job
        self._main = main
        self._options = options
        self._log = get_logger("kintsugi.runtime")
        self.presence = Presence()
        self.back_at = 0.0
        """When this very process was here again, on the monotonic clock, that had been away; before anything where it never was."""
        self._num_unable = 0
        """Processes that ended with an error of their own before they knew their model."""
        self.handles: dict[str, WorkerHandle] = {}
        self.arrivals: dict[str, WorkerHandle] = {}
        """Started while the job trains; nobody counts on them yet."""

    def start(self, workers: Sequence[str]) -> None:
        """Start one process per worker; returns before they know their model."""
        self.presence.begin()
        for worker in workers:
            self.handles[worker] = WorkerHandle(worker, self._make_job, self._options, self._main)

    def invite(self, worker: str) -> None:
        """Start a process for a worker that comes back or is new; the failure script was its predecessor's.

        Raises:
            ConflictError: the worker is here already.
        """
        if worker in self.handles or worker in self.arrivals:
            raise ConflictError("is here already", field="worker", value=worker)
        self.arrivals[worker] = WorkerHandle(worker, self._make_job, replace(self._options, faults=()), self._main)

    def admit(self) -> list[WorkerHandle]:
        """Take in the arrivals that know their model."""
        started = [handle.worker for handle in self.arrivals.values() if handle.started_at is not None]
        return [self.take_in(worker) for worker in started]

    def take_in(self, worker: str) -> WorkerHandle:
        """Count on an arrival from now on."""
        self.handles[worker] = self.arrivals.pop(worker)
        return self.handles[worker]

    def dismiss(self, handle: WorkerHandle, why: str = "") -> bool:
        """Fence an arrival, and log why where that is given; False where it is none."""
        if self.arrivals.get(handle.worker) is not handle:
            return False
        del self.arrivals[handle.worker]
        handle.fence()
        if why:
            self._log.warning("let a worker go that was to join", worker=handle.worker, reason=why, exit_code=handle.exit_code)
        return True

    def counts_on(self, handle: WorkerHandle) -> bool:
        """Whether this very process is one that was taken in and not removed since."""
        return self.handles.get(handle.worker) is handle

    @property
    def _everybody(self) -> list[WorkerHandle]:
        return [*self.handles.values(), *self.arrivals.values()]

    def listen(self, wake: Connection, timeout_seconds: float) -> News:
        """Wait for messages, ends of processes or the `wake` pipe; at most `timeout_seconds`."""
        connections = {handle.connection: handle for handle in self._everybody}
        sentinels = {handle.process.sentinel: handle for handle in self._everybody}
        ready = wait([*connections, *sentinels, wake], timeout=timeout_seconds)
        self._forgive_own_absence()
        ended = tuple(sentinels[item] for item in ready if isinstance(item, int))
        if wake in ready:
            wake.recv()
        speakers = [connections[item] for item in ready if isinstance(item, Connection) and item in connections]
        messages = tuple((handle, message) for handle in dict.fromkeys([*speakers, *ended]) for message in _drain(handle))
        return News(messages, ended)

    def _forgive_own_absence(self) -> None:
        """Silence counts from now where this very process was away: paused with its workers, or starved as they were."""
        if (back_at := self.presence.back_at) > self.back_at:
            self.back_at, now = back_at, time.monotonic()
            for handle in self._everybody:
                handle.last_heard_at = now

    def frozen(self, options: AgentOptions) -> list[WorkerHandle]:
        """Workers that do not act any more although their process is there.

        Stopped processes (SIGSTOP, a debugger) are told from starved ones by their state in the process table, so that
        they need not be waited for as long; starting workers are silent for other reasons and only looked at for that.
        """
        now = time.monotonic()
        return [handle for handle in self._everybody if _is_frozen(handle, options, now)]

    def hear_running(self, options: AgentOptions) -> None:
        """Take workers whose processes are not stopped for heard, where these tell nothing as long as nothing happens."""
        now = time.monotonic()
        for handle in self._everybody:
            if now - handle.last_heard_at > options.stopped_timeout_seconds / 2 and not handle.is_stopped():
                handle.last_heard_at = now

    def remove(self, handle: WorkerHandle) -> None:
        """Fence a worker and forget it."""
        del self.handles[handle.worker]
        handle.fence()
        if handle.ending:
            self._log.warning("a worker's process has ended", worker=handle.worker, reason=handle.ending)
        self._num_unable += handle.started_at is None and (handle.exit_code or 0) > 0

    def lose(self, handle: WorkerHandle, why: str = "") -> None:
        """Remove a worker that is lost, and say so; `why` is known where it was ended for a reason."""
        self.remove(handle)
        if not handle.ending:
            struck = "it did not act any more, and was killed" if handle.struck_at is None else "by a fault that was asked for"
            self._log.warning("a worker is lost", worker=handle.worker, reason=why or struck)

    def require_some_able(self, num_workers: int) -> None:
        """Tell that the script is wrong, rather than that all are lost, where none of the job's workers came to know its model.

        Raises:
            WorkerError: every one of them ended with an error of its own.
        """
        if self._num_unable == num_workers and not self.handles:
            raise WorkerError(
                "no worker could be started; each one printed why. They import the script: does it call train under "
                '`if __name__ == "__main__":`, and can what it imports be imported from anywhere?',
                field="workers",
                value=num_workers,
            )

    def close(self, *, grace_seconds: float = 0.0) -> None:
        """End all processes: by themselves within `grace_seconds`, else by SIGKILL.

        Raises:
            ReconfigurationError: the operating system could not end some of them; all were tried.
        """
        self.presence.close()
        if self.arrivals:
            self._log.warning("the job is over before these could join", workers=list(self.arrivals))
        self.handles |= self.arrivals
        self.arrivals.clear()
        for handle in self.handles.values():
            handle.send(Stop())
        deadline = time.monotonic() + grace_seconds
        for handle in self.handles.values():
            handle.process.join(max(0.0, deadline - time.monotonic()))
        for handle in self.handles.values():
            handle.strike()
        if immortal := self._fence_all():
            raise ReconfigurationError("did not end after SIGKILL", field="workers", value=immortal)

    def _fence_all(self) -> list[str]:
        """Those that could not be ended; where one needs all the time that there is for it, the others had that time, too."""
        immortal = []
        deadline = time.monotonic() + FENCE_SECONDS
        while self.handles:
            worker, handle = self.handles.popitem()
            try:
                handle.fence(max(0.0, deadline - time.monotonic()))
            except ReconfigurationError:
                immortal.append(worker)
            if handle.exit_code is not None:
                deadline = time.monotonic() + FENCE_SECONDS
        return immortal


def _drain(handle: WorkerHandle) -> Iterator[FromWorker]:
    """All messages that are there; the end of the pipe is noticed by the process's sentinel."""
    while not handle.is_broken and handle.connection.poll():
        message = handle.receive()
        if message is None:
            return
        yield message


def _is_frozen(handle: WorkerHandle, options: AgentOptions, now: float) -> bool:
    silent_seconds = now - handle.last_heard_at
    if handle.is_broken:
        return True
    if silent_seconds <= options.stopped_timeout_seconds or handle.connection.poll():
        return False
    if handle.is_stopped():
        return True
    return handle.started_at is not None and silent_seconds > options.heartbeat_timeout_seconds
