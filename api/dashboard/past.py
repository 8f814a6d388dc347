"""A job's history: every generation, what led to it, what became of it, and what was measured under it."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from api.dashboard.facts import Facts, facts_of
from api.jobs.history import Entry, verdict_at
from api.jobs.lifecycle import Lifecycle
from api.records import Records, first_state
from kintsugi.core.handling import PlanStatus, Standing
from kintsugi.core.membership import Event
from kintsugi.core.messages import Report, ReportStatus

SHOWN_GENERATIONS = 25
MOST_ENTRIES = 2_000
"""Log entries that are looked at for one page, the latest."""
PHASES = ("detected", "planned", "quiesced", "regrouped", "transferred", "resumed", "first_step")
"""In their order; those that a trainer adds come after."""
OPEN = frozenset({PlanStatus.ADVISED, PlanStatus.PROPOSED, PlanStatus.APPROVED, PlanStatus.TIMED_OUT})
"""Plans that may run yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """One phase of a recovery."""

    name: str
    start_seconds: float
    """Since the failure."""
    end_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Chapter:
    """One generation."""

    facts: Facts
    events: tuple[Event, ...]
    """What led to it."""
    standing: Standing
    """As the API tells it."""
    verdict: Standing | None
    """Who approved or refused it, or why it was rejected or timed out; a plan keeps that once it is superseded."""
    has_run: bool | None
    """Whether it runs or ran; null where the log was not looked at far enough back."""
    measured_seconds: float | None
    """The step time that was reported last."""
    phases: tuple[Phase, ...]

    @property
    def moved(self) -> str:
        """What to call the state that its migration is about."""
        if self.has_run:
            return "State moved"
        return "State to move" if self.has_run is None or self.standing.status in OPEN else "State it would have moved"

    @property
    def recovery_seconds(self) -> float | None:
        """From the failure to the end of the last phase that was reported."""
        return self.phases[-1].end_seconds if self.phases else None

    @property
    def excess_ratio(self) -> float | None:
        """Measured step time against the estimated one, less 1."""
        return None if self.measured_seconds is None else self.measured_seconds / self.facts.iteration_seconds - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """A page of a job's history, latest generation first."""

    chapters: tuple[Chapter, ...]
    unanswered: tuple[Entry, ...]
    """Events that no plan could answer, latest first."""
    older: int | None
    """Generation below which the next page begins; null at the end."""


@dataclass(slots=True)
class _Course:
    """What reports say about one generation."""

    has_run: bool = False
    verdict: Standing | None = None
    measured_seconds: float | None = None
    phase_seconds: Mapping[str, float] = field(default_factory=dict)

    def judge(self, verdict: Standing) -> None:
        """Take somebody's word on the plan, or the end of the time for it, into account."""
        if verdict.by or verdict.reason:
            self.verdict = verdict

    def hear(self, report: Report) -> None:
        """Take one more report into account."""
        if report.status is ReportStatus.APPLIED:
            self.has_run = True
            self.verdict = self.verdict if self.verdict is not None and self.verdict.by else None
        elif report.status is ReportStatus.REJECTED and not self.has_run:
            self.verdict = Standing(generation=report.generation, status=PlanStatus.REJECTED, reason=report.reason)
        if report.measured is not None:
            self.measured_seconds = report.measured.iteration_seconds or self.measured_seconds
            self.phase_seconds = {**self.phase_seconds, **report.measured.phase_seconds}


@dataclass(frozen=True, slots=True)
class _Log:
    """The part of a job's log that one page looks at, and how plans stand after all of it."""

    entries: Sequence[Entry]
    start: int
    """Number above which its entries are."""
    lifecycle: Lifecycle
    began: Lifecycle
    """How the first plan stood at first."""

    def courses(self) -> Mapping[int, _Course]:
        """What it says about each generation."""
        courses: dict[int, _Course] = defaultdict(_Course)
        for generation in {self.began.applied, self.lifecycle.applied}:
            courses[generation].has_run = True
        for entry in self.entries:
            if isinstance(entry.content, Report):
                courses[entry.content.generation].hear(entry.content)
            elif (verdict := verdict_at(entry, self.lifecycle.handling)) is not None:
                courses[verdict.generation].judge(verdict)
        return courses


def past_of(records: Records, job: str, below: int | None = None) -> Past:
    """The generations below `below`, by default the latest.

    Raises:
        NotFoundError: there is no such job.
    """
    with records.store.looking():
        history = records.state(job).history
        stop = min(history.generation + 1, history.generation + 1 if below is None else below)
        first = max(0, stop - SHOWN_GENERATIONS)
        facts = [facts_of(records.store.decision(job, generation)) for generation in range(max(0, first - 1), stop)]
        start = max(facts[0].number, history.number - MOST_ENTRIES) if facts else history.number
        entries = records.store.entries(job, after=start, limit=MOST_ENTRIES)
        began = first_state(records.store, job).history.lifecycle
    return Past(
        chapters=tuple(reversed(_chapters(facts, _Log(entries, start, history.lifecycle, began), first))),
        unanswered=tuple(reversed([e for e in entries if e.problem is not None])) if below is None else (),
        older=first if first > 0 else None,
    )


def _chapters(facts: Sequence[Facts], log: _Log, first: int) -> list[Chapter]:
    courses = log.courses()
    causes = {later.generation: _between(log.entries, earlier.number, later.number) for earlier, later in pairwise(facts)}
    shown = [each for each in facts if each.generation >= first]
    return [_chapter(each, causes.get(each.generation, ()), courses[each.generation], log) for each in shown]


def _between(entries: Sequence[Entry], above: int, last: int) -> tuple[Event, ...]:
    return tuple(e.content for e in entries if above < e.number <= last and isinstance(e.content, Event))


def _chapter(facts: Facts, events: tuple[Event, ...], course: _Course, log: _Log) -> Chapter:
    return Chapter(
        facts=facts,
        events=events,
        standing=log.lifecycle.standing(facts.generation),
        verdict=course.verdict,
        has_run=course.has_run or (False if facts.number >= log.start else None),
        measured_seconds=course.measured_seconds,
        phases=_phases(course.phase_seconds),
    )


def _phases(ends: Mapping[str, float]) -> tuple[Phase, ...]:
    """Phases one after the other; each begins where the one before ended."""
    order = {name: index for index, name in enumerate(PHASES)}
    names = sorted(ends, key=lambda name: (ends[name], order.get(name, len(order)), name))
    starts = (0.0, *(ends[name] for name in names))
    return tuple(Phase(name=name, start_seconds=start, end_seconds=ends[name]) for name, start in zip(names, starts, strict=False))
