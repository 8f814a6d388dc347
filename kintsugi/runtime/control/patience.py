"""For how long the agent waits for what, and what follows when it is overdue. Times are seconds on the monotonic clock."""

import itertools
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from kintsugi.core.decision import Decision
from kintsugi.core.errors import UnavailableError, some
from kintsugi.core.plan import Plan
from kintsugi.runtime.control.attempt import Attempt, Phase
from kintsugi.runtime.control.fleet import Fleet
from kintsugi.runtime.control.links import LinkProbe
from kintsugi.runtime.control.progress import Progress
from kintsugi.runtime.options import AgentOptions
from kintsugi.runtime.processes import WorkerHandle

_STEPS = 10
"""Of the longest step that was seen or estimated, beyond which a step counts as stalled."""


@dataclass(frozen=True, slots=True)
class Overdue:
    """What has to happen because something did not."""

    lost: tuple[WorkerHandle, ...] = ()
    """Workers to go on without."""
    reason: str = ""
    """Why they are lost; where none is, why the same workers have to regroup."""


@dataclass(frozen=True, slots=True)
class Patience:
    """Watches the deadlines of a job's workers."""

    options: AgentOptions
    fleet: Fleet
    progress: Progress
    _questions: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def overdue(self, phase: Phase, attempt: Attempt, decision: Decision, applied: Plan | None) -> Overdue | None:
        """What is overdue now, if anything is.

        Args:
            phase: what the job is doing.
            attempt: under way.
            decision: that it leads to.
            applied: the plan that says where the state lies; null where there is none.

        Raises:
            UnavailableError: a worker did not start in time.
        """
        now = time.monotonic()
        phase_seconds = now - self._counted_from(attempt.phase_began_at)
        self._require_started(now)
        if phase in (Phase.STARTING, Phase.QUIESCING) and (silent := self._silent(attempt, decision, now)):
            return Overdue(silent, "did not leave its step")
        limit = self.options.prepare_timeout_seconds + 2 * decision.migration.makespan_seconds
        if phase is Phase.PREPARING and phase_seconds > limit:
            return Overdue(reason=f"not ready within {limit:g} s")
        if phase is Phase.COLLECTING and phase_seconds > self.options.collect_timeout_seconds:
            return Overdue(self._withholding(attempt, decision), "did not tell what it trained")
        if phase in (Phase.PREPARING, Phase.TRAINING):
            return self._broken_links(attempt, decision, applied, now)
        return None

    def _counted_from(self, began_at: float) -> float:
        """When the wait for something begins: not while this very process is away, paused as a rule with all its workers."""
        return max(began_at, self.fleet.back_at)

    def _require_started(self, now: float) -> None:
        limit = self.options.start_timeout_seconds
        if late := [handle.worker for handle in _unstarted(self.fleet, self.fleet.handles, now - limit)]:
            raise UnavailableError(f"{some(late)} did not start within {limit:g} s", field="workers", value=late)
        dismiss_unstarted(self.fleet, limit, now)

    def _silent(self, attempt: Attempt, decision: Decision, now: float) -> tuple[WorkerHandle, ...]:
        """Workers that could long have left the step that was called off."""
        passes = [stage.forward_seconds + stage.backward_seconds for stage in decision.estimate.stages]
        longest = max(3 * max(passes, default=0.0), self.progress.longest_seconds)
        limit = self.options.quiesce_timeout_seconds + longest + 2 * decision.migration.makespan_seconds
        waited_for = [handle for handle in self.fleet.handles.values() if handle.worker not in attempt.statuses]
        return tuple(
            handle
            for handle in waited_for
            if handle.started_at is not None and now - self._counted_from(max(handle.started_at, attempt.phase_began_at)) > limit
        )

    def _withholding(self, attempt: Attempt, decision: Decision) -> tuple[WorkerHandle, ...]:
        """Holders that were asked for their state once all was trained, and have not answered."""
        silent = set(decision.plan.workers) - attempt.collected.keys()
        return tuple(handle for worker, handle in self.fleet.handles.items() if worker in silent)

    def _broken_links(self, attempt: Attempt, decision: Decision, applied: Plan | None, now: float) -> Overdue | None:
        """Ask whom the members can reach where a link broke, or nothing moves, and nobody was lost; judge the answers."""
        probe, broken = attempt.probe, attempt.broken
        is_broken = broken is not None and now - self._counted_from(broken[0]) > self.options.link_grace_seconds
        if probe is None and (is_broken or self._is_stalled(attempt, decision, now)):
            handles = tuple(self.fleet.handles[worker] for worker in attempt.members if worker in self.fleet.handles)
            attempt.probe = LinkProbe(next(self._questions), handles, self.options.probe_timeout_seconds)
            attempt.probe.ask()
        if probe is None or not probe.is_over():
            return None
        attempt.probe = None
        attempt.asked_at = now
        if lost := probe.cut_off(applied, self.fleet.counts_on):
            return Overdue(lost, "cut off from other workers")
        return Overdue(reason=broken[1]) if broken is not None else None

    def _is_stalled(self, attempt: Attempt, decision: Decision, now: float) -> bool:
        """Whether nothing has moved, and nobody was asked, for much longer than a step takes."""
        step = max(self.progress.longest_seconds, decision.estimate.iteration_seconds)
        limit = self.options.stall_timeout_seconds + _STEPS * step + 2 * decision.migration.makespan_seconds
        return now - self._counted_from(max(self.progress.moved_at, attempt.phase_began_at, attempt.asked_at)) > limit


def dismiss_unstarted(fleet: Fleet, limit_seconds: float, now: float) -> None:
    """Let arrivals go that do not know their model after so long."""
    for handle in _unstarted(fleet, fleet.arrivals, now - limit_seconds):
        fleet.dismiss(handle, f"did not start within {limit_seconds:g} s")


def _unstarted(fleet: Fleet, handles: Mapping[str, WorkerHandle], created_before: float) -> list[WorkerHandle]:
    if fleet.back_at >= created_before:
        return []
    return [handle for handle in handles.values() if handle.started_at is None and handle.created_at < created_before]
