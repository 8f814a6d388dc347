"""The host agent: starts the workers, notices their failures, and moves the survivors to the next plan.

One thread runs the protocol. A loss at any moment begins a new attempt, which supersedes whatever was under way:

    lost -> fence -> call off (all survivors) -> quiesced (all)  -> prepare (all) -> ready (all) -> go -> training
                  -> decisions.after(events), in a thread        /
"""

import itertools
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import singledispatchmethod
from types import TracebackType
from uuid import uuid4

from estimator.program import compile_program
from kintsugi.core.decision import Decision, Migration
from kintsugi.core.errors import ReconfigurationError, UnavailableError, WorkerError, error_from
from kintsugi.core.membership import Event, EventKind
from kintsugi.core.messages import Measurement
from kintsugi.core.plan import Plan, Policy
from kintsugi.runtime.attempt import Attempt, Phase
from kintsugi.runtime.commit import resolve
from kintsugi.runtime.decider import Decider
from kintsugi.runtime.decisions import Decisions, JobRequest
from kintsugi.runtime.fleet import Fleet
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
)
from kintsugi.runtime.models import TrainingJob
from kintsugi.runtime.options import AgentOptions
from kintsugi.runtime.processes import WorkerHandle
from kintsugi.runtime.recovery import RecoveryTimeline
from kintsugi.runtime.result import RunResult, merged_digests, merged_parameters
from restorer.groups import members_of

