"""A job's past, folded from its log: who takes part now, which plan runs, what was lost since."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from api.jobs.clock import moment_after, seconds_between
from api.jobs.lifecycle import Lifecycle
from kintsugi.core.ending import Ending, EndingRecord
from kintsugi.core.handling import Approval, Deadline, DeadlineKind, Expiry, Handling, PlanStatus, Standing
from kintsugi.core.membership import Event, EventKind, Membership
from kintsugi.core.messages import Report, ReportStatus
from kintsugi.core.plan import Plan
from kintsugi.core.reliability import FailureRecord

Content = Event | Report | Approval | Expiry | Ending
"""What a log consists of."""
CLOCKS_DIFFER_SECONDS = 1.0
"""How far clocks of machines may be apart that serve one database, before an event is taken for one from the future."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One line of a job's log, and what followed from it."""

    number: int
    """From 1, without gaps."""
    received_at: str
    content: Content
    generation: int
    """Of the latest decision once the entry was taken into account."""
    decided: bool
    """Whether the entry led to that decision itself."""
    problem: Mapping[str, Any] | None
    """The error that stands in the place of a decision."""
    deferred: bool = False
    """Whether it is decided about the entry later, together with others: once the job's `coalesce_seconds` are over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """A job after some entries of its log; equal logs give equal histories."""

    membership: Membership
    number: int = 0
    """Of the last entry."""
    lifecycle: Lifecycle = field(default_factory=lambda: Lifecycle.of(Handling(), created_at="", adopted=False))
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
    deferred_since: str | None = None
    """When the first of the events came that wait for others; null where none do."""
    left_out: tuple[int, ...] = ()
    """Generations whose policies are not to be decided for again, as long as membership and state are what they are."""
    ended: EndingRecord | None = None
    """How the job ended; null as long as it goes on."""

    @property
    def generation(self) -> int:
        """Of the latest decision."""
        return self.lifecycle.generation

    @property
    def applied_generation(self) -> int:
        """Of the plan that runs; -1 where there is none."""
        return self.lifecycle.applied

    @property
    def deadline(self) -> Deadline | None:
        """What is waited for, and until when; the first of all. Nobody approves or answers after the job's end."""
        return _first(self._deadlines())

    def passed(self, now: str) -> Deadline | None:
        """The first deadline that is over at `now`."""
        return _first(
            deadline
            for deadline in self._deadlines()
            if deadline.at <= now or (deadline.kind is DeadlineKind.EVENTS and self.gathering_seconds(now) == 0.0)
        )

    def gathering_seconds(self, now: str) -> float:
        """How long events wait for others from `now` on: no longer where the clock was set to before the first of them."""
        at, since = self.decides_at, self.deferred_since
        if at is None or since is None or at <= now or since > moment_after(now, CLOCKS_DIFFER_SECONDS):
            return 0.0
        return seconds_between(now, at)

    @property
    def decides_at(self) -> str | None:
        """When it is decided about the events that wait for others."""
        return next((deadline.at for deadline in self._end_of_events()), None)

    def stateless(self, applied: Plan) -> tuple[str, ...]:
        """Living workers that `applied` gives a slot but that were lost after it was decided, in cluster order."""
        since = self.decided_at[self.applied_generation]
        return tuple(w for w in self.membership.alive if w in applied.pipeline_of and self.lost_at.get(w, 0) > since)

    def draining(self, applied: Plan) -> tuple[str, ...]:
        """Workers that leave and still hold the state that `applied` gave them, in cluster order."""
        return tuple(worker for worker in self.membership.draining if worker in applied.pipeline_of)

    def after(self, content: Content, at: str = "") -> "History":
        """The history once `content` was logged at `at` (RFC 3339, UTC), before anything is decided about it.

        Raises:
            NotFoundError: an event names a worker or host that the job does not have.
        """
        if isinstance(content, Event):
            return self._after_event(content)
        number = self.number + 1
        if isinstance(content, Ending):
            record = EndingRecord(number=number, received_at=at, generation=self.generation, ending=content)
            return replace(self, number=number, ended=record)
        moved = replace(self, number=number, lifecycle=self.lifecycle.after(content, number, at))
        if isinstance(content, Report):
            return moved._after_report(content, self)
        return moved._after_approval(content, self) if isinstance(content, Approval) else moved._after_expiry(content, self)

    def deferred(self, at: str) -> "History":
        """The history once the last entry waits for others, from `at` (RFC 3339, UTC) on or from an earlier moment."""
        return replace(self, deferred_since=self.deferred_since or at)

    def decided(self, moment: str) -> "History":
        """The history once the last entry led to the next generation, at `moment` (RFC 3339, UTC)."""
        lifecycle = self.lifecycle.decided(self.number, moment)
        counts = lifecycle.current == lifecycle.generation
        return replace(
            self,
            lifecycle=lifecycle,
            decided_at={**self.decided_at, lifecycle.generation: self.number} if counts else self.decided_at,
            num_failures=self.num_failures + self.has_losses,
            has_losses=False,
            observed_until=moment,
            problem=None,
        )

    def failures(self, created_at: str) -> FailureRecord:
        """The failures that led to decisions since the job was created at `created_at` (RFC 3339, UTC)."""
        if self.observed_until is None:
            return FailureRecord(num_failures=0, observed_seconds=0.0)
        seconds = seconds_between(created_at, self.observed_until)
        return FailureRecord(num_failures=self.num_failures, observed_seconds=max(0.0, seconds))

    def undecided(self, problem: Mapping[str, Any]) -> "History":
        """The history once the last entry left the job without a plan."""
        return replace(self, problem=problem)

    def calls_for_a_plan(self, before: "History", contents: Sequence[Content]) -> bool:
        """Whether the latest decision does not fit any more, now that `contents` came after `before`."""
        applied_anew = self.applied_generation != before.applied_generation
        moved = applied_anew and self.applied_generation != self.generation
        has_events = any(isinstance(content, Event) for content in contents)
        may_be_mended = self.problem is not None and (applied_anew or has_events)
        joins_others = before.deferred_since is not None and has_events
        is_over = before.deferred_since is not None and self.deferred_since is None
        is_unwanted = len(self.left_out) > len(before.left_out)
        return moved or may_be_mended or joins_others or is_over or is_unwanted or self._past() != before._past()

    def is_deferred(self, contents: Sequence[Content]) -> bool:
        """Whether a plan that `contents` call for, the last of which led here, is to wait for further events."""
        coalesces = self.lifecycle.handling.coalesce_seconds > 0 and any(isinstance(content, Event) for content in contents)
        return self.deferred_since is not None or coalesces

    def is_of_a_past_life(self, event: Event) -> bool:
        """Whether a worker that lives again is spoken of as it was before; 0, the default, does not say which life is meant."""
        return 0 < event.incarnation < self.incarnations.get(event.worker or "", 0)

    def replayed(self, entry: Entry) -> "History":
        """The history once a stored entry happened, with what was decided about it at that time."""
        result = self.after(entry.content, entry.received_at)
        if entry.deferred:
            return result.deferred(entry.received_at)
        if entry.decided:
            return result.decided(entry.received_at)
        return result.undecided(entry.problem) if entry.problem is not None else result

    def _past(self) -> tuple[Membership, Mapping[str, int]]:
        """What a decision answers to: who takes part, and who was lost."""
        return self.membership, self.lost_at

    def _deadlines(self) -> tuple[Deadline, ...]:
        of_plans = () if self.ended is not None else self.lifecycle.deadlines
        return (*of_plans, *self._end_of_events())

    def _end_of_events(self) -> tuple[Deadline, ...]:
        if self.deferred_since is None:
            return ()
        at = moment_after(self.deferred_since, self.lifecycle.handling.coalesce_seconds)
        return (Deadline(at=at, kind=DeadlineKind.EVENTS, generation=self.generation),)

    def _after_event(self, event: Event) -> "History":
        number = self.number + 1
        if self.is_of_a_past_life(event):
            return replace(self, number=number)
        membership = self.membership.after(event)
        reborn = {event.worker} if event.worker is not None and self._is_reborn(event) else set()
        lost = self.membership.bereft_by(event) | reborn
        leaves = set(self.membership.alive) - set(membership.alive)
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
            has_losses=self.has_losses or bool(leaves | reborn),
            left_out=self.left_out if (membership, lost_at) == self._past() else (),
        )

    def _is_reborn(self, event: Event) -> bool:
        """Whether a worker that is there joins, or stays, in a new process life or elsewhere: its state went with the old one."""
        serving = {EventKind.WORKER_JOINED: self.membership.alive, EventKind.WORKER_STAYING: self.membership.draining}
        if event.worker is None or event.worker not in serving.get(event.kind, ()):
            return False
        is_elsewhere = event.host not in (None, self.membership.cluster.by_id[event.worker].host)
        return is_elsewhere or event.incarnation > self.incarnations.get(event.worker, 0)

    def _after_report(self, report: Report, before: "History") -> "History":
        if report.status is ReportStatus.REJECTED:
            is_rejected = self.lifecycle.standing(report.generation).status is PlanStatus.REJECTED
            return self._without(report.generation) if report.replan and is_rejected else self
        if self.applied_generation == before.applied_generation:
            return self
        kept = {generation: at for generation, at in self.decided_at.items() if generation >= report.generation}
        return replace(self, decided_at=kept, left_out=())

    def _after_approval(self, approval: Approval, before: "History") -> "History":
        if approval.replan:
            return self._without(approval.generation)
        return self._counting(before)

    def _after_expiry(self, expiry: Expiry, before: "History") -> "History":
        return replace(self, deferred_since=None) if expiry.kind is DeadlineKind.EVENTS else self._counting(before)

    def _counting(self, before: "History") -> "History":
        """With the latest plan among those that may be applied, where it has come to count."""
        latest = before.lifecycle.standing(self.generation)
        if self.lifecycle.current == before.lifecycle.current or latest.number is None:
            return self
        return replace(self, decided_at={**self.decided_at, self.generation: latest.number})

    def _without(self, generation: int) -> "History":
        """Decided anew without the policy of `generation`, where that is the latest."""
        is_new = generation == self.generation and generation not in self.left_out
        return replace(self, left_out=(*self.left_out, generation)) if is_new else self


def standing_at(entry: Entry, handling: Handling) -> Standing | None:
    """How a plan stood at the entry that led to it, or that let it count, refused it or stopped waiting for it; else none."""
    if entry.decided:
        status = Lifecycle(handling=handling).first_status
        return Standing(generation=entry.generation, status=status, number=entry.number, since=entry.received_at)
    return verdict_at(entry, handling)


def verdict_at(entry: Entry, handling: Handling) -> Standing | None:
    """How a plan stood once an entry approved or refused it, or ended the time for that or for an answer; else none."""
    content = entry.content
    if not isinstance(content, Approval | Expiry) or (isinstance(content, Expiry) and content.kind is DeadlineKind.EVENTS):
        return None
    waits = isinstance(content, Expiry) and content.kind is DeadlineKind.ANSWER
    before = Standing(generation=content.generation, status=PlanStatus.APPROVED if waits else PlanStatus.PROPOSED)
    alone = Lifecycle(handling=handling, generation=content.generation, standings=(before,))
    return alone.after(content, entry.number, entry.received_at).standing(content.generation)


def _first(deadlines: Iterable[Deadline]) -> Deadline | None:
    return min(deadlines, key=lambda deadline: deadline.at, default=None)
