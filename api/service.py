"""What the service does, without HTTP: jobs, events and reports in; decisions out; everything durable before it is told."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import accumulate
from typing import Any
from uuid import uuid4

import structlog

from api import planning
from api.admission import check_report, refuse_other_events, refuse_other_generations
from api.contingencies import Contingencies
from api.database import OvertakenError
from api.history import Entry, History
from api.metrics import Metrics
from api.records import JobState, Records
from api.schemas import NewJob, cluster_of
from api.shelf import Decided
from api.store import Store
from api.stored import Document, StoredDecision, StoredJob, WriteKey
from api.wording import Wording
from kintsugi.core import codec
from kintsugi.core.decision import Decision
from kintsugi.core.errors import ConflictError, KintsugiError, UnavailableError, error_from
from kintsugi.core.job import Snapshot
from kintsugi.core.membership import Event
from kintsugi.core.messages import Report

ATTEMPTS = 20
"""How often a write looks again when another process was first."""


def utc_now() -> str:
    """The present as RFC 3339 text in UTC, to the microsecond."""
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What follows from new log entries: a decision with its snapshot, the error in its place, or nothing."""

    snapshot: Snapshot | None = None
    decided: Decided | None = None
    problem: Mapping[str, Any] | None = None


class Service(Records):
    """Decides for jobs; safe for several threads, and for several processes on one database."""

    def __init__(
        self, store: Store, metrics: Metrics, *, now: Callable[[], str] = utc_now, ahead: Contingencies | None = None
    ) -> None:
        super().__init__(store)
        self._ahead = ahead
        self._metrics = metrics
        self._now = now
        self._log = structlog.get_logger("kintsugi.api")

    def create_job(self, request: NewJob, idempotency_key: str | None = None) -> tuple[str, bool]:
        """Id of the job, and whether it is new; the same request again gives the same job.

        Raises:
            ConflictError: the id or the key belongs to another request.
            InfeasibleError: no plan exists for the job.
        """
        digest = codec.digest(request)
        key = _key("jobs", idempotency_key, digest)
        known = self._known_job(request.id, digest, key)
        if known is not None:
            return known, False
        job = request.id or uuid4().hex
        try:
            self._create(job, request, digest, key)
        except OvertakenError:
            known = self._known_job(request.id, digest, key)
            if known is None:
                raise
            return known, False
        return job, True

    def post_events(self, job: str, events: Sequence[Event], idempotency_key: str | None = None) -> StoredDecision:
        """The decision that answers the events, durable; events whose id was seen change nothing.

        Raises:
            NotFoundError: no such job, worker or host; nothing was stored.
            ConflictError: an id belongs to another event; nothing was stored.
            StaleGenerationError: the events speak of another generation than the latest; nothing was stored.
            InfeasibleError: no plan exists for the members that are left; the events are stored.
        """
        key = _key(job, idempotency_key, codec.digest(events))

        def accept(state: JobState) -> tuple[Sequence[Event], Entry | None]:
            seen = self.store.entries_of_events(job, [event.id for event in events])
            refuse_other_events(events, seen)
            new = [event for event in events if event.id not in seen]
            refuse_other_generations(new, state.history.generation)
            return new, None if new else seen[events[-1].id]

        return self.store.decision(job, self._write(job, key, accept).generation)

    def post_report(self, job: str, report: Report, idempotency_key: str | None = None) -> Entry:
        """The log entry of a report, durable.

        Raises:
            NotFoundError: no such job or generation.
            StaleGenerationError: a later plan was reported as applied already.
            InfeasibleError: by the report the state lies elsewhere, and no plan exists from there; it is stored.
        """

        def accept(state: JobState) -> tuple[Sequence[Report], Entry | None]:
            check_report(report, state.history)
            return [report], None

        return self._write(job, _key(job, idempotency_key, codec.digest(report)), accept)

    def decide(self, snapshot: Snapshot, job: str | None = None) -> Decision:
        """A decision, timed and logged.

        Raises:
            KintsugiError: there is none.
        """
        with self._metrics.planning():
            decision = planning.decide(snapshot)
        self._tell(snapshot, job, decision.policy.value, decision.reason)
        return decision

    def _tell(self, snapshot: Snapshot, job: str | None, policy: str, reason: str) -> None:
        self._metrics.decisions.labels(policy).inc()
        self._log.info("decided", job=job, generation=snapshot.generation, policy=policy, reason=reason)

    def _create(self, job: str, request: NewJob, digest: str, key: WriteKey | None) -> None:
        snapshot = _first_snapshot(request)
        decision = self.decide(snapshot, job)
        profile, settings = Document.of(request.profile), Document.of(request.settings)
        now = self._now()
        first, cluster = planning.stored(
            Wording.of(decision), snapshot, profile=profile.digest, settings=settings.digest, number=0, decided_at=now
        )
        stored = StoredJob(
            id=job,
            created_at=now,
            request_digest=digest,
            profile=profile.digest,
            cluster=cluster.digest,
            settings=settings.digest,
        )
        self.store.create(stored, (profile, cluster, settings), first, key)
        self.keep_plan(job, decision.plan)
        self._look_ahead(self.state(job))

    def _known_job(self, job: str | None, digest: str, key: WriteKey | None) -> str | None:
        remembered = self.store.remembered(key)
        if remembered is not None:
            return remembered[0]
        stored = None if job is None else self.store.job(job)
        if stored is not None and stored.request_digest != digest:
            raise ConflictError("belongs to a job that was created from another request", field="id", value=job)
        return None if stored is None else stored.id

    def _write(self, job: str, key: WriteKey | None, accept: "Accept") -> Entry:
        """Append what `accept` makes of the present state, again and again until no other writer was first."""
        for _ in range(ATTEMPTS):
            with self.store.looking():
                state = self.state(job)
                told = self._told_before(key)
                contents, repeated = ((), told) if told is not None else accept(state)
            if repeated is not None:
                return _told(repeated)
            try:
                return _told(self._append(state, contents, key))
            except OvertakenError:
                continue
        raise UnavailableError(f"other processes kept writing to job {job!r}; try again")

    def _told_before(self, key: WriteKey | None) -> Entry | None:
        remembered = self.store.remembered(key)
        return None if remembered is None else self.store.entry(*remembered)

    def _append(self, state: JobState, contents: Sequence[Event | Report], key: WriteKey | None) -> Entry:
        histories = list(accumulate(contents, History.after, initial=state.history))[1:]
        last, now = histories[-1], self._now()
        outcome = self._outcome(state, last, contents)
        after = last.decided(now) if outcome.decided else last.undecided(outcome.problem) if outcome.problem else last
        entries = [
            Entry(
                number=history.number,
                received_at=now,
                content=content,
                generation=after.generation,
                decided=outcome.decided is not None and history is last,
                problem=outcome.problem,
            )
            for history, content in zip(histories, contents, strict=True)
        ]
        self._commit(state, entries, after, outcome, key)
        self.keep_state(replace(state, history=after))
        if (after.generation, after.applied_generation) != (state.history.generation, state.history.applied_generation):
            self._look_ahead(replace(state, history=after))
        self._metrics.logged(contents)
        return entries[-1]

    def _outcome(self, state: JobState, history: History, contents: Sequence[Event | Report]) -> Outcome:
        if not history.calls_for_a_plan(state.history, contents):
            return Outcome()
        snapshot = self.snapshot(state, history)
        found = self._made_ahead(snapshot, state.job.id)
        try:
            return Outcome(snapshot=snapshot, decided=found or Decided.of(self.decide(snapshot, state.job.id)))
        except KintsugiError as error:
            self._log.warning("no plan", job=state.job.id, generation=snapshot.generation, error=error.as_dict())
            return Outcome(problem=error.as_dict())

    def _made_ahead(self, snapshot: Snapshot, job: str) -> Decided | None:
        """The decision for a snapshot that was thought of before: the same that `decide` would find."""
        if self._ahead is None:
            return None
        started = time.perf_counter()
        found = self._ahead.find(job, snapshot)
        self._metrics.contingencies.labels(str(found is not None).lower()).inc()
        if found is not None:
            self._metrics.planned(time.perf_counter() - started)
            self._tell(snapshot, job, found.policy, found.reason)
        return found

    def _look_ahead(self, state: JobState) -> None:
        if self._ahead is not None:
            self._ahead.submit(state.job.id, lambda: self.snapshot(state, state.history))

    def _commit(self, state: JobState, entries: Sequence[Entry], after: History, outcome: Outcome, key: WriteKey | None) -> None:
        job, last = state.job.id, entries[-1]
        if outcome.snapshot is None or outcome.decided is None:
            self.store.append(job, entries, key=key, history=after)
            return
        stored, cluster = planning.stored(
            outcome.decided.wording,
            outcome.snapshot,
            profile=state.job.profile,
            settings=state.job.settings,
            number=last.number,
            decided_at=last.received_at,
        )
        self.store.append(job, entries, documents=(cluster,), decision=stored, key=key, history=after)
        if outcome.decided.plan is not None:
            self.keep_plan(job, outcome.decided.plan)


Accept = Callable[[JobState], tuple[Sequence[Event] | Sequence[Report], Entry | None]]
"""From the present state to the contents to append, or to the entry that holds them already."""


def _key(scope: str, key: str | None, digest: str) -> WriteKey | None:
    return None if key is None else WriteKey(scope=scope, key=key, request_digest=digest)


def _told(entry: Entry) -> Entry:
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
