"""One worker process: a listener that obeys at once, and a main thread that trains.

The main thread may be deep in a pass or in a collective; the listener answers the agent's heartbeat, hands rendezvous
keys over, and frees the main thread when a step is called off. All state belongs to the main thread.
"""

import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import NoReturn

import torch

from estimator.program import Action, ActionKind
from kintsugi.core.descriptors import ran_out
from kintsugi.core.errors import CommunicationError
from kintsugi.core.logs import get_logger
from kintsugi.runtime.checkpoints.bookkeeper import Bookkeeper
from kintsugi.runtime.faults import FaultPoint, FaultScript
from kintsugi.runtime.forking import end_with_fork_server, name_process
from kintsugi.runtime.messages import (
    Arm,
    CallOff,
    CheckpointEvery,
    Collect,
    Differing,
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
from kintsugi.runtime.models import TrainingJob
from kintsugi.runtime.options import WorkerOptions
from kintsugi.runtime.reach import Doorbell
from kintsugi.runtime.records.tracing import ActionTrace
from kintsugi.runtime.result import collected
from kintsugi.runtime.workers.commit import CommitRecord, Permit, anything
from kintsugi.runtime.workers.executor import Executor
from kintsugi.runtime.workers.listener import Line, Listener
from kintsugi.runtime.workers.replicas import ReplicasDifferError
from kintsugi.runtime.workers.stager import Stager, checked_actions
from kintsugi.runtime.workers.wiring import Wiring, own_job
from restorer.groups import Groups


def live(
    worker: str,
    connection: Line,
    make_job: Callable[[], TrainingJob],
    options: WorkerOptions,
    permit: Permit = anything,
) -> None:
    """The life of a worker process; returns when the agent says so or is gone. `permit` is asked before a step is applied."""
    end_with_fork_server()
    name_process(worker)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(options.num_threads)
    process = WorkerProcess(worker, connection, options, permit)
    signal.signal(signal.SIGTERM, lambda *_: process.ask_to_leave())
    try:
        process.run(make_job)
    except BaseException as error:  # the agent reports it to the user; a script's own `sys.exit` would pass for a loss
        process.tell(Failed.by(error))
        sys.exit(1)


class WorkerProcess:
    """The life of one worker."""

    def __init__(self, worker: str, connection: Line, options: WorkerOptions, permit: Permit) -> None:
        self._worker = worker
        self._permit = permit
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

    def ask_to_leave(self) -> None:
        """Have the agent find a plan without this worker, which goes on until it is let go; callable from signal handlers."""
        self._listener.is_leaving = True

    def run(self, make_job: Callable[[], TrainingJob]) -> None:
        """Learn the model, then obey until told to stop."""
        self._listener.start()
        self._faults.strike_if(FaultPoint.START)
        self._job = own_job(make_job, self._worker, self._options)
        self._wiring = Wiring(self._worker, torch.device(self._job.device), self._options)
        trace = ActionTrace(self._worker, self._options.trace)
        require_current = self._listener.require_current
        self._stager = Stager(
            self._worker,
            self._job,
            self._books,
            require_current,
            self._before_action,
            trace,
            self._wiring,
            self._permit,
            self._options.compare_every_steps,
        )
        gc.collect()
        gc.freeze()
        self.tell(Started(self._doorbell.address, self._stager.traits()))
        while not isinstance(message := self._listener.next(), Stop):
            try:
                self._obey(message)
            except ReplicasDifferError as error:
                self._differ(error)
            except (CommunicationError, OSError) as error:
                if isinstance(message, Prepare) and ran_out(error):
                    _end(self._worker, _NO_DESCRIPTORS, error)
                if isinstance(error, OSError):
                    raise
                self.tell(LinkBroken(self._attempt, str(error)))

    def _differ(self, error: ReplicasDifferError) -> None:
        """Tell what was found, and end where this worker is the one that is wrong: the others go on as from any loss."""
        verdict = error.verdict
        self.tell(Differing(self._attempt, error.step, verdict.layers, verdict.wrong, verdict.unsettled))
        if self._worker in verdict.wrong:
            _end(self._worker, _WRONG, error)
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
            if not message.is_over:
                self._train()
        elif isinstance(message, Collect):
            self._faults.strike_if(FaultPoint.COLLECT)
            state = self._executor.state if self._executor is not None else None
            self.tell(collected(state, message))
            self._faults.strike_if(FaultPoint.COLLECTED)

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
        actions = checked_actions(self._worker, message)
        if message.record is not None and self._executor is not None and self._executor.status.step == message.record.step:
            self._executor.roll_forward(message.record)
        groups = self._connect(message, actions)
        regrouped_at = time.monotonic()
        present = self._executor
        copied = self._stager.compare(message, groups, present)
        self._faults.strike_if(FaultPoint.TRANSFER)
        state = self._stager.state(message, groups, present.state if present is not None else None)
        transferred_at = time.monotonic()
        self._next_executor = self._stager.executor(message, actions, groups, state, copied=copied)
        self._staged = message
        self._faults.strike_if(FaultPoint.READY)
        self.tell(Ready(message.attempt, regrouped_at, transferred_at))

    def _connect(self, message: Prepare, actions: tuple[Action, ...]) -> Groups:
        self._groups = self._listener.groups_for(message.attempt, partial(self._wiring.groups, message, actions))
        self._groups.build(
            address=self._options.address_of(self._worker),
            timeout_seconds=self._options.connect_timeout_seconds,
            operation_timeout_seconds=self._options.operation_timeout_seconds,
        )
        return self._groups

    def _swap_in(self) -> None:
        """Done even when the attempt was called off since: the agent counts the state as moved once it said go."""
        old, self._executor, self._next_executor = self._executor, self._next_executor, None
        self._stager.staging.clear()
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
        for step in self._staged.steps(self._job.num_steps):
            self._faults.strike_if(FaultPoint.STEP, step, held=executor.state.parameters.values())
            began = time.monotonic()
            record = self._run_step(executor, step)
            ended = time.monotonic()
            self._faults.strike_if(FaultPoint.APPLIED, step, held=executor.state.parameters.values())
            self.tell(StepDone(self._attempt, step, record.loss, ended - began, ended, record.microbatches))
            if record.asks_for_checkpoint:
                self._books.take(self._attempt, step + 1, self._staged.plan, executor.state, require_current)
        if self._staged.is_unsaved:
            self._books.take(self._attempt, self._staged.start_step, self._staged.plan, executor.state, require_current)
        executor.compare()
        self._books.drain(require_current)
        self.tell(Finished(self._attempt))

    def _run_step(self, executor: Executor, step: int) -> CommitRecord:
        """Train one step; what the user's code makes of the messages of a step that was called off is no error of it.

        That replicas differ is told all the same: all have said what they hold, so it is no less so.
        """
        try:
            return executor.run(step)
        except ReplicasDifferError:
            raise
        except Exception:
            self._listener.require_current(self._attempt)
            raise

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


_NO_DESCRIPTORS = "has no descriptors left for connections, and ends: raise the hard limit (ulimit -Hn)"
_WRONG = "holds other numbers than most, and ends: test its host's memory and processors"


def _end(worker: str, why: str, error: Exception) -> NoReturn:
    """As gloo often does itself: no attempt with this worker would come to its end, and the others can go on without it."""
    get_logger("kintsugi.runtime").error(why, worker=worker, error=str(error))
    os._exit(1)