STOP_SECONDS = 2.0
"""For workers whose job is done to end by themselves."""


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
        self._request = request
        self._options = options or AgentOptions()
        self._observer = observer
        self._run_id = uuid4().hex[:12]
        self._fleet = Fleet(make_job, self._options.worker)
        self._decider = Decider(decisions, self._options.decision_timeout_seconds)
        self._started: dict[str, float] = {}
        """When each worker knew its model, on the monotonic clock."""
        self._numbers = itertools.count(1)
        self._attempt = Attempt(0)
        self._idle_attempts = 0
        self._applied: Plan | None = None
        self._phase_began_at = time.monotonic()
        self._timeline: RecoveryTimeline | None = None
        """Of the recovery under way."""
        self._seconds: dict[int, tuple[int, float]] = {}
        """Attempt in which each step was done, and the slowest worker's time."""
        self.phase = Phase.STARTING
        self.losses: dict[int, float] = {}
        """Mean loss over the global batch, by step."""
        self.recoveries: list[RecoveryTimeline] = []

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def decision(self) -> Decision:
        """The latest decision."""
        return self._decider.decisions[-1]

    @property
    def alive(self) -> tuple[str, ...]:
        """Workers that have not been lost, in cluster order."""
        return tuple(self._fleet.handles)

    def handle(self, worker: str) -> WorkerHandle:
        """The process of a living worker."""
        return self._fleet.handles[worker]

    def run(self) -> RunResult:
        """Train to the last step.

        Raises:
            InfeasibleError: too much was lost; no plan exists for the workers that are left.
            WorkerError: the trainer's own code raised.
            ReconfigurationError: the survivors could not be brought onto a plan.
            UnavailableError: a worker did not start, or the service did not answer, in time.
        """
        self._decider.start(self._request)
        self._fleet.start([worker.id for worker in self._request.cluster.workers])
        self._begin_attempt(Phase.STARTING)
        while not (self.phase is Phase.COLLECTING and set(self.decision.plan.workers) <= self._attempt.collected.keys()):
            self._poll()
        steps = range(len(self.losses))
        return RunResult(
            losses=tuple(self.losses[step] for step in steps),
            step_seconds=tuple(self._seconds[step][1] for step in steps),
            parameters=merged_parameters(self._attempt.collected),
            digests=merged_digests(self._attempt.collected),
            recoveries=tuple(self.recoveries),
            decisions=tuple(self._decider.decisions),
        )

    def close(self) -> None:
        """End every process and thread of the job."""
        self._fleet.close(grace_seconds=STOP_SECONDS if self.phase is Phase.COLLECTING else 0.0)
        self._decider.close()

    # The loop: one batch of messages, losses and deadlines at a time.

    def _poll(self) -> None:
        news = self._fleet.listen(self._decider.wake, self._options.worker.heartbeat_seconds)
        for handle, message in news.messages:
            self._on(message, handle)
        frozen = self._fleet.frozen(self._options, self._started.keys())
        if lost := list(dict.fromkeys([*news.ended, *frozen])):
            self._lose(lost)
        self._check_deadlines()
        self._advance()
        if self._observer is not None:
            self._observer(self)

    def _lose(self, handles: Sequence[WorkerHandle]) -> None:
        """Fence workers, and begin to recover from their loss."""
        if self._timeline is None:
            self._timeline = RecoveryTimeline(detected_at=time.monotonic())
            self.recoveries.append(self._timeline)
        timeline = self._timeline
        for handle in handles:
            self._fleet.remove(handle)
            timeline.lost.append(handle.worker)
            timeline.failed_at = timeline.failed_at or handle.struck_at
        self._decider.submit([self._failure(handle.worker) for handle in handles])
        self._idle_attempts = 0
        self._begin_attempt(Phase.QUIESCING)

    def _failure(self, worker: str) -> Event:
        name = f"{self._run_id}-{self._attempt.number}-{worker}"
        return Event(kind=EventKind.WORKER_FAILED, id=name, generation=0, worker=worker)

    def _begin_attempt(self, phase: Phase) -> None:
        self._attempt = Attempt(next(self._numbers))
        self._enter(phase)
        for handle in self._fleet.handles.values():
            handle.send(CallOff(self._attempt.number))

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
        now, options = time.monotonic(), self._options
        elapsed = now - self._phase_began_at
        unstarted = [worker for worker in self._fleet.handles if worker not in self._started]
        silent = [handle for worker, handle in self._fleet.handles.items() if self._is_overdue(worker, now)]
        if unstarted and elapsed > options.start_timeout_seconds:
            raise UnavailableError(f"did not start within {options.start_timeout_seconds:g} s", field="workers", value=unstarted)
        prepare_seconds = options.prepare_timeout_seconds + 2 * self.decision.migration.makespan_seconds
        if silent:
            self._lose(silent)
        elif self.phase is Phase.PREPARING and elapsed > prepare_seconds:
            self._regroup(f"not ready within {prepare_seconds:g} s")
        elif self._attempt.broken is not None and now - self._attempt.broken[0] > options.link_grace_seconds:
            self._regroup(self._attempt.broken[1])

    def _is_overdue(self, worker: str, now: float) -> bool:
        """Whether a worker that could long have left the step has not."""
        if worker in self._attempt.statuses or worker not in self._started:
            return False
        called_off_at = max(self._started[worker], self._phase_began_at)
        price = self.decision.estimate
        pass_seconds = max((stage.forward_seconds + stage.backward_seconds for stage in price.stages), default=0.0)
        patience = self._options.quiesce_timeout_seconds + 3 * pass_seconds + 2 * self.decision.migration.makespan_seconds
        return now - called_off_at > patience

    def _advance(self) -> None:
        """Take the step of the protocol that everything is there for."""
        if self.phase in (Phase.STARTING, Phase.QUIESCING):
            if self._attempt.statuses.keys() >= self._fleet.handles.keys() and self._decider.is_done():
                self._prepare()
        elif self.phase is Phase.PREPARING and self._attempt.ready.keys() >= set(self._attempt.members):
            self._go()
        elif self.phase is Phase.TRAINING and self._attempt.finished >= set(self.decision.plan.workers):
            self._collect()

    # The two messages that move all members.

    def _prepare(self) -> None:
        """Settle the interrupted step, and have all members stage the plan."""
        planned_at = self._decider.finish()
        self._note(quiesced_at=time.monotonic(), planned_at=planned_at)
        decision, plan = self.decision, self.decision.plan
        if strangers := [worker for worker in plan.workers if worker not in self._fleet.handles]:
            self._decider.submit([self._failure(worker) for worker in strangers])
            self._regroup(f"the plan names workers that are not here: {', '.join(strangers)}")
            return
        if decision.policy is Policy.CHECKPOINT_RESTART:
            raise ReconfigurationError("the plan restarts from a checkpoint, and this job has written none", field="policy")
        statuses = [status for status in self._attempt.statuses.values() if status is not None]
        record = resolve(statuses)
        start_step = max([status.step for status in statuses] + ([record.step + 1] if record else []), default=0)
        program = compile_program(plan, self._request.profile, self._request.cluster)
        involved = {*plan.workers, *(self._applied.workers if self._applied else ())}
        self._attempt.members = tuple(worker for worker in self._fleet.handles if worker in involved)
        is_in_place = self._applied is not None and self._applied.generation == plan.generation
        self._enter(Phase.PREPARING)
        for worker in self._attempt.members:
            message = Prepare(
                attempt=self._attempt.number,
                plan=plan,
                actions=program.texts.get(worker, ()),
                digests=program.digests,
                reductions=program.reductions,
                checksum=program.checksum,
                members=self._attempt.members,
                migration=Migration() if is_in_place else decision.migration,
                record=record,
                start_step=start_step,
                is_initial=start_step == 0,
            )
            self._fleet.handles[worker].send(message)

    def _go(self) -> None:
        """Have all members swap the staged state in: from here on it lies where the plan puts it."""
        self._note(
            regrouped_at=max(ready.regrouped_at for ready in self._attempt.ready.values()),
            transferred_at=max(ready.transferred_at for ready in self._attempt.ready.values()),
            generation=self.decision.plan.generation,
            policy=self.decision.plan.policy.value,
        )
        self._enter(Phase.TRAINING)
        for worker in self._attempt.members:
            self._fleet.handles[worker].send(Go(self._attempt.number))
        self._applied = self.decision.plan
        self._decider.tell_applied(self._applied.generation)

    def _collect(self) -> None:
        """Ask all holders for digests, and the first holder of each layer for its parameters."""
        self._timeline = None
        self._enter(Phase.COLLECTING)
        plan = self.decision.plan
        for worker in plan.workers:
            layers = tuple(layer for layer in plan.stage_of[worker].layers if plan.holders[layer][0] == worker)
            self._fleet.handles[worker].send(Collect(self._attempt.number, layers))

    def _note(self, **values: float | str | None) -> None:
        """Write into the timeline of the recovery under way."""
        if self._timeline is not None:
            for name, value in values.items():
                setattr(self._timeline, name, value)

    # What workers say. What belongs to an attempt that was superseded does not count.

    @singledispatchmethod
    def _on(self, message: FromWorker, handle: WorkerHandle) -> None:
        raise TypeError(f"{handle.worker} sent {message!r}")

    @_on.register
    def _(self, _: Heartbeat, __: WorkerHandle) -> None:
        """That it was heard is all there is to it."""

    @_on.register
    def _(self, _: Started, handle: WorkerHandle) -> None:
        self._started[handle.worker] = time.monotonic()

    @_on.register
    def _(self, message: Published, _: WorkerHandle) -> None:
        if message.attempt == self._attempt.number:
            for member in members_of(message.key):
                if member in self._fleet.handles:
                    self._fleet.handles[member].send(Delivered(message.attempt, message.key, message.value))

    @_on.register
    def _(self, message: Quiesced, handle: WorkerHandle) -> None:
        if message.attempt == self._attempt.number:
            self._attempt.statuses[handle.worker] = message.status

    @_on.register
    def _(self, message: Ready, handle: WorkerHandle) -> None:
        if message.attempt == self._attempt.number:
            self._attempt.ready[handle.worker] = message

    @_on.register
    def _(self, message: Resumed, handle: WorkerHandle) -> None:
        if message.attempt == self._attempt.number:
            self._attempt.resumed[handle.worker] = message.at
            if self._attempt.resumed.keys() >= set(self.decision.plan.workers):
                self._note(resumed_at=max(self._attempt.resumed.values()))
                self._timeline = None

    @_on.register
    def _(self, message: StepDone, _: WorkerHandle) -> None:
        self.losses[message.step] = message.loss
        self._seconds[message.step] = max((message.attempt, message.seconds), self._seconds.get(message.step, (0, 0.0)))
        if message.attempt != self._attempt.number:
            return
        self._idle_attempts = 0
        if self.recoveries and self.recoveries[-1].committed_at is None:
            self.recoveries[-1].committed_at = message.at
            measured = Measurement(step=message.step, phase_seconds=self.recoveries[-1].phase_seconds())
            self._decider.tell_measured(self.decision.plan.generation, measured)

    @_on.register
    def _(self, message: Finished, handle: WorkerHandle) -> None:
        if message.attempt == self._attempt.number:
            self._attempt.finished.add(handle.worker)

    @_on.register
    def _(self, message: LinkBroken, handle: WorkerHandle) -> None:
        is_news = message.attempt == self._attempt.number and self.phase in (Phase.PREPARING, Phase.TRAINING)
        if is_news and self._attempt.broken is None:
            self._attempt.broken = (time.monotonic(), f"{handle.worker}: {message.reason}")

    @_on.register
    def _(self, message: Collected, handle: WorkerHandle) -> None:
        if message.attempt == self._attempt.number:
            self._attempt.collected[handle.worker] = message

    @_on.register
    def _(self, message: Failed, handle: WorkerHandle) -> None:
        if message.error is not None:
            raise error_from(message.error)
        raise WorkerError(f"{handle.worker} raised:\n{message.traceback}", field="worker", value=handle.worker)

    @_on.register
    def _(self, message: FaultInjected, handle: WorkerHandle) -> None:
        handle.struck_at = message.at
