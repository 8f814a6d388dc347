"""One worker process: a listener that obeys at once, and a main thread that trains.

The main thread may be deep in a pass or in a collective; the listener answers the agent's heartbeat, hands rendezvous
keys over, and frees the main thread when a step is called off. All state belongs to the main thread.
"""

import ctypes
import gc
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from typing import Any, NoReturn

import torch

from estimator.program import Action, ActionKind, checksum, list_digest, parse_action
from kintsugi.core.decision import StateKind
from kintsugi.core.errors import CommunicationError, KintsugiError, ReconfigurationError
from kintsugi.runtime.bookkeeper import Bookkeeper
from kintsugi.runtime.commit import StepStatus
from kintsugi.runtime.executor import Executor
from kintsugi.runtime.faults import Fault, FaultPoint, FaultScript
from kintsugi.runtime.listener import Listener, attempt_name
from kintsugi.runtime.messages import (
    Arm,
    CallOff,
    CheckpointEvery,
    Collect,
    Failed,
    FaultInjected,
    Finished,
    FromWorker,
    Go,
    LinkBroken,
    Prepare,
    Probe,
    Quiesced,
    Reached,
    Ready,
    Resumed,
    Started,
    StepDone,
    Stop,
    ToWorker,
)
from kintsugi.runtime.models import TrainingJob, model_shape
from kintsugi.runtime.reach import Doorbell
from kintsugi.runtime.recording import RunOptions
from kintsugi.runtime.result import collected
from kintsugi.runtime.state import ModelState
from restorer.groups import Groups
from restorer.reconfigure import migrate
from restorer.staging import Staging

_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """How a worker process runs."""

    address: str = "127.0.0.1"
    """Of this host, where the other workers reach it."""
    addresses: Mapping[str, str] = field(default_factory=dict)
    """Of workers that have one of their own."""
    num_threads: int = 1
    """For torch's own arithmetic."""
    heartbeat_seconds: float = 0.1
    connect_timeout_seconds: float = 20.0
    """For connecting the groups of a generation."""
    operation_timeout_seconds: float = 600.0
    """For one message or reduction; failures are noticed and called off long before."""
    faults: tuple[Fault, ...] = ()
    run: RunOptions | None = None
    """Where the run is recorded; null records nothing."""

    def address_of(self, worker: str) -> str:
        """Where a worker listens."""
        return self.addresses.get(worker, self.address)


def worker_main(worker: str, connection: Connection, make_job: Callable[[], TrainingJob], options: WorkerOptions) -> None:
    """Entry point of a worker process; returns when the agent says so or is gone."""
    _end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(options.num_threads)
    process = WorkerProcess(worker, connection, options)
    try:
        process.run(make_job)
    except Exception as error:  # the agent reports it to the user; nothing else would
        own = error.as_dict() if isinstance(error, KintsugiError) else None
        process.tell(Failed(traceback.format_exc(), own))
        sys.exit(1)


