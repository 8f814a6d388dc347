"""A job's past, folded from its log: who takes part now, which plan runs, what was lost since."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from kintsugi.core.membership import LOSSES, Event, EventKind, Membership
from kintsugi.core.messages import Report, ReportStatus
from kintsugi.core.plan import Plan
from kintsugi.core.reliability import FailureRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One line of a job's log: an event or a report, and what followed from it."""

    number: int
    """From 1, without gaps."""
    received_at: str
    content: Event | Report
    generation: int
    """Of the latest decision once the entry was taken into account."""
    decided: bool
    """Whether the entry led to that decision itself."""
    problem: Mapping[str, Any] | None
    """The error that stands in the place of a decision."""


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """A job after some entries of its log; equal logs give equal histories."""

    membership: Membership
    number: int = 0
    """Of the last entry."""
    generation: int = 0
    """Of the latest decision."""
    applied_generation: int = 0
    """Of the plan that trainers last reported as applied; generation 0 counts as applied at once."""
    decided_at: Mapping[int, int] = field(default_factory=lambda: {0: 0})
    """Number of the entry that led to each generation that may still be applied."""
    lost_at: Mapping[str, int] = field(default_factory=dict)
    """Number of the entry that told of each worker's last loss."""
    incarnations: Mapping[str, int] = field(default_factory=dict)
    """Latest known process life of each worker."""
    num_failures: int = 0
    """Decisions that losses called for."""
    has_losses: bool = False
    """Whether workers were lost since the latest decision."""
    observed_until: str | None = None
    """When the latest decision was made; null for the job's first."""
    problem: Mapping[str, Any] | None = None
    """Why there is no plan for the present membership."""

    def stateless(self, applied: Plan) -> tuple[str, ...]:
        """Living workers that `applied` gives a slot but that were lost after it was decided, in cluster order."""
        since = self.decided_at[self.applied_generation]
        return tuple(w for w in self.membership.alive if w in applied.pipeline_of and self.lost_at.get(w, 0) > since)

    def after(self, content: Event | Report) -> "History":
        """The history once `content` was logged, before anything is decided about it.

        Raises:
            NotFoundError: an event names a worker or host that the job does not have.
        """
        return self._after_event(content) if isinstance(content, Event) else self._after_report(content)

    def decided(self, moment: str) -> "History":
        """The history once the last entry led to the next generation, at `moment` (RFC 3339, UTC)."""
        generation = self.generation + 1
        return replace(
            self,
            generation=generation,
            decided_at={**self.decided_at, generation: self.number},
            num_failures=self.num_failures + self.has_losses,
            has_losses=False,
            observed_until=moment,
            problem=None,
        )

    def failures(self, created_at: str) -> FailureRecord:
        """The failures that led to decisions since the job was created at `created_at` (RFC 3339, UTC)."""
        if self.observed_until is None:
            return FailureRecord(num_failures=0, observed_seconds=0.0)
        seconds = (datetime.fromisoformat(self.observed_until) - datetime.fromisoformat(created_at)).total_seconds()
        return FailureRecord(num_failures=self.num_failures, observed_seconds=max(0.0, seconds))

    def undecided(self, problem: Mapping[str, Any]) -> "History":
        """The history once the last entry left the job without a plan."""
        return replace(self, problem=problem)

    def calls_for_a_plan(self, before: "History", contents: Sequence[Event | Report]) -> bool:
        """Whether the latest decision does not fit any more, now that `contents` came after `before`."""
        applied_anew = self.applied_generation != before.applied_generation
        moved = applied_anew and self.applied_generation != self.generation
        may_be_mended = self.problem is not None and (applied_anew or any(isinstance(content, Event) for content in contents))
        return moved or may_be_mended or (self.membership, self.lost_at) != (before.membership, before.lost_at)

    def replayed(self, entry: Entry) -> "History":
        """The history once a stored entry happened, with what was decided about it at that time."""
        result = self.after(entry.content)
        if entry.decided:
            return result.decided(entry.received_at)
        return result.undecided(entry.problem) if entry.problem is not None else result

    def _after_event(self, event: Event) -> "History":
        number = self.number + 1
        reborn = self._is_reborn(event)
        membership = self.membership.after(event)
        gone = set(self.membership.alive) - set(membership.alive) if event.kind in LOSSES else set()
        lost = gone | ({event.worker} if reborn and event.worker is not None else set())
        incarnations = self.incarnations
        if event.worker is not None and event.incarnation > incarnations.get(event.worker, 0):
            incarnations = {**incarnations, event.worker: event.incarnation}
        lost_at = {**self.lost_at, **dict.fromkeys(lost, number)} if lost else self.lost_at
        return replace(
            self,
            number=number,
            membership=membership,
            lost_at=lost_at,
            incarnations=incarnations,
            has_losses=self.has_losses or bool(lost),
        )

    def _is_reborn(self, event: Event) -> bool:
        """Whether a worker that nobody missed joins in a new process life: its state went with the old one."""
        if event.kind is not EventKind.WORKER_JOINED or event.worker not in self.membership.alive:
            return False
        return event.incarnation > self.incarnations.get(event.worker or "", 0)

    def _after_report(self, report: Report) -> "History":
        number = self.number + 1
        if report.status is not ReportStatus.APPLIED or report.generation <= self.applied_generation:
            return replace(self, number=number)
        kept = {generation: at for generation, at in self.decided_at.items() if generation >= report.generation}
        return replace(self, number=number, applied_generation=report.generation, decided_at=kept)
