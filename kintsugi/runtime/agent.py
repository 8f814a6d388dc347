"""The host agent: starts the workers, notices their failures, and moves the survivors to the next plan.

One thread runs the protocol. A loss at any moment begins a new attempt, which supersedes whatever was under way:

    lost -> fence -> call off (all survivors) -> quiesced (all)  -> prepare (all) -> ready (all) -> go -> training
                  -> decisions.after(events), in a thread        /
"""

import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import singledispatchmethod
from multiprocessing import Pipe
from multiprocessing.connection import wait
from types import TracebackType
from typing import Self
from uuid import uuid4

import torch
from torch import Tensor

from estimator.program import compile_program
from kintsugi.core.errors import ReconfigurationError, UnavailableError, WorkerError
from kintsugi.core.membership import Event, EventKind
from kintsugi.core.messages import Measurement
from kintsugi.core.plan import Decision, Migration, Plan
from kintsugi.runtime.commit import StepStatus, resolve
from kintsugi.runtime.decisions import Decisions, JobRequest
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
)
from kintsugi.runtime.models import TrainingJob
from kintsugi.runtime.processes import WorkerHandle, forkserver
from kintsugi.runtime.recovery import RecoveryTimeline
from kintsugi.runtime.worker import WorkerOptions
from restorer.groups import members_of
from restorer.reconfigure import unpack


class Phase(StrEnum):
    """What the job is doing."""

    STARTING = "starting"
    QUIESCING = "quiescing"
    """Survivors leave the interrupted step while the next plan is decided."""
    PREPARING = "preparing"
    """Survivors connect their groups and transfer state."""
    TRAINING = "training"
    COLLECTING = "collecting"


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentOptions:
    """How patient the agent is, and how its workers run."""

    worker: WorkerOptions = field(default_factory=WorkerOptions)
    start_timeout_seconds: float = 120.0
    """For a worker process to know its model."""
    heartbeat_timeout_seconds: float = 2.0
    """Silence after which a worker counts as frozen and is fenced."""
    quiesce_timeout_seconds: float = 10.0
    """For a survivor to leave the interrupted step; whoever does not is fenced."""
    prepare_timeout_seconds: float = 60.0
    """For all members to be ready for a plan."""
    link_grace_seconds: float = 3.0
    """How long a broken link waits for the loss that explains it before the same workers regroup."""
    max_idle_attempts: int = 3
    """Attempts in a row without a loss between them after which the job stops."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """What a run came to."""

    losses: tuple[float, ...]
    """Mean over the global batch, by step. Shape [steps]."""
    step_seconds: tuple[float, ...]
    """Of the slowest worker, by step. Shape [steps]."""
    parameters: dict[str, Tensor]
    """By canonical name, on the CPU."""
    digests: dict[int, dict[str, str]]
    """SHA-256 of each layer's state (parameters, buffers, optimizer) by holder: equal where replicas are bitwise equal."""
    recoveries: tuple[RecoveryTimeline, ...]
    decisions: tuple[Decision, ...]


Observer = Callable[["Agent"], None]
"""Called after every batch of messages, from the agent's thread."""