class WorkerProcess:
    """The life of one worker."""

    def __init__(self, worker: str, connection: Connection, options: WorkerOptions) -> None:
        self._worker = worker
        self._options = options
        self._listener = Listener(connection, options.heartbeat_seconds, self._obey_at_once)
        self._doorbell = Doorbell(options.address_of(worker))
        self._faults = FaultScript(worker, options.faults, lambda at: self.tell(FaultInjected(at)))
        self._books = Bookkeeper(worker, options.run, self._faults, self.tell)
        self._attempt = 0
        self._staged: Prepare | None = None
        self._groups: Groups | None = None
        """Of the latest attempt, whether it came to its end or not."""
        self._executor: Executor | None = None
        self._next_executor: Executor | None = None
        self._has_resumed = False

    def tell(self, message: FromWorker) -> None:
        """Tell the agent something; from any thread."""
        self._listener.send(message)

    def run(self, make_job: Callable[[], TrainingJob]) -> None:
        """Learn the model, then obey until told to stop."""
        self._listener.start()
        self._faults.strike_if(FaultPoint.START)
        self._job = make_job()
        self._shape = model_shape(self._job)
        self._staging = Staging(is_pinned=torch.device(self._job.device).type == "cuda")
        gc.collect()
        gc.freeze()
        self.tell(Started(self._doorbell.address))
        while not isinstance(message := self._listener.next(), Stop):
            try:
                self._obey(message)
            except CommunicationError as error:
                self.tell(LinkBroken(self._attempt, str(error)))

    def _obey_at_once(self, message: Arm | CheckpointEvery | Probe) -> None:
        """In the listener's thread."""
        if isinstance(message, Arm):
            self._faults.arm(message.faults)
        elif isinstance(message, CheckpointEvery):
            self._books.cadence.every = message.steps
        else:
            threading.Thread(target=self._probe, args=(message,), name="probe", daemon=True).start()

    def _probe(self, message: Probe) -> None:
        self.tell(Reached(message.number, self._doorbell.unreachable(message.addresses, message.timeout_seconds)))

    def _obey(self, message: ToWorker) -> None:
        if isinstance(message, CallOff):
            self._quiesce(message.attempt)
        elif isinstance(message, Prepare):
            self._prepare(message)
        elif isinstance(message, Go):
            self._swap_in()
            self._train()
        elif isinstance(message, Collect):
            state = self._executor.state if self._executor is not None else None
            self.tell(collected(state, message))

    def _quiesce(self, attempt: int) -> None:
        """Forget what was staged, and say how far the step came."""
        self._attempt = attempt
        self._faults.strike_if(FaultPoint.QUIESCE, self._executor.status.step if self._executor is not None else None)
        self._next_executor = None
        if self._executor is not None:
            self._executor.leave()
        if self._groups is not None and (self._executor is None or self._groups is not self._executor.groups):
            self._groups.close()
        status = self._executor.status if self._executor is not None else None
        self.tell(Quiesced(attempt, status, self._books.in_flight))

    def _prepare(self, message: Prepare) -> None:
        """Stage everything the plan needs; the present state stays as it is, but for the step that is settled."""
        self._attempt = message.attempt
        self._faults.generation = message.plan.generation
        self._faults.strike_if(FaultPoint.REGROUP)
        actions = _checked_actions(self._worker, message)
        if message.record is not None and self._executor is not None and self._executor.status.step == message.record.step:
            self._executor.roll_forward(message.record)
        groups = self._connect(message)
        regrouped_at = time.monotonic()
        self._faults.strike_if(FaultPoint.TRANSFER)
        state = self._staged_state(message, groups)
        transferred_at = time.monotonic()
        self._next_executor = self._staged_executor(message, actions, groups, state)
        self._staged = message
        self._faults.strike_if(FaultPoint.READY)
        self.tell(Ready(message.attempt, regrouped_at, transferred_at))

    def _connect(self, message: Prepare) -> Groups:
        subgroups = [message.plan.workers, *(reduction.workers for reduction in message.reductions)]
        name = attempt_name(message.attempt)
        self._groups = self._listener.groups_for(
            message.attempt, lambda rendezvous: Groups(self._worker, message.members, subgroups, rendezvous, name)
        )
        self._groups.build(
            address=self._options.address_of(self._worker),
            timeout_seconds=self._options.connect_timeout_seconds,
            operation_timeout_seconds=self._options.operation_timeout_seconds,
        )
        return self._groups

    def _staged_state(self, message: Prepare, groups: Groups) -> ModelState | None:
        layers = message.plan.layers_of.get(self._worker)
        restore = message.restore
        old = self._executor.state if self._executor is not None and not (restore and restore.is_whole) else None
        require_current = partial(self._listener.require_current, message.attempt)
        if message.is_initial:
            return ModelState.initial(self._job, layers, require_current) if layers is not None else None
        export = old.export if old is not None else _holds_nothing
        arrived = migrate(
            message.migration,
            self._worker,
            self._staging,
            version=message.start_step,
            export=export,
            open_transport=partial(groups.transport, torch.device("cpu")),
        )
        if layers is None:
            return None
        if restore is not None:
            arrived |= self._books.read(restore, layers, old, require_current)
        return (old or ModelState(self._job, {}, {})).rebuilt(layers, arrived, require_current)

    def _staged_executor(
        self, message: Prepare, actions: tuple[Action, ...], groups: Groups, state: ModelState | None
    ) -> Executor | None:
        if state is None:
            return None
        executor = Executor(
            worker=self._worker,
            job=self._job,
            shape=self._shape,
            state=state,
            plan=message.plan,
            actions=actions,
            reductions=message.reductions,
            groups=groups,
            before_action=self._before_action,
            recorder=self._books.recorder(message, self._job),
        )
        executor.status = StepStatus(step=message.start_step, last_record=message.record)
        return executor

    def _swap_in(self) -> None:
        """Done even when the attempt was called off since: the agent counts the state as moved once it said go."""
        old, self._executor, self._next_executor = self._executor, self._next_executor, None
        self._staging.clear()
        self._has_resumed = False
        if old is not None:
            old.groups.close()
        if self._executor is not None:
            self._executor.groups.keep_subgroups()
        elif self._groups is not None:
            self._groups.close()

    def _train(self) -> None:
        executor = self._executor
        if executor is None or self._staged is None:
            return
        self._books.resumed(self._staged)
        require_current = partial(self._listener.require_current, self._attempt)
        for step in range(executor.status.step, self._job.num_steps):
            self._faults.strike_if(FaultPoint.STEP, step)
            began = time.monotonic()
            record = executor.run(step)
            ended = time.monotonic()
            self._faults.strike_if(FaultPoint.APPLIED, step)
            self.tell(StepDone(self._attempt, step, record.loss, ended - began, ended, record.microbatches))
            if record.asks_for_checkpoint:
                self._books.take(self._attempt, step + 1, self._staged.plan, executor.state, require_current)
        self._books.drain(require_current)
        self.tell(Finished(self._attempt))

    def _before_action(self, step: int, action: Action) -> None:
        self._listener.require_current(self._attempt)
        if not self._has_resumed:
            self._has_resumed = True
            self.tell(Resumed(self._attempt, time.monotonic()))
        self._faults.strike_if(_POINTS.get(action.kind), step, action.microbatch)


