"""What is let into a job's log: events of the latest generation under ids of their own, reports on plans that exist."""

from collections.abc import Sequence
from typing import Any

from api.jobs.clock import seconds_between
from api.jobs.history import Entry, History
from kintsugi.core.cluster import Cluster
from kintsugi.core.ending import Ending, EndingRecord
from kintsugi.core.errors import ConflictError, InvalidInputError, NotFoundError, StaleGenerationError
from kintsugi.core.handling import Approval, PlanStatus, Standing
from kintsugi.core.membership import Event, EventKind
from kintsugi.core.messages import Measurement, Report, ReportStatus

MOST_TIMES_FASTER = 10.0
"""Of a worker that changed its speed, than the fastest of the job and the profile's device: beyond it is a percentage."""

MOVES = frozenset({EventKind.WORKER_JOINED, EventKind.WORKER_STAYING})
"""Events that may say that a worker is on another host now."""
SPEEDS = frozenset({EventKind.STRAGGLER, EventKind.RECOVERED})
"""Events that say that a worker has another speed now."""


def require_going_on(history: History) -> None:
    """Require a job that has not ended.

    Raises:
        ConflictError: it has.
    """
    if history.ended is not None:
        message = f"has ended ({_described(history.ended)}): nothing more happens in it; create another job"
        raise ConflictError(message, field="job")


def check_ending(ending: Ending, history: History) -> EndingRecord | None:
    """The end that says the same already, if there is one.

    Raises:
        ConflictError: the job ended otherwise.
    """
    if history.ended is not None and history.ended.ending.outcome is not ending.outcome:
        message = f"is not how the job ended: {_described(history.ended)}; that stays"
        raise ConflictError(message, field="outcome", value=ending.outcome.value)
    return history.ended


def _described(ended: EndingRecord) -> str:
    return f"{ended.ending.outcome.value}, {ended.received_at}"


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


def refuse_other_generations(events: Sequence[Event], history: History) -> None:
    """Require events of the latest generation, or of a plan that later ones have not made stale yet.

    Raises:
        StaleGenerationError: one speaks of another.
    """
    oldest, latest = history.lifecycle.oldest_reporting, history.generation
    for event in events:
        if not oldest <= event.generation <= latest:
            raise StaleGenerationError(
                f"is not the latest generation, {latest}: fetch its plan and report again what still holds",
                current_generation=latest,
                value=event.generation,
            )


def refuse_contradictions(events: Sequence[Event], history: History) -> None:
    """Require events to say of no worker that it is where it is not: who says so may mean another worker.

    What is told of a past life may be true of that one.

    Raises:
        InvalidInputError: one does.
    """
    moved: dict[str, str] = {}
    for event in events:
        if event.worker is None or event.host is None:
            continue
        if event.kind in MOVES:
            moved[event.worker] = event.host
        elif not history.is_of_a_past_life(event):
            known = history.membership.cluster.by_id.get(event.worker)
            there = moved.get(event.worker, event.host if known is None else known.host)
            if event.host != there:
                message = f"is not where {event.worker} is, which is on {there}; leave it out, or name another worker"
                raise InvalidInputError(message, field="host", value=event.host)


def refuse_percentages(events: Sequence[Event], history: History) -> None:
    """Require speeds of workers that slow down or recover to be ratios, by what the job's other workers have.

    Raises:
        InvalidInputError: one is far above them all.
    """
    told = max((event.speed_ratio or 0.0 for event in events if event.kind in SPEEDS), default=0.0)
    if told <= MOST_TIMES_FASTER:  # as almost always: no need to look at a thousand workers
        return
    fastest = max(1.0, *(worker.speed_ratio for worker in history.membership.cluster.workers))
    if told > MOST_TIMES_FASTER * fastest:
        message = (
            f"is over {MOST_TIMES_FASTER:g} times the fastest worker's, {fastest:g}: it is a multiple of the speed that the "
            "profile was measured at, such as 0.7, not percent"
        )
        raise InvalidInputError(message, field="speed_ratio", value=told)