class Agent(AbstractContextManager["Agent"]):
    """Runs one job on this host's workers. Use it as a context manager: every process ends on every path."""

    def __init__(
        self,
        make_job: Callable[[], TrainingJob],
        request: JobRequest,
        decisions: Decisions,
        *,
        options: AgentOptions | None = None,
        observer: Observer | None = None,
    ) -> None:
        """Nothing starts before `run`.

        Args:
            make_job: module-level function (or a partial of one) that every worker calls to know the job.
            request: what the plans are made from; its cluster names the workers.
            decisions: answers failures with plans.
            options: patience and worker options.
            observer: sees the agent after every change, for a live view or for striking workers.
        """
        self._make_job = make_job
        self._request = request
        self._decisions = decisions
        self._options = options or AgentOptions()
        self._observer = observer
        self._run_id = uuid4().hex[:12]
        self._workers: dict[str, WorkerHandle] = {}
        self._started: set[str] = set()
        self._decider = ThreadPoolExecutor(max_workers=1, thread_name_prefix="decisions")
        self._future: Future[Decision] | None = None
        self._wake_receiver, self._wake_sender = Pipe(duplex=False)
        self._attempts = itertools.count(1)
        self._attempt = 0
        self._idle_attempts = 0
        self._statuses: dict[str, StepStatus | None] = {}
        self._ready: dict[str, Ready] = {}
        self._resumed: dict[str, float] = {}
        self._finished: set[str] = set()
        self._collected: dict[str, Collected] = {}
        self._members: tuple[str, ...] = ()
        self._applied: Plan | None = None
        self._broken: tuple[float, str] | None = None
        """When a link broke in this attempt, and what its worker said."""
        self._phase_began_at = time.monotonic()
        self._seconds: dict[int, float] = {}
        self.phase = Phase.STARTING
        self.losses: dict[int, float] = {}
        self.recoveries: list[RecoveryTimeline] = []
        self.decisions: list[Decision] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def decision(self) -> Decision:
        """The latest decision."""
        return self.decisions[-1]

    @property
    def alive(self) -> tuple[str, ...]:
        """Workers that have not been lost, in cluster order."""
        return tuple(self._workers)

    def handle(self, worker: str) -> WorkerHandle:
        """The process of a living worker."""
        return self._workers[worker]

    def run(self) -> RunResult:
        """Train to the last step.

        Raises:
            InfeasibleError: too much was lost; no plan exists for the workers that are left.
            WorkerError: the trainer's own code raised.
            ReconfigurationError: the survivors could not be brought onto a plan.
            UnavailableError: a worker did not start, or the service did not answer, in time.
        """
        self.decisions.append(self._decisions.start(self._request))
        context = forkserver()
        for worker in self._request.cluster.workers:
            self._workers[worker.id] = WorkerHandle(worker.id, self._make_job, self._options.worker, context)
        self._begin_attempt(Phase.STARTING)
        while not (self.phase is Phase.COLLECTING and set(self.decision.plan.workers) <= self._collected.keys()):
            self._poll()
        return self._result()

    def close(self) -> None:
        """End every process and thread of the job."""
        for handle in self._workers.values():
            handle.send(Stop())
        for handle in self._workers.values():
            handle.fence()
        self._workers.clear()
        self._decider.shutdown(wait=True, cancel_futures=True)
        self._wake_receiver.close()
        self._wake_sender.close()

    # The loop: one batch of messages, losses and deadlines at a time.

    def _poll(self) -> None:
        connections = {handle.connection: handle for handle in self._workers.values()}
        sentinels = {handle.process.sentinel: handle for handle in self._workers.values()}
        ready = wait([*connections, *sentinels, self._wake_receiver], timeout=self._options.worker.heartbeat_seconds)
        lost = [sentinels[item] for item in ready if isinstance(item, int)]
        for item in ready:
            if item is self._wake_receiver:
                self._wake_receiver.recv()
            elif not isinstance(item, int) and item in connections:
                self._drain(connections[item])
        lost += [handle for handle in self._frozen() if handle not in lost]
        if lost:
            self._lose(lost)
        self._check_deadlines()
        self._advance()
        if self._observer is not None:
            self._observer(self)

    def _drain(self, handle: WorkerHandle) -> None:
        """Take all messages that are there; the end of the pipe is noticed by the process's sentinel."""
        while handle.connection.poll():
            message = handle.receive()
            if message is None:
                return
            self._on(message, handle)

    def _frozen(self) -> list[WorkerHandle]:
        limit = time.monotonic() - self._options.heartbeat_timeout_seconds
        return [
            handle
            for worker, handle in self._workers.items()
            if worker in self._started and handle.last_heard_at < limit and not handle.connection.poll()
        ]

    def _lose(self, handles: Sequence[WorkerHandle]) -> None:
        """Fence workers, and begin to recover from their loss."""
        detected_at = time.monotonic()
        events = []
        for handle in handles:
            self._drain(handle)
            del self._workers[handle.worker]
            handle.fence()
            kind = EventKind.WORKER_FAILED
            events.append(Event(kind=kind, id=f"{self._run_id}-{handle.worker}", generation=0, worker=handle.worker))
        self._note_loss(handles, detected_at)
        self._idle_attempts = 0
        self._future = self._decider.submit(self._decide, events)
        self._future.add_done_callback(lambda _: self._wake_sender.send(None))
        self._begin_attempt(Phase.QUIESCING)

    def _note_loss(self, handles: Iterable[WorkerHandle], detected_at: float) -> None:
        is_under_way = bool(self.recoveries) and self.recoveries[-1].resumed_at is None
        if not is_under_way:
            self.recoveries.append(RecoveryTimeline(detected_at=detected_at))
        timeline = self.recoveries[-1]
        for handle in handles:
            timeline.lost.append(handle.worker)
            if handle.struck_at is not None and timeline.failed_at is None:
                timeline.failed_at = handle.struck_at

    def _decide(self, events: Sequence[Event]) -> Decision:
        """In the decider's thread: events carry the generation that is decided by then."""
        generation = self.decisions[-1].plan.generation
        decision = self._decisions.after([replace(event, generation=generation) for event in events])
        self.decisions.append(decision)
        return decision

    def _begin_attempt(self, phase: Phase) -> None:
        self._attempt = next(self._attempts)
        self._enter(phase)
        self._statuses, self._ready, self._resumed, self._collected = {}, {}, {}, {}
        self._finished.clear()
        self._broken = None
        for handle in self._workers.values():
            handle.send(CallOff(self._attempt))

    def _regroup(self, why: str) -> None:
        """Try again with the same workers."""
        self._idle_attempts += 1
        if self._idle_attempts >= self._options.max_idle_attempts:
            raise ReconfigurationError(f"gave up after {self._idle_attempts} attempts without a loss between them: {why}")
        self._begin_attempt(Phase.QUIESCING)

    def _enter(self, phase: Phase) -> None:
        self.phase = phase
        self._phase_began_at = time.monotonic()

    def _check_deadlines(self) -> None:
        elapsed = time.monotonic() - self._phase_began_at
        silent = [handle for worker, handle in self._workers.items() if worker not in self._statuses]
        if self.phase is Phase.STARTING and elapsed > self._options.start_timeout_seconds and silent:
            names = ", ".join(handle.worker for handle in silent)
            raise UnavailableError(f"did not start within {self._options.start_timeout_seconds:g} s", field="workers", value=names)
        if self.phase is Phase.QUIESCING and elapsed > self._options.quiesce_timeout_seconds and silent:
            self._lose([handle for handle in silent if handle.worker in self._started])
        elif self.phase is Phase.PREPARING and elapsed > self._options.prepare_timeout_seconds:
            self._regroup(f"not ready within {self._options.prepare_timeout_seconds:g} s")
        elif self._broken is not None and time.monotonic() - self._broken[0] > self._options.link_grace_seconds:
            self._regroup(self._broken[1])

    def _advance(self) -> None:
        """Take the step of the protocol that everything is there for."""
        if self.phase in (Phase.STARTING, Phase.QUIESCING):
            is_decided = self._future is None or self._future.done()
            if is_decided and self._statuses.keys() >= self._workers.keys():
                self._prepare()
        elif self.phase is Phase.PREPARING and self._ready.keys() >= set(self._members):
            self._go()
        elif self.phase is Phase.TRAINING and self._finished >= set(self.decision.plan.workers):
            self._enter(Phase.COLLECTING)
            for worker in self.decision.plan.workers:
                self._workers[worker].send(Collect(with_parameters=True))

    # The two messages that move all members.

    def _prepare(self) -> None:
        if self._future is not None:
            self._future.result()
            self._future = None
        self._note(quiesced_at=time.monotonic(), planned_at=time.monotonic())
        decision, plan = self.decision, self.decision.plan
        statuses = [status for status in self._statuses.values() if status is not None]
        record = resolve(statuses)
        start_step = max([status.step for status in statuses] + ([record.step + 1] if record else []), default=0)
        program = compile_program(plan, self._request.profile, self._request.cluster)
        involved = set(plan.workers) | set(self._applied.workers if self._applied else ())
        self._members = tuple(worker for worker in self._workers if worker in involved)
        has_moved = self._applied is not None and self._applied.generation == plan.generation
        message = Prepare(
            attempt=self._attempt,
            plan=plan,
            actions=(),
            digests=program.digests,
            reductions=program.reductions,
            checksum=program.checksum,
            members=self._members,
            migration=Migration() if has_moved else decision.migration,
            record=record,
            start_step=start_step,
            is_initial=start_step == 0,
        )
        self._enter(Phase.PREPARING)
        for worker in self._members:
            self._workers[worker].send(replace(message, actions=program.texts.get(worker, ())))

    def _go(self) -> None:
        self._note(
            regrouped_at=max(ready.regrouped_at for ready in self._ready.values()),
            transferred_at=max(ready.transferred_at for ready in self._ready.values()),
        )
        self._enter(Phase.TRAINING)
        for worker in self._members:
            self._workers[worker].send(Go(self._attempt))
        self._applied = self.decision.plan
        if self.recoveries:
            self.recoveries[-1].generation = self._applied.generation
            self.recoveries[-1].policy = self._applied.policy.value

    def _note(self, **instants: float) -> None:
        """Write phase ends into the timeline of the recovery under way."""
        if self.recoveries and self.recoveries[-1].resumed_at is None:
            for name, instant in instants.items():
                setattr(self.recoveries[-1], name, instant)

    # What workers say.

    @singledispatchmethod
    def _on(self, message: FromWorker, handle: WorkerHandle) -> None:
        raise TypeError(f"{handle.worker} sent {message!r}")

    @_on.register
    def _(self, _: Heartbeat, __: WorkerHandle) -> None:
        return

    @_on.register
    def _(self, _: Started, handle: WorkerHandle) -> None:
        self._started.add(handle.worker)

    @_on.register
    def _(self, message: Published, _: WorkerHandle) -> None:
        if message.attempt == self._attempt:
            for member in members_of(message.key):
                if member in self._workers:
                    self._workers[member].send(Delivered(message.attempt, message.key, message.value))

    @_on.register
    def _(self, message: Quiesced, handle: WorkerHandle) -> None:
        if message.attempt == self._attempt:
            self._statuses[handle.worker] = message.status

    @_on.register
    def _(self, message: Ready, handle: WorkerHandle) -> None:
        if message.attempt == self._attempt:
            self._ready[handle.worker] = message

    @_on.register
    def _(self, message: Resumed, handle: WorkerHandle) -> None:
        if message.attempt == self._attempt:
            self._resumed[handle.worker] = message.at
            if self._resumed.keys() >= set(self.decision.plan.workers):
                self._report_applied()

    @_on.register
    def _(self, message: StepDone, _: WorkerHandle) -> None:
        self.losses[message.step] = message.loss
        self._seconds[message.step] = max(message.seconds, self._seconds.get(message.step, 0.0))
        if message.attempt == self._attempt and self.recoveries and self.recoveries[-1].committed_at is None:
            self.recoveries[-1].committed_at = message.at
            self._idle_attempts = 0

    @_on.register
    def _(self, message: Finished, handle: WorkerHandle) -> None:
        if message.attempt == self._attempt:
            self._finished.add(handle.worker)

    @_on.register
    def _(self, message: LinkBroken, handle: WorkerHandle) -> None:
        if message.attempt == self._attempt and self.phase in (Phase.PREPARING, Phase.TRAINING) and self._broken is None:
            self._broken = (time.monotonic(), f"{handle.worker}: {message.reason}")

    @_on.register
    def _(self, message: Collected, handle: WorkerHandle) -> None:
        self._collected[handle.worker] = message

    @_on.register
    def _(self, message: Failed, handle: WorkerHandle) -> None:
        raise WorkerError(f"{handle.worker} raised:\n{message.traceback}", field="worker", value=handle.worker)

    @_on.register
    def _(self, message: FaultInjected, handle: WorkerHandle) -> None:
        handle.struck_at = message.at

    # What the world is told.

    def _report_applied(self) -> None:
        plan = self.decision.plan
        self._note(resumed_at=max(self._resumed.values()))
        phases = self.recoveries[-1].phase_seconds() if self.recoveries else {}
        measured = Measurement(step=max(self.losses, default=None), phase_seconds=phases)
        self._decider.submit(self._decisions.applied, plan.generation, measured)

    def _result(self) -> RunResult:
        parameters: dict[str, Tensor] = {}
        digests: dict[int, dict[str, str]] = {}
        for worker, collected in self._collected.items():
            for layer, digest in collected.digests.items():
                digests.setdefault(layer, {})[worker] = digest
            for header, payload in collected.parameters.values():
                entries = unpack(header, torch.frombuffer(bytearray(payload), dtype=torch.uint8))
                parameters |= {name: value for (name, _), value in entries.items()}
        steps = range(len(self.losses))
        return RunResult(
            losses=tuple(self.losses[step] for step in steps),
            step_seconds=tuple(self._seconds[step] for step in steps),
            parameters=parameters,
            digests=digests,
            recoveries=tuple(self.recoveries),
            decisions=tuple(self.decisions),
        )
