"""How the plans of a job stand: the one state machine of proposed, approved, applied and the rest. Pure: no clock, no store.

What happens is a log entry: a decision, an approval, a report or a deadline that passed. Plans that a later one took the
place of are forgotten, and stand as superseded; so there are three at most to remember, however long a job lives: what runs,
what to go on with, and what was decided last.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from api.jobs.clock import moment_after
from kintsugi.core.handling import Approval, Deadline, DeadlineKind, Expiry, Handling, PlanStatus, Standing, Verdict
from kintsugi.core.messages import Report, ReportStatus

S = PlanStatus
TRANSITIONS: Mapping[PlanStatus, frozenset[PlanStatus]] = MappingProxyType(
    {
        S.ADVISED: frozenset({S.APPLIED, S.REJECTED, S.SUPERSEDED}),
        S.PROPOSED: frozenset({S.APPROVED, S.REFUSED, S.SUPERSEDED}),
        S.APPROVED: frozenset({S.APPLIED, S.REJECTED, S.TIMED_OUT, S.SUPERSEDED}),
        S.REFUSED: frozenset({S.SUPERSEDED}),
        S.APPLIED: frozenset({S.SUPERSEDED}),
        S.REJECTED: frozenset({S.APPLIED, S.SUPERSEDED}),
        S.TIMED_OUT: frozenset({S.APPLIED, S.REJECTED, S.SUPERSEDED}),
        S.SUPERSEDED: frozenset({S.APPLIED}),
    }
)
"""From each status to those that may follow it; superseded to applied is a trainer that answers late."""
NONE = -1
"""In the place of a generation: no plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifecycle:
    """How the plans of one job stand after some entries of its log."""

    handling: Handling
    generation: int = 0
    """Of the latest decision."""
    current: int = 0
    """Of the plan to go on with: the latest that is approved, or what runs, once approved ones do not start from it; in an
    advise-only job the latest advice."""
    applied: int = 0
    """Of the plan that runs; -1 where no trainer of an advise-only job said so of any."""
    standings: tuple[Standing, ...] = ()
    """All that are not superseded, by generation."""

    @classmethod
    def of(cls, handling: Handling, *, created_at: str, adopted: bool) -> "Lifecycle":
        """That of a new job; generation 0 is what the one who created it asked for, so that it needs no approval.

        Args:
            handling: what has to happen before plans count.
            created_at: when the job was created: RFC 3339, UTC.
            adopted: whether the first plan ran already.
        """
        runs = adopted or not handling.advise_only
        first = Standing(generation=0, status=S.APPLIED if runs else S.ADVISED, number=0, since=created_at)
        return cls(handling=handling, applied=0 if runs else NONE, standings=(first,))

    @property
    def first_status(self) -> PlanStatus:
        """What a plan is when it is decided."""
        return S.ADVISED if self.handling.advise_only else S.PROPOSED if self.handling.requires_approval else S.APPROVED

    @property
    def oldest_reporting(self) -> int:
        """The oldest generation that events may speak of: a plan that does not count yet makes no other stale."""
        return max(self.applied, 0) if self.handling.advise_only else self.current

    @property
    def deadlines(self) -> tuple[Deadline, ...]:
        """Until when an approval and an answer are waited for."""
        waits = (
            (self.generation, S.PROPOSED, DeadlineKind.APPROVAL, self.handling.approval_timeout_seconds),
            (self.current, S.APPROVED, DeadlineKind.ANSWER, self.handling.answer_timeout_seconds),
        )
        return tuple(
            Deadline(at=moment_after(standing.since, seconds), kind=kind, generation=generation)
            for generation, status, kind, seconds in waits
            if seconds is not None and (standing := self.standing(generation)).status is status and standing.since
        )

    def standing(self, generation: int) -> Standing:
        """How the plan of a generation up to the latest stands."""
        found = (standing for standing in self.standings if standing.generation == generation)
        return next(found, Standing(generation=generation, status=S.SUPERSEDED))

    def decided(self, number: int, at: str) -> "Lifecycle":
        """After the next decision, which log entry `number` led to."""
        generation, status = self.generation + 1, self.first_status
        counts = status is not S.PROPOSED
        current = generation if counts else self.current
        kept = [standing for standing in self.standings if standing.generation in (self.applied, current)]
        new = Standing(generation=generation, status=status, number=number, since=at)
        return replace(self, generation=generation, current=current, standings=(*kept, new))

    def after(self, content: Approval | Report | Expiry, number: int, at: str) -> "Lifecycle":
        """After log entry `number`."""
        if isinstance(content, Approval):
            return self._judged(content.decision, number, at, content.by, content.reason)
        return self._reported(content, number, at) if isinstance(content, Report) else self._expired(content, number, at)

    def _judged(self, verdict: Verdict, number: int, at: str, by: str | None, reason: str) -> "Lifecycle":
        latest = self.standing(self.generation)
        if latest.status is not S.PROPOSED:
            return self
        status = S.APPROVED if verdict is Verdict.APPROVE else S.REFUSED
        judged = replace(latest, status=status, number=number, since=at, by=by, reason=reason)
        if status is S.REFUSED:
            return self._with(judged)
        return replace(self._without(() if self.current == self.applied else (self.current,)), current=self.generation)._with(
            judged
        )

    def _reported(self, report: Report, number: int, at: str) -> "Lifecycle":
        standing = self.standing(report.generation)
        if report.status is ReportStatus.REJECTED and S.REJECTED in TRANSITIONS[standing.status]:
            return self._with(replace(standing, status=S.REJECTED, number=number, since=at, reason=report.reason))
        if report.status is not ReportStatus.APPLIED or report.generation <= self.applied:
            return self
        earlier = [other.generation for other in self.standings if other.generation < report.generation]
        applied = replace(standing, status=S.APPLIED, number=number, since=at, reason="")
        if self.handling.requires_approval:  # whatever was decided later starts from what ran before: it waits for nobody's word
            return replace(self, applied=report.generation, current=report.generation, standings=(applied,))
        current = max(self.current, report.generation)
        return replace(self._without(earlier), applied=report.generation, current=current)._with(applied)

    def _expired(self, expiry: Expiry, number: int, at: str) -> "Lifecycle":
        if expiry.kind is DeadlineKind.APPROVAL and expiry.generation == self.generation:
            reason = f"nobody approved or refused it within {self.handling.approval_timeout_seconds:g} s"
            return self._judged(self.handling.on_approval_timeout, number, at, None, reason)
        standing = self.standing(expiry.generation)
        if expiry.kind is not DeadlineKind.ANSWER or standing.status is not S.APPROVED:
            return self
        reason = f"no trainer answered within {self.handling.answer_timeout_seconds:g} s"
        return self._with(replace(standing, status=S.TIMED_OUT, number=number, since=at, reason=reason))

    def _with(self, standing: Standing) -> "Lifecycle":
        others = (other for other in self.standings if other.generation != standing.generation)
        return replace(self, standings=tuple(sorted((*others, standing), key=lambda item: item.generation)))

    def _without(self, generations: Collection[int]) -> "Lifecycle":
        return replace(self, standings=tuple(s for s in self.standings if s.generation not in generations))
