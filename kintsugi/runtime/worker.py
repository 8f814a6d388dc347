"""One worker process: a listener that obeys at once, and a main thread that trains.

The main thread may be deep in a pass or in a collective; the listener answers the agent's heartbeat, hands rendezvous
keys over, and frees the main thread when a step is called off. All state belongs to the main thread.
"""

import ctypes
import gc
import hashlib
import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from typing import Any, NoReturn

import torch

from estimator.program import Action, ActionKind, checksum, list_digest, parse_action
from kintsugi.core.errors import CommunicationError, ReconfigurationError
from kintsugi.core.plan import StateKind
from kintsugi.runtime.commit import StepStatus
from kintsugi.runtime.executor import Executor
from kintsugi.runtime.faults import Fault, FaultPoint
from kintsugi.runtime.messages import (
    CallOff,
    Collect,
    Collected,
    Delivered,
    Failed,
    FaultInjected,
    Finished,
    FromWorker,
    Go,
    Heartbeat,
    LinkBroken,
    Prepare,
    Published,
    Quiesced,
    Ready,
    Resumed,
    Started,
    StepDone,
    Stop,
    ToWorker,
)
from kintsugi.runtime.models import TrainingJob, model_shape
from kintsugi.runtime.state import ModelState
from restorer.groups import Groups, Rendezvous
from restorer.reconfigure import migrate, pack

_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """How a worker process runs."""

    address: str = "127.0.0.1"
    """Of this host, where the other workers reach it."""
    num_threads: int = 1
    """For torch's own arithmetic."""
    heartbeat_seconds: float = 0.1
    connect_timeout_seconds: float = 20.0
    """For connecting the groups of a generation."""
    operation_timeout_seconds: float = 600.0
    """For one message or reduction; failures are noticed and called off long before."""
    faults: tuple[Fault, ...] = ()


def worker_main(worker: str, connection: Connection, make_job: Callable[[], TrainingJob], options: WorkerOptions) -> None:
    """Entry point of a worker process; returns when the agent says so or is gone."""
    _end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(options.num_threads)
    process = WorkerProcess(worker, connection, options)
    try:
        process.run(make_job)
    except Exception:  # the agent reports it to the user; nothing else would
        process.send(Failed(traceback.format_exc()))
        sys.exit(1)