_POINTS = {
    ActionKind.FORWARD: FaultPoint.FORWARD,
    ActionKind.BACKWARD: FaultPoint.BACKWARD,
    ActionKind.BACKWARD_INPUT: FaultPoint.BACKWARD,
    ActionKind.REDUCE: FaultPoint.REDUCE,
    ActionKind.APPLY: FaultPoint.COMMIT,
}


def _checked_actions(worker: str, message: Prepare) -> tuple[Action, ...]:
    """This worker's actions.

    Raises:
        ReconfigurationError: the list is not the one that the checksum was made of.
    """
    own_is_right = worker not in message.digests or message.digests[worker] == list_digest(message.actions)
    if not own_is_right or checksum(message.digests, message.reductions) != message.checksum:
        raise ReconfigurationError("the program does not have the checksum it came with", field="checksum", value=message.checksum)
    return tuple(parse_action(text) for text in message.actions)


def _holds_nothing(layer: int, kind: StateKind) -> NoReturn:
    raise ReconfigurationError(
        f"this worker was asked for the {kind.value} state of layer {layer} and holds none", field="migration"
    )


def _end_with_parent() -> None:
    """Have the kernel end this process when its fork server ends, and that one when the agent ends; even while frozen.

    The fork server lives for as long as anybody holds one pipe; workers that hold it too would keep it alive.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    server: Any = forkserver._forkserver
    if server._forkserver_alive_fd is not None:
        os.close(server._forkserver_alive_fd)
        server._forkserver_alive_fd = None