def check_report(report: Report, history: History) -> None:
    """Require a report on a plan that exists and counts, and no step back.

    Raises:
        NotFoundError: nothing was decided for the generation.
        StaleGenerationError: a later plan was reported as applied already.
        ConflictError: the plan was never approved, or it is rejected though it runs.
    """
    _require_decided(report.generation, history)
    if report.status is ReportStatus.MEASURED:
        return
    if report.status is ReportStatus.APPLIED and report.generation < history.applied_generation:
        raise StaleGenerationError(
            f"generation {history.applied_generation} was applied already",
            current_generation=history.generation,
            value=report.generation,
        )
    if report.status is ReportStatus.REJECTED and report.generation == history.applied_generation:
        message = "was applied already and cannot be rejected; report what went wrong as events, which lead to another plan"
        raise ConflictError(message, field="generation", value=report.generation)
    if report.generation >= history.applied_generation and report.generation not in history.decided_at:
        status = history.lifecycle.standing(report.generation).status.value
        message = f"is {status} and was never approved; carry out generation {history.lifecycle.current}, or have it approved first"
        raise ConflictError(message, field="generation", value=report.generation)


def check_measured(measured: Measurement, cluster: Cluster, num_layers: int) -> None:
    """Require that what was measured speaks of the job's workers and layers alone.

    Raises:
        NotFoundError: the job has no such worker, or no such layer.
    """
    named = {
        **{f"worker_busy_seconds.{worker}": worker for worker in measured.worker_busy_seconds},
        **{f"incarnations.{worker}": worker for worker in measured.incarnations},
        **{f"layers[{index}].worker": times.worker for index, times in enumerate(measured.layers)},
    }
    for field, worker in named.items():
        if worker not in cluster.by_id:
            raise NotFoundError("is no worker of the job's cluster", field=f"measured.{field}", value=worker)
    for index, times in enumerate(measured.layers):
        if times.layer >= num_layers:
            message = f"is no layer of the job's profile; they are numbered from 0 to {num_layers - 1}"
            raise NotFoundError(message, field=f"measured.layers[{index}].layer", value=times.layer)


def check_approval(approval: Approval, said: Sequence[Entry], history: History) -> Entry | None:
    """The entry that says the same already, if there is one; otherwise requires a plan that waits for approval.

    Args:
        approval: what somebody says.
        said: what was said about this plan before.
        history: of the job.

    Raises:
        NotFoundError: nothing was decided for the generation.
        StaleGenerationError: another plan was decided meanwhile.
        ConflictError: somebody said the contrary before, the plan needs no approval, or it is not the one that was looked at.
    """
    _require_decided(approval.generation, history)
    if approval.generation != history.generation:
        raise StaleGenerationError(
            f"generation {history.generation} took its place: look at that one",
            current_generation=history.generation,
            value=approval.generation,
        )
    _require_same_plan(approval, history)
    standing = history.lifecycle.standing(approval.generation)
    is_to_be_replaced = standing.status is PlanStatus.REFUSED and approval.replan and approval.generation not in history.left_out
    if standing.status is PlanStatus.PROPOSED or is_to_be_replaced:
        return None
    for entry in said:
        if isinstance(entry.content, Approval) and entry.content.decision is approval.decision:
            return entry
    raise ConflictError(_refusal(standing), field="decision", value=approval.decision.value)


def _require_same_plan(approval: Approval, history: History) -> None:
    """Where the database was set back, the latest generation may be another plan than the one that somebody looked at."""
    seen, decided = approval.decided_at, history.observed_until
    if seen is not None and decided is not None and seconds_between(seen, decided) != 0:
        message = f"is not when generation {approval.generation} was decided, {decided}: another plan has its place, look at it"
        raise ConflictError(message, field="decided_at", value=seen)


def _refusal(standing: Standing) -> str:
    told = f" ({standing.reason})" if standing.reason else ""
    by = f" by {standing.by}" if standing.by else ""
    return f"generation {standing.generation} does not wait for approval: it is {standing.status.value}{by}{told}"


def _require_decided(generation: int, history: History) -> None:
    if generation > history.generation:
        raise NotFoundError("nothing was decided for this generation", field="generation", value=generation)