class WorkerProcess:
    """The life of one worker."""

    def __init__(self, worker: str, connection: Connection, options: WorkerOptions) -> None:
        self._worker = worker
        self._connection = connection
        self._options = options
        self._faults = [fault for fault in options.faults if fault.worker == worker]
        self._send_lock = threading.Lock()
        self._inbox: queue.SimpleQueue[ToWorker] = queue.SimpleQueue()
        self._rendezvous: Rendezvous | None = None
        self._groups: Groups | None = None
        self._called_off = 0
        self._attempt = 0
        self._generation = 0
        self._executor: Executor | None = None
        self._next_executor: Executor | None = None
        self._has_resumed = False

    def send(self, message: FromWorker) -> None:
        """Tell the agent something; from any thread."""
        with self._send_lock:
            self._connection.send(message)

    def run(self, make_job: Callable[[], TrainingJob]) -> None:
        """Learn the model, then obey until told to stop."""
        threading.Thread(target=self._listen, name="listener", daemon=True).start()
        self._strike_if(FaultPoint.START)
        self._job = make_job()
        self._shape = model_shape(self._job)
        gc.collect()
        gc.freeze()
        self.send(Started())
        while not isinstance(message := self._inbox.get(), Stop):
            try:
                self._obey(message)
            except CommunicationError as error:
                self.send(LinkBroken(self._attempt, str(error)))

    def _listen(self) -> None:
        """Obey at once what cannot wait; the process ends with the pipe."""
        try:
            while True:
                if not self._connection.poll(self._options.heartbeat_seconds):
                    self.send(Heartbeat())
                    continue
                message: ToWorker = self._connection.recv()
                if isinstance(message, Delivered):
                    self._deliver(message)
                    continue
                if isinstance(message, Prepare):
                    self._rendezvous = Rendezvous(self._publisher(message.attempt))
                if isinstance(message, CallOff):
                    self._call_off(message.attempt)
                self._inbox.put(message)
        except (EOFError, OSError):
            _leave()

    def _publisher(self, attempt: int) -> Callable[[str, bytes], None]:
        return lambda key, value: self.send(Published(attempt, key, value))

    def _deliver(self, message: Delivered) -> None:
        if self._rendezvous is not None and message.key.startswith(f"attempt{message.attempt}/"):
            self._rendezvous.deliver(message.key, message.value)

    def _call_off(self, attempt: int) -> None:
        self._called_off = attempt
        if self._rendezvous is not None:
            self._rendezvous.close()
        if self._groups is not None:
            self._groups.abort()

    def _obey(self, message: ToWorker) -> None:
        if isinstance(message, CallOff):
            self._quiesce(message.attempt)
        elif isinstance(message, Prepare):
            self._prepare(message)
        elif isinstance(message, Go):
            self._swap_in()
            self._train()
        elif isinstance(message, Collect):
            self.send(self._collect(message))

    def _quiesce(self, attempt: int) -> None:
        self._attempt = attempt
        if self._next_executor is not None:
            self._next_executor.groups.close()
            self._next_executor = None
        self.send(Quiesced(attempt, self._executor.status if self._executor is not None else None))

    def _require_current(self, attempt: int) -> None:
        if self._called_off > attempt:
            raise CommunicationError(f"attempt {attempt} was called off")

    def _prepare(self, message: Prepare) -> None:
        """Stage everything the plan needs; the present state stays as it is, but for the step that is settled."""
        self._attempt = message.attempt
        self._generation = message.plan.generation
        self._strike_if(FaultPoint.REGROUP)
        actions = _checked_actions(self._worker, message)
        if message.record is not None and self._executor is not None and self._executor.status.step == message.record.step:
            self._executor.roll_forward(message.record)
        groups = self._connect(message)
        regrouped_at = time.monotonic()
        self._strike_if(FaultPoint.TRANSFER)
        state = self._staged_state(message, groups)
        transferred_at = time.monotonic()
        self._next_executor = self._staged_executor(message, actions, groups, state)
        self._strike_if(FaultPoint.READY)
        self.send(Ready(message.attempt, regrouped_at, transferred_at))

    def _connect(self, message: Prepare) -> Groups:
        assert self._rendezvous is not None
        subgroups = [message.plan.workers, *(reduction.workers for reduction in message.reductions)]
        self._groups = Groups(self._worker, message.members, subgroups, self._rendezvous, f"attempt{message.attempt}")
        self._require_current(message.attempt)
        self._groups.build(
            address=self._options.address,
            timeout_seconds=self._options.connect_timeout_seconds,
            operation_timeout_seconds=self._options.operation_timeout_seconds,
        )
        return self._groups

    def _staged_state(self, message: Prepare, groups: Groups) -> ModelState | None:
        stage = message.plan.stage_of.get(self._worker)
        old = self._executor.state if self._executor is not None else None
        if message.is_initial:
            return ModelState.initial(self._job, stage.layers) if stage is not None else None
        export = old.export if old is not None else _holds_nothing
        arrived = migrate(message.migration, self._worker, groups.transport(torch.device(self._job.device)), export)
        if stage is None:
            return None
        return (old or ModelState(self._job, {}, {})).rebuilt(stage.layers, arrived)

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
        )
        executor.status = StepStatus(step=message.start_step, last_record=message.record)
        return executor

    def _swap_in(self) -> None:
        """Done even when the attempt was called off since: the agent counts the state as moved once it said go."""
        old, self._executor, self._next_executor = self._executor, self._next_executor, None
        self._has_resumed = False
        if old is not None:
            old.groups.close()

    def _train(self) -> None:
        executor = self._executor
        if executor is None:
            return
        for step in range(executor.status.step, self._job.num_steps):
            self._strike_if(FaultPoint.STEP, step)
            began = time.monotonic()
            record = executor.run(step)
            ended = time.monotonic()
            self._strike_if(FaultPoint.APPLIED, step)
            self.send(StepDone(self._attempt, step, record.loss, ended - began, ended))
        self.send(Finished(self._attempt))

    def _before_action(self, step: int, action: Action) -> None:
        self._require_current(self._attempt)
        if not self._has_resumed:
            self._has_resumed = True
            self.send(Resumed(self._attempt, time.monotonic()))
        if self._faults:
            self._strike_if(_POINTS.get(action.kind), step, action.microbatch)

    def _strike_if(self, point: FaultPoint | None, step: int | None = None, microbatch: int | None = None) -> None:
        for fault in self._faults:
            if (
                fault.at is point
                and fault.step in (None, step)
                and fault.microbatch in (None, microbatch)
                and fault.generation in (None, self._generation)
            ):
                self._faults.remove(fault)
                self.send(FaultInjected(time.monotonic()))
                fault.strike()
                return

    def _collect(self, message: Collect) -> Collected:
        if self._executor is None:
            return Collected({}, {})
        state = self._executor.state
        digests, parameters = {}, {}
        for layer in state.modules:
            values = pack(state.export(layer, StateKind.PARAMETER))
            moments = pack(state.export(layer, StateKind.OPTIMIZER))
            parts = (values[0], values[1].numpy().tobytes(), moments[0], moments[1].numpy().tobytes())
            digests[layer] = hashlib.sha256(b"".join(parts)).hexdigest()
            if message.with_parameters:
                parameters[layer] = (parts[0], parts[1])
        return Collected(digests, parameters)


_POINTS = {
    ActionKind.FORWARD: FaultPoint.FORWARD,
    ActionKind.BACKWARD: FaultPoint.BACKWARD,
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


def _leave() -> NoReturn:
    """End at once: the agent is gone, and the main thread may be stuck in a collective."""
    os._exit(0)
