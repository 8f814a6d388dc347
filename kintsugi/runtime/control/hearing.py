"""What workers say about themselves, and what is noted of it; the rest is about the attempt."""

import logging
import time
from dataclasses import dataclass, field
from functools import singledispatchmethod

from kintsugi.core.errors import InvalidInputError, WorkerError, error_from
from kintsugi.core.logs import get_logger
from kintsugi.core.messages import Measurement
from kintsugi.runtime.checkpoints.keeper import Keeper
from kintsugi.runtime.control.attempt import Attempt
from kintsugi.runtime.control.decider import Decider
from kintsugi.runtime.control.fleet import Fleet
from kintsugi.runtime.control.progress import Progress
from kintsugi.runtime.control.recovery import Recoveries
from kintsugi.runtime.likeness import Pattern
from kintsugi.runtime.messages import (
    Delivered,
    Differing,
    Failed,
    FaultInjected,
    FromWorker,
    Heartbeat,
    PartFailed,
    PartWritten,
    Published,
    Started,
    StepDone,
)
from kintsugi.runtime.processes import WorkerHandle
from restorer.rendezvous import members_of

EVENTS = logging.getLogger("kintsugi.recovery")
"""Told under the names of NVIDIA's resiliency extension; silent unless the trainer configures it."""


@dataclass(frozen=True, slots=True)
class Hearing:
    """Hears the workers of one job."""

    fleet: Fleet
    decider: Decider
    progress: Progress
    recoveries: Recoveries
    keeper: Keeper
    pattern: Pattern = field(default_factory=Pattern)

    def hear(self, message: FromWorker, handle: WorkerHandle, attempt: Attempt) -> bool:
        """Take a message in; whether it tells of a step that the present attempt led to.

        Raises:
            KintsugiError: why the worker that says so cannot go on, and with it the job.
        """
        self._on(message, handle, attempt)
        return isinstance(message, StepDone) and message.attempt == attempt.number

    @singledispatchmethod
    def _on(self, message: FromWorker, handle: WorkerHandle, attempt: Attempt) -> None:
        attempt.hear(message, handle.worker)

    @_on.register
    def _(self, message: Heartbeat, handle: WorkerHandle, _: Attempt) -> None:
        handle.is_leaving |= message.is_leaving

    @_on.register
    def _(self, message: Started, handle: WorkerHandle, _: Attempt) -> None:
        if found := self.pattern.differences(handle.worker, message.traits):
            self._turn_away(handle, found)
        else:
            handle.started_at, handle.address = time.monotonic(), message.address

    @_on.register
    def _(self, message: Published, _: WorkerHandle, attempt: Attempt) -> None:
        if message.attempt == attempt.number:
            for member in members_of(message.key):
                if member in self.fleet.handles:
                    self.fleet.handles[member].send(Delivered(message.attempt, message.key, message.value))

    @_on.register
    def _(self, message: StepDone, _: WorkerHandle, attempt: Attempt) -> None:
        self.progress.take(message)
        if message.attempt == attempt.number and (recovery := self.recoveries.committed(message.at)) is not None:
            measured = Measurement(step=message.step, phase_seconds=recovery.phase_seconds())
            self.decider.tell_measured(recovery.generation, measured)
            for event, seconds in recovery.event_seconds().items():
                EVENTS.info("%s generation=%d seconds=%.6f", event, recovery.generation, seconds)

    @_on.register
    def _(self, message: PartWritten, handle: WorkerHandle, _: Attempt) -> None:
        self.keeper.written(handle.worker, message)

    @_on.register
    def _(self, message: PartFailed, handle: WorkerHandle, _: Attempt) -> None:
        self.keeper.failed(handle.worker, message)

    @_on.register
    def _(self, message: Differing, handle: WorkerHandle, attempt: Attempt) -> None:
        self.keeper.distrust(message.step)
        if handle.worker in message.wrong:
            handle.reason = f"held other numbers than most before step {message.step}"
        attempt.hear(message, handle.worker)

    @_on.register
    def _(self, message: Failed, handle: WorkerHandle, _: Attempt) -> None:
        if self.fleet.dismiss(handle):
            log = get_logger("kintsugi.runtime")
            log.warning("a worker that joined failed", worker=handle.worker, traceback=message.traceback)
            return
        if message.error is not None:
            raise error_from(message.error)
        raise WorkerError(f"{handle.worker} raised:\n{message.traceback}", field="worker", value=handle.worker)

    @_on.register
    def _(self, message: FaultInjected, handle: WorkerHandle, _: Attempt) -> None:
        handle.struck_at = message.at

    def _turn_away(self, handle: WorkerHandle, found: str) -> None:
        """Let a worker go whose job is another one; one that the job counts on ends it."""
        if not self.fleet.dismiss(handle):
            message = f"makes another job for {handle.worker}, {found}: make the same one in every process"
            raise InvalidInputError(message, field="make_job", value=handle.worker)
        log = get_logger("kintsugi.runtime")
        log.warning("refused a worker that joined: its job differs", worker=handle.worker, differences=found)
