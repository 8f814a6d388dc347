"""What the service does, without HTTP: jobs, events, reports and approvals in; decisions out; all durable before it is told."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from uuid import uuid4

from api.access.callers import own_key
from api.decisions import planning
from api.jobs.admission import (
    check_approval,
    check_ending,
    check_measured,
    check_report,
    refuse_contradictions,
    refuse_other_events,
    refuse_other_generations,
    refuse_percentages,
    require_going_on,
)
from api.jobs.clock import utc_now
from api.jobs.history import Content, Entry
from api.ledger import Ledger
from api.records import JobState, Planned
from api.schemas import NewJob, cluster_of
from api.storage.database import OvertakenError
from api.storage.rows import APPROVAL
from api.storage.stored import Document, StoredJob, WriteKey
from kintsugi.core import codec
from kintsugi.core.ending import Ending
from kintsugi.core.errors import ConflictError, error_from
from kintsugi.core.handling import Approval
from kintsugi.core.job import Snapshot
from kintsugi.core.membership import Event, Membership
from kintsugi.core.messages import Report

__all__ = ["Service", "utc_now"]

Room = Callable[[Membership, Sequence[Event]], None]
"""Raises where a job that has this membership may not take these events in."""
RoomForJob = Callable[[NewJob], None]
"""Raises where there may be no further job like this one."""


def _boundless(*_asked: object) -> None:
    """There is room for all."""


class Service(Ledger):
    """Decides for jobs; safe for several threads, and for several processes on one database."""

    def create_job(self, request: NewJob, idempotency_key: str | None = None, *, room: RoomForJob = _boundless) -> tuple[str, bool]:
        """Id of the job, and whether it is new; the same request again gives the same job, also where there is no room any more.

        Raises:
            ConflictError: the id or the key belongs to another request.
            InfeasibleError: no plan exists for the job.
            KintsugiError: that `room` raised; nothing was stored.
        """
        digest = codec.digest(request)
        key = _key("jobs", idempotency_key, digest)
        known = self._known_job(request.id, digest, key)
        if known is not None:
            return known, False
        room(request)
        job = request.id or uuid4().hex
        try:
            self._create(job, request, digest, key)
        except OvertakenError:
            known = self._known_job(request.id, digest, key)
            if known is None:
                raise
            return known, False
        return job, True

    def post_events(
        self, job: str, events: Sequence[Event], idempotency_key: str | None = None, *, room: Room = _boundless
    ) -> Entry:
        """The latest log entry that any of the events has, durable; events whose id was seen change nothing.

        Its generation is that of the decision that answers them; in a job that coalesces events, `answering` tells whether and
        where it is decided about a deferred entry.

        Raises:
            NotFoundError: no such job, worker or host; nothing was stored.
            InvalidInputError: an event says of a worker that it is where it is not, or its speed in percent; nothing was stored.
            ConflictError: an id belongs to another event, or the job has ended; nothing was stored.
            StaleGenerationError: the events speak of another generation than the latest; nothing was stored.
            InfeasibleError: no plan exists for the members that are left; the events are stored.
            KintsugiError: that `room` raised of the job's membership and the events; nothing was stored.
        """

        def accept(state: JobState) -> Entry | Sequence[Content]:
            room(state.history.membership, events)
            seen = self.store.entries_of_events(job, [event.id for event in events])
            refuse_other_events(events, seen)
            new = [event for event in events if event.id not in seen]
            if new:
                require_going_on(state.history)
            refuse_other_generations(new, state.history)
            refuse_contradictions(new, state.history)
            refuse_percentages(new, state.history)
            return new or max(seen.values(), key=lambda entry: entry.number)

        return _accepted(self.write(job, _key(job, idempotency_key, codec.digest(events)), accept))

    def post_report(self, job: str, report: Report, idempotency_key: str | None = None) -> Entry:
        """The log entry of a report, durable.

        Raises:
            NotFoundError: no such job or generation, or the measured worker or layer is none of the job's.
            StaleGenerationError: a later plan was reported as applied already.
            ConflictError: the plan was never approved, or the job has ended.
            InfeasibleError: by the report the state lies elsewhere, and no plan exists from there; it is stored.
        """

        def accept(state: JobState) -> Sequence[Content]:
            require_going_on(state.history)
            check_report(report, state.history)
            if report.measured is not None:
                check_measured(report.measured, state.history.membership.cluster, len(state.profile.layers))
            return (report,)

        return _accepted(self.write(job, _key(job, idempotency_key, codec.digest(report)), accept))

    def post_approval(self, job: str, approval: Approval, idempotency_key: str | None = None) -> Entry:
        """The log entry of an approval, durable; what somebody said already is not logged again.

        Raises:
            NotFoundError: no such job or generation.
            StaleGenerationError: the plan was superseded.
            ConflictError: the plan does not wait for approval, or is not the one that was looked at, or the job has ended.
            InfeasibleError: nothing else is possible in the place of the refused plan; the refusal is stored.
        """

        def accept(state: JobState) -> Entry | Sequence[Content]:
            said = check_approval(approval, self._said(job, approval.generation), state.history)
            if said is None:
                require_going_on(state.history)
            return (approval,) if said is None else said

        return _accepted(self.write(job, _key(job, idempotency_key, codec.digest(approval)), accept))

    def post_ending(self, job: str, ending: Ending, idempotency_key: str | None = None) -> Entry:
        """The log entry of a job's end, durable; what somebody said already is not logged again.

        Raises:
            NotFoundError: no such job.
            ConflictError: it ended otherwise.
        """

        def accept(state: JobState) -> Entry | Sequence[Content]:
            said = check_ending(ending, state.history)
            return (ending,) if said is None else self.store.entry(job, said.number)

        return _accepted(self.write(job, _key(job, idempotency_key, codec.digest(ending)), accept))

    def answered(self, job: str, entry: Entry) -> Entry | None:
        """The entry at which it was decided about `entry`; None where it waits still.

        Raises:
            KintsugiError: what stands in the place of the decision.
        """
        answering = self.answering(job, entry)
        return None if answering is None else _accepted(answering)

    def kept_answer(self, job: str, entry: Entry) -> Entry | None:
        """The same, as far as this process remembers it; None says nothing.

        Raises:
            KintsugiError: what stands in the place of the decision.
        """
        answering = self.kept_answering(job, entry)
        return None if answering is None else _accepted(answering)

    def _said(self, job: str, generation: int) -> list[Entry]:
        latest = self.store.latest_generations([job]).get(job, -1)
        if generation > latest:
            return []
        since = self.store.decision(job, generation).number
        entries = self.store.entries(job, after=since, kind=APPROVAL)
        return [entry for entry in entries if isinstance(entry.content, Approval) and entry.content.generation == generation]

    def _create(self, job: str, request: NewJob, digest: str, key: WriteKey | None) -> None:
        snapshot = _first_snapshot(request)
        decided = self.decider.decided(snapshot, job)
        profile, settings, handling = (Document.of(part) for part in (request.profile, request.settings, request.handling))
        now = self.now()
        first, cluster = planning.stored(
            decided.wording, snapshot, profile=profile.digest, settings=settings.digest, number=0, decided_at=now
        )
        stored = StoredJob(
            id=job,
            created_at=now,
            request_digest=digest,
            profile=profile.digest,
            cluster=cluster.digest,
            settings=settings.digest,
            handling=handling.digest,
        )
        self.store.create(stored, (profile, cluster, settings, handling), first, key)
        if decided.plan is not None:
            self.keep_plan(job, first, Planned(decided.plan, snapshot.cluster))
        self.look_ahead(self.state(job))

    def _known_job(self, job: str | None, digest: str, key: WriteKey | None) -> str | None:
        remembered = self.store.remembered(key)
        if remembered is not None:
            return remembered[0]
        stored = None if job is None else self.store.job(job)
        if stored is not None and stored.request_digest != digest:
            raise ConflictError("belongs to a job that was created from another request; choose another", field="id", value=job)
        return None if stored is None else stored.id


def _key(scope: str, key: str | None, digest: str) -> WriteKey | None:
    own = own_key(key)
    return None if own is None else WriteKey(scope=scope, key=own, request_digest=digest)


def _accepted(entry: Entry | None) -> Entry:
    assert entry is not None
    if entry.problem is not None:
        raise error_from(entry.problem)
    return entry


def _first_snapshot(request: NewJob) -> Snapshot:
    cluster = cluster_of(request.cluster, request.workers, request.workers_per_host)
    return Snapshot(
        profile=request.profile,
        cluster=cluster,
        settings=request.settings,
        plan=None if request.plan is None else replace(request.plan, generation=0),
        alive=tuple(worker.id for worker in cluster.workers),
        generation=0,
    )
