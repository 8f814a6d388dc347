"""A job's history: every generation, what led to it, what became of it, and what was measured under it."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from api.dashboard.facts import Facts, facts_of
from api.jobs.history import Entry
from api.records import Records
from kintsugi.core.membership import Event
from kintsugi.core.messages import Report, ReportStatus

SHOWN_GENERATIONS = 25
MOST_ENTRIES = 2_000
"""Log entries that are looked at for one page, the latest."""
PHASES = ("detected", "planned", "quiesced", "regrouped", "transferred", "resumed", "first_step")
"""In their order; those that a trainer adds come after."""


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
    status: str
    """`applied`, `rejected` or `offered`."""
    rejection: str
    measured_seconds: float | None
    """The step time that was reported last."""
    phases: tuple[Phase, ...]

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
class _Told:
    """What reports say about one generation."""

    status: str = "offered"
    rejection: str = ""
    measured_seconds: float | None = None
    phase_seconds: Mapping[str, float] = field(default_factory=dict)

    def hear(self, report: Report) -> None:
        """Take one more report into account."""
        if report.status is ReportStatus.APPLIED:
            self.status = "applied"
        elif report.status is ReportStatus.REJECTED:
            self.status, self.rejection = "rejected", report.reason
        if report.measured is not None:
            self.measured_seconds = report.measured.iteration_seconds or self.measured_seconds
            self.phase_seconds = {**self.phase_seconds, **report.measured.phase_seconds}


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
    return Past(
        chapters=tuple(reversed(_chapters(facts, entries, first, history.applied_generation))),
        unanswered=tuple(reversed([e for e in entries if e.problem is not None])) if below is None else (),
        older=first if first > 0 else None,
    )


def _chapters(facts: Sequence[Facts], entries: Sequence[Entry], first: int, applied: int) -> list[Chapter]:
    told: dict[int, _Told] = defaultdict(_Told)
    for entry in entries:
        if isinstance(entry.content, Report):
            told[entry.content.generation].hear(entry.content)
    told[applied].status = "applied"
    causes = {later.generation: _between(entries, earlier.number, later.number) for earlier, later in pairwise(facts)}
    return [_chapter(each, causes.get(each.generation, ()), told[each.generation]) for each in facts if each.generation >= first]


def _between(entries: Sequence[Entry], above: int, last: int) -> tuple[Event, ...]:
    return tuple(e.content for e in entries if above < e.number <= last and isinstance(e.content, Event))


def _chapter(facts: Facts, events: tuple[Event, ...], told: _Told) -> Chapter:
    return Chapter(
        facts=facts,
        events=events,
        status=told.status,
        rejection=told.rejection,
        measured_seconds=told.measured_seconds,
        phases=_phases(told.phase_seconds),
    )


def _phases(ends: Mapping[str, float]) -> tuple[Phase, ...]:
    """Phases one after the other; each begins where the one before ended."""
    order = {name: index for index, name in enumerate(PHASES)}
    names = sorted(ends, key=lambda name: (ends[name], order.get(name, len(order)), name))
    starts = (0.0, *(ends[name] for name in names))
    return tuple(Phase(name=name, start_seconds=start, end_seconds=ends[name]) for name, start in zip(names, starts, strict=False))
