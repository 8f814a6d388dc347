"""Jobs and logs as they are shown: summaries, views and pages."""

from api.http.cursors import Cursors
from api.jobs.history import Entry
from api.records import JobState, Records
from api.storage.rows import APPROVAL, EVENT, REPORT
from kintsugi.core.ending import Ending, EndingRecord
from kintsugi.core.errors import InvalidInputError
from kintsugi.core.handling import Approval, ApprovalPage, ApprovalRecord
from kintsugi.core.membership import Event
from kintsugi.core.messages import EventPage, EventRecord, JobPage, JobSummary, JobView, Report, ReportPage, ReportRecord
from kintsugi.core.plan import Policy


def job_view(records: Records, job: str) -> JobView:
    """A job as it stands.

    Raises:
        NotFoundError: there is no such job.
    """
    state = records.state(job)
    decision = records.store.decision(job, state.history.generation).wording.decision()
    return JobView(
        summary=summary_of(state, decision.policy),
        settings=state.settings,
        cluster=state.history.membership.cluster,
        alive=state.history.membership.alive,
        decision=decision,
        handling=state.history.lifecycle.handling,
        standings=state.history.lifecycle.standings,
        decides_at=state.history.decides_at,
        ended=state.history.ended,
    )


def job_page(records: Records, cursor: str | None, limit: int, ended: bool | None) -> JobPage:
    """Up to `limit` jobs behind `cursor`, in the order of their ids; where `ended` says so only the ended or the others."""
    cursors = Cursors("jobs")
    ids = records.store.job_ids(after=cursors.text(cursor), limit=limit + 1, ended=ended)
    jobs = tuple(job_view(records, job).summary for job in ids[:limit])
    return JobPage(jobs=jobs, next_cursor=cursors.after(ids[limit - 1]) if len(ids) > limit else None)


def event_page(records: Records, job: str, cursor: str | None, limit: int, after: int | None = None) -> EventPage:
    """Up to `limit` events behind `cursor`, or behind log number `after`.

    Raises:
        NotFoundError: there is no such job.
        InvalidInputError: the cursor is of another list.
    """
    entries, next_cursor = _entries(records, job, EVENT, _start(job, EVENT, cursor, after), limit)
    return EventPage(events=tuple(_answered(records, job, entry) for entry in entries), next_cursor=next_cursor)


def report_page(records: Records, job: str, cursor: str | None, limit: int, after: int | None = None) -> ReportPage:
    """Up to `limit` reports behind `cursor`, or behind log number `after`.

    Raises:
        NotFoundError: there is no such job.
        InvalidInputError: the cursor is of another list.
    """
    entries, next_cursor = _entries(records, job, REPORT, _start(job, REPORT, cursor, after), limit)
    return ReportPage(reports=tuple(report_record(entry) for entry in entries), next_cursor=next_cursor)


def approval_page(records: Records, job: str, cursor: str | None, limit: int) -> ApprovalPage:
    """Up to `limit` approvals and refusals behind `cursor`.

    Raises:
        NotFoundError: there is no such job.
    """
    entries, next_cursor = _entries(records, job, APPROVAL, _start(job, APPROVAL, cursor, None), limit)
    return ApprovalPage(approvals=tuple(approval_record(entry) for entry in entries), next_cursor=next_cursor)


def approval_record(entry: Entry) -> ApprovalRecord:
    """An approval or refusal as it stands in the log."""
    assert isinstance(entry.content, Approval)
    return ApprovalRecord(
        number=entry.number,
        received_at=entry.received_at,
        generation=entry.generation,
        problem=entry.problem,
        approval=entry.content,
    )


def ending_record(entry: Entry) -> EndingRecord:
    """The end of a job as it stands in the log."""
    assert isinstance(entry.content, Ending)
    return EndingRecord(number=entry.number, received_at=entry.received_at, generation=entry.generation, ending=entry.content)


def report_record(entry: Entry) -> ReportRecord:
    """A report as it stands in the log."""
    assert isinstance(entry.content, Report)
    return ReportRecord(
        number=entry.number,
        received_at=entry.received_at,
        generation=entry.generation,
        problem=entry.problem,
        report=entry.content,
    )


def event_record(entry: Entry, answering: Entry | None = None) -> EventRecord:
    """An event as it stands in the log, and where it waited for others the entry at which it was decided about it."""
    assert isinstance(entry.content, Event)
    told = answering or entry
    return EventRecord(
        number=entry.number,
        received_at=entry.received_at,
        generation=told.generation,
        problem=told.problem,
        event=entry.content,
        pending=told.deferred,
    )


def _answered(records: Records, job: str, entry: Entry) -> EventRecord:
    return event_record(entry, records.answering(job, entry))


def _entries(records: Records, job: str, kind: str, start: int, limit: int) -> tuple[list[Entry], str | None]:
    records.state(job)
    entries = records.store.entries(job, after=start, kind=kind, limit=limit + 1)
    more = len(entries) > limit
    return entries[:limit], Cursors(kind, job).after(entries[limit - 1].number) if more else None


def _start(job: str, kind: str, cursor: str | None, after: int | None) -> int:
    """The log number behind which a page begins."""
    if after is None:
        return Cursors(kind, job).number(cursor)
    if cursor is not None:
        raise InvalidInputError("is given beside cursor; leave one of them out", field="after", value=after)
    return after


def summary_of(state: JobState, policy: Policy) -> JobSummary:
    """A job in a few words, with the policy of its latest decision."""
    membership = state.history.membership
    return JobSummary(
        id=state.job.id,
        created_at=state.job.created_at,
        profile=state.profile.name,
        policy=policy,
        generation=state.history.generation,
        applied_generation=state.history.applied_generation,
        num_workers=len(membership.cluster.workers),
        num_alive=len(membership.alive),
        problem=state.history.problem,
        current_generation=state.history.lifecycle.current,
        status=state.history.lifecycle.standing(state.history.generation).status,
        outcome=None if state.history.ended is None else state.history.ended.ending.outcome,
    )
