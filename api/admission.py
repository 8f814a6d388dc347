"""What is let into a job's log: events of the latest generation under ids of their own, reports on plans that exist."""

from collections.abc import Sequence
from typing import Any

from api.history import Entry, History
from kintsugi.core.errors import ConflictError, NotFoundError, StaleGenerationError
from kintsugi.core.membership import Event
from kintsugi.core.messages import Report, ReportStatus


def refuse_other_events(events: Sequence[Event], seen: dict[str, Entry]) -> None:
    """Require that each event is the one that was logged under its id, if any was.

    Raises:
        ConflictError: an id belongs to another event.
    """
    for event in events:
        earlier = seen[event.id].content if event.id in seen else event
        assert isinstance(earlier, Event)
        if _subject(earlier) != _subject(event):
            raise ConflictError("belongs to another event of this job; choose a new id", field="id", value=event.id)


def _subject(event: Event) -> tuple[Any, ...]:
    return event.kind, event.worker, event.host, event.link


def refuse_other_generations(events: Sequence[Event], latest: int) -> None:
    """Require events of the latest generation.

    Raises:
        StaleGenerationError: one speaks of another.
    """
    for event in events:
        if event.generation != latest:
            raise StaleGenerationError(
                f"is not the latest generation, {latest}: fetch its plan and report again what still holds",
                current_generation=latest,
                value=event.generation,
            )


def check_report(report: Report, history: History) -> None:
    """Require a report on a plan that exists, and no step back.

    Raises:
        NotFoundError: nothing was decided for the generation.
        StaleGenerationError: a later plan was reported as applied already.
    """
    if report.generation > history.generation:
        raise NotFoundError("nothing was decided for this generation", field="generation", value=report.generation)
    if report.status is ReportStatus.APPLIED and report.generation < history.applied_generation:
        raise StaleGenerationError(
            f"generation {history.applied_generation} was applied already",
            current_generation=history.generation,
            value=report.generation,
        )
