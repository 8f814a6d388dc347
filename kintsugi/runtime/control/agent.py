"""The host agent: runs one job on this host's workers, and is how others see it and reach into it."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from types import TracebackType

from kintsugi.core import checks
from kintsugi.core.decision import Decision
from kintsugi.core.ending import Ending, Outcome
from kintsugi.core.errors import NotFoundError
from kintsugi.core.logs import get_logger
from kintsugi.runtime.control.attempt import Phase
from kintsugi.runtime.control.conductor import Conductor
from kintsugi.runtime.control.decider import Decider
from kintsugi.runtime.control.decisions import Decisions, JobRequest
from kintsugi.runtime.control.fleet import Fleet
from kintsugi.runtime.control.recovery import RecoveryTimeline
from kintsugi.runtime.forking import PLANNER, preload
from kintsugi.runtime.models import TrainingJob
from kintsugi.runtime.options import AgentOptions, Governance
from kintsugi.runtime.processes import WorkerHandle
from kintsugi.runtime.result import RunResult
from kintsugi.runtime.selfgoverned.overseer import Overseer
from kintsugi.runtime.signals import End, SignalExit
from kintsugi.runtime.workers.entry import self_governed_main, worker_main

STOP_SECONDS = 2.0
"""For workers whose job is done to end by themselves."""
MOST_REASON_LETTERS = 1_000
"""Of an error that the service is told; a traceback is for this host's log."""


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
        options = options or AgentOptions()
        self._observer = observer
        self._request = request
        self._options = options
        self._trace = options.worker.trace
        self._log = get_logger("kintsugi.runtime")
        self._is_running = False
        self._end: End | None = None
        self._saving_since: float | None = None
        self._held = ExitStack()
        is_ring = options.governance is Governance.RING
        if is_ring:
            preload(PLANNER)
        self._fleet = Fleet(make_job, options.worker, self_governed_main if is_ring else worker_main)
        self._decider = Decider(decisions, options.decision_timeout_seconds, self._fleet.presence)
        self._conductor = (Overseer if is_ring else Conductor)(request, self._fleet, self._decider, options)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close(error)

    @property
    def phase(self) -> Phase:
        """What the job is doing."""
        return self._conductor.phase

    @property
    def decision(self) -> Decision:
        """The decision that the workers carry out, or move to."""
        return self._conductor.decision

    @property
    def losses(self) -> dict[int, float]:
        """Mean loss over the global batch, by step."""
        return self._conductor.progress.losses

    @property
    def recoveries(self) -> list[RecoveryTimeline]:
        """Every recovery so far; the last may be under way."""
        return self._conductor.recoveries.all

    @property
    def alive(self) -> tuple[str, ...]:
        """Workers that take part and have not been lost, in the order in which they were taken in."""
        return tuple(self._fleet.handles)

    @property
    def arriving(self) -> tuple[str, ...]:
        """Workers that were invited and are not taken in yet."""
        return tuple(self._fleet.arrivals)

    def handle(self, worker: str) -> WorkerHandle:
        """The process of a living worker, taken in or arriving."""
        return self._fleet.handles[worker] if worker in self._fleet.handles else self._fleet.arrivals[worker]

    def invite(self, worker: str, *, host: str | None = None) -> None:
        """Have a worker come back, or a new one join: it is taken in once it knows its model. For observers.

        Args:
            worker: its id.
            host: where a worker that is new to the job lives; a host of its own by default.

        Raises:
            ConflictError: the worker is here already.
            InvalidInputError: its id or its host is no name.
        """
        checks.name("worker", worker)
        if host is not None:
            checks.name("host", host)
        self._conductor.invite(worker, host)

    def conclude(self) -> None:
        """End the job early, as if the steps that are committed now were all it had. For observers.

        Every worker ends before the same step, and the result is that of a job of so many steps. No checkpoint is written
        for it: another life of the run goes on from the newest one.
        """
        self._conductor.conclude()

    def drain(self, worker: str) -> None:
        """Have a worker leave once others have its state, as SIGTERM to its process does. For observers.

        It trains on until a plan without it is there, is a source of the migration to that plan, and ends then by itself. Where
        there is no such plan it stays.

        Raises:
            NotFoundError: no such worker takes part.
        """
        if worker not in self._fleet.handles:
            raise NotFoundError("does not take part", field="worker", value=worker)
        self._conductor.drain(worker)

    def end_soon(self, end: End) -> bool:
        """Have `run` end early by calling `end`, which raises; before that a checkpoint is written. Callable from signal handlers.

        Returns:
            False where nothing runs yet: then it is not called.
        """
        self._end = end
        return self._is_running

    def run(self) -> RunResult:
        """Train to the last step, or until the job is concluded.

        Raises:
            InfeasibleError: too much was lost; no plan exists for the workers that are left.
            WorkerError: the trainer's own code raised.
            ReconfigurationError: the survivors could not be brought onto a plan.
            UnavailableError: a worker did not start, or the service did not answer, in time.
            ConflictError: another run's actions are recorded in the folder for those of this one.
        """
        if self._trace is not None:
            self._held.enter_context(self._trace.lock())
            self._trace.describe(self._request.profile, self._request.cluster)
        self._conductor.start()
        self._is_running = True
        while not self._conductor.is_done():
            self._conductor.poll()
            if self._observer is not None:
                self._observer(self)
            if self._end is not None:
                self._save_and(self._end)
        self._is_running = False
        if self._end is not None:  # it came with the end of the job
            self._end()
        return self._conductor.result()

    def _save_and(self, end: End) -> None:
        """End early once there is a checkpoint of what was trained, it has taken too long, or none will be there.

        It counts once the step after it has compared what the holders of its layers hold: that step is not in it.
        """
        now, limit = time.monotonic(), self._options.checkpoint_timeout_seconds
        if self._saving_since is None:
            self._saving_since = now
            if self._conductor.is_saving:
                self._conductor.save()
                self._log.info("ends with a checkpoint of the step under way; asked once more, at once", limit_seconds=limit)
        if not self._conductor.is_saving or now - max(self._saving_since, self._fleet.back_at) > limit:
            end()

    def close(self, error: BaseException | None = None) -> None:
        """End every process and thread of the job; who decides for it is told that it is over, and that by `error` if it failed."""
        was_running, self._is_running = self._is_running, False
        with self._held, ExitStack() as closing:
            closing.callback(self._conductor.close)
            closing.callback(self._decider.close, self._ending(error))
            closing.callback(self._fleet.close, grace_seconds=STOP_SECONDS if self.phase is Phase.COLLECTING else 0.0)
        if error is not None and was_running and self._conductor.keeper.is_on:
            self._tell_where_it_goes_on()

    def _tell_where_it_goes_on(self) -> None:
        trained, kept = self._conductor.progress.next_step, self._conductor.keeper.kept_step
        again = "ended early; training it again with the same folder goes on from"
        if self._conductor.has_saved:
            which = "a checkpoint of all that was trained when it was told to end"
            self._log.info(f"{again} {which}", trained=trained, again_from=kept, trained_to_compare_it=trained - kept)
        else:
            self._log.warning(f"{again} the newest checkpoint", trained=trained, again_from=kept)

    def _ending(self, error: BaseException | None) -> Ending:
        if isinstance(error, Exception):
            return Ending(outcome=Outcome.FAILED, by="agent", reason=str(error)[:MOST_REASON_LETTERS] or type(error).__name__)
        if error is None and self._conductor.is_done():
            return Ending(outcome=Outcome.COMPLETED, by="agent")
        if error is None:
            reason = "the agent was closed before the last step"
        else:
            told = error.signal.name if isinstance(error, SignalExit) else type(error).__name__
            reason = f"the agent was told to end: {told}"
        return Ending(outcome=Outcome.CANCELLED, by="agent", reason=reason)
