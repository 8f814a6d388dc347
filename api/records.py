"""What the service knows of its jobs: their state, folded from the log, and the plans and snapshots that follow from it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from threading import Lock

from api.access.callers import caller, no_job
from api.decisions.planning import StoredSnapshot
from api.jobs.history import Entry, History
from api.jobs.lifecycle import NONE, Lifecycle
from api.storage.continuity import Head
from api.storage.legible import IllegibleError, loaded
from api.storage.recent import Recent
from api.storage.rows import EXPIRY
from api.storage.store import Store
from api.storage.stored import StoredDecision, StoredJob
from kintsugi.core.cluster import Cluster
from kintsugi.core.errors import NotFoundError
from kintsugi.core.handling import DeadlineKind, Expiry, Handling, PlanStatus, Standing
from kintsugi.core.job import JobSettings, Snapshot
from kintsugi.core.membership import Membership
from kintsugi.core.plan import Plan
from kintsugi.core.profile import Profile

CACHED_PLANS = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """A job and its history up to the last entry that this process saw."""

    job: StoredJob
    profile: Profile
    settings: JobSettings
    history: History
    heard_at: str
    """When the last entry was received; before the first, when the job was created."""

    @property
    def head(self) -> Head:
        """How far its log is known."""
        return Head(number=self.history.number, at=self.heard_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class StandingDecision:
    """A decision, and how its plan stands."""

    decision: StoredDecision
    standing: Standing
    status_at_first: PlanStatus
    """What a plan of this job is when it is decided."""

    def to(self, entry: Entry) -> "StandingDecision":
        """The same as it was told first, where `entry` led to the decision: who repeats a question gets the same answer."""
        decision = self.decision
        if entry.number > decision.number:
            return self
        status = self.status_at_first
        first = Standing(generation=decision.generation, status=status, number=decision.number, since=decision.decided_at)
        return replace(self, standing=first)


@dataclass(frozen=True, slots=True)
class Gathered:
    """The latest moment at which it was decided about events of a job that had waited for others."""

    after: int
    """Number of the log entry that ended the time before, or at which this process was when it heard of the first one."""
    entry: Entry


@dataclass(frozen=True, slots=True)
class Planned:
    """The plan of a generation, and the cluster that it was decided for."""

    plan: Plan
    cluster: Cluster


class Records:
    """The reading half of the service; caches are checked against the log at every look."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._states: dict[str, JobState] = {}
        self._keeping = Lock()
        self._plans: Recent[tuple[str, int, str], Planned] = Recent(CACHED_PLANS)
        self._gathered: dict[str, Gathered] = {}
        store.when_set_back(self._forget)

    def state(self, job: str) -> JobState:
        """The job as its whole log tells it.

        Raises:
            NotFoundError: there is no such job.
            SetBackError: the log does not hold any more what this process knows of it, which is forgotten.
        """
        caller().require(job)
        known = self._states.get(job)
        state = known or self._first_state(job)
        entries = self.store.entries_behind(job, state.head)
        if known is not None and not entries:
            return known
        history, heard_at = state.history, state.heard_at
        for entry in entries:
            history, heard_at = history.replayed(entry), entry.received_at
            self.heard(job, entry)
        state = replace(state, history=history, heard_at=heard_at)
        self.keep_state(state)
        return state

    def decision(self, job: str, generation: int | None = None) -> StoredDecision:
        """The decision of a generation, by default the one whose plan is to go on with.

        Raises:
            NotFoundError: there is no such job or generation.
        """
        caller().require(job)
        if generation is not None:
            return self._decision_at(job, generation)
        return self.store.decision(job, self.state(job).history.lifecycle.current)

    def standing_decision(self, job: str, generation: int | None = None) -> StandingDecision:
        """The decision of a generation, by default the one whose plan is to go on with, and how its plan stands.

        Raises:
            NotFoundError: there is no such job or generation.
        """
        lifecycle = self.state(job).history.lifecycle
        return _standing_decision(self.store.decision(job, lifecycle.current if generation is None else generation), lifecycle)

    def kept(self, job: str, generation: int) -> StandingDecision | None:
        """The decision of a generation and how its plan stood when this process looked last, if it did."""
        history, decision = self.kept_history(job), self.store.kept_decision(job, generation)
        if history is None or decision is None or history.generation < generation:
            return None
        return _standing_decision(decision, history.lifecycle)

    def known_state(self, job: str) -> JobState | None:
        """The job as this process saw it last, if it did; other processes may have written since."""
        return self._states.get(job)

    def kept_history(self, job: str) -> History | None:
        """The job's history as this process saw it last, if it did."""
        state = self.known_state(job)
        return None if state is None else state.history

    def answering(self, job: str, entry: Entry) -> Entry | None:
        """The entry at which it was decided about `entry`: itself, or the end of the time for which it waits; none so far."""
        kept = self.kept_answering(job, entry)
        if kept is not None:
            return kept
        after = entry.number
        while expired := self.store.entries(job, after=after, kind=EXPIRY, limit=1):
            if _ends_gathering(expired[0]):
                return expired[0]
            after = expired[0].number
        return None

    def kept_answering(self, job: str, entry: Entry) -> Entry | None:
        """The same, if this process remembers it: that of the latest events that waited together."""
        if not entry.deferred:
            return entry
        kept = self._gathered.get(job)
        return kept.entry if kept is not None and kept.after < entry.number < kept.entry.number else None

    def latest_numbers(self, jobs: Sequence[str]) -> Mapping[str, int]:
        """Number of the last entry of each job's log."""
        return self.store.latest_numbers(jobs)

    def latest_generations(self, jobs: Sequence[str]) -> Mapping[str, int]:
        """Generation of each job's plan to go on with; jobs that are not there, or cannot be read, are left out."""
        found = dict(self.store.latest_generations(jobs))
        for job in jobs:
            history = self.kept_history(job)
            if history is not None and history.lifecycle.handling.requires_approval:
                found.pop(job, None)
                with suppress(NotFoundError, IllegibleError):  # one job's misfortune is not the others'
                    found[job] = self.state(job).history.lifecycle.current
        return found

    def snapshot(self, state: JobState, history: History) -> Snapshot:
        """What the next decision of a job depends on."""
        job, applied, cluster = state.job.id, history.applied_generation, history.membership.cluster
        planned = None if applied == NONE else self._planned(job, applied)
        plan = None if planned is None else planned.plan
        return Snapshot(
            profile=state.profile,
            cluster=cluster,
            settings=state.settings,
            plan=plan,
            alive=history.membership.alive,
            generation=history.generation + 1,
            stateless=() if plan is None else history.stateless(plan),
            draining=() if plan is None else history.draining(plan),
            failures=None if state.settings.mtbf_prior_failures is None else history.failures(state.job.created_at),
            refused_policies=tuple(dict.fromkeys(self._planned(job, generation).plan.policy for generation in history.left_out)),
            speeds_changed=planned is not None and not cluster.is_as_fast_as(planned.cluster, history.membership.alive),
        )

    def job_states(self) -> Mapping[str, int]:
        """How many of the jobs that this process has seen stand how."""
        standing = (state.history for state in tuple(self._states.values()))
        return Counter(
            "ended"
            if history.ended is not None
            else "unplanned"
            if history.problem is not None
            else "applied"
            if history.generation == history.applied_generation
            else "decided"
            for history in standing
        )

    def keep_state(self, state: JobState) -> None:
        """Remember a state that the store holds; one that was read before another was written does not take its place."""
        with self._keeping:
            known = self._states.get(state.job.id)
            if known is None or known.history.number <= state.history.number:
                self._states[state.job.id] = state

    def heard(self, job: str, entry: Entry) -> None:
        """Look at an entry of a log, before a state that it is part of is kept: each is looked at, in their order."""
        if not _ends_gathering(entry):
            return
        with self._keeping:
            before = self._gathered.get(job)
            if before is None:
                known = self._states.get(job)
                self._gathered[job] = Gathered(entry.number if known is None else known.history.number, entry)
            elif before.entry.number < entry.number:
                self._gathered[job] = Gathered(before.entry.number, entry)

    def _first_state(self, job: str) -> JobState:
        first = first_state(self.store, job)
        kept = self.store.latest_history(job)
        return first if kept is None else replace(first, history=kept, heard_at=self.store.entry(job, kept.number).received_at)

    def _forget(self) -> None:
        with self._keeping:
            self._states, self._gathered = {}, {}

    def _decision_at(self, job: str, generation: int) -> StoredDecision:
        try:
            return self.store.present_decision(job, generation)
        except NotFoundError:
            if self.store.job(job) is None:
                raise no_job(job) from None
            raise

    def _planned(self, job: str, generation: int) -> Planned:
        decision = self.store.decision(job, generation)
        planned = self._plans.get(_named(job, decision))
        if planned is None:
            cluster = self.store.document(Cluster, loaded(StoredSnapshot, decision.snapshot).cluster)
            planned = Planned(decision.wording.plan(), cluster)
            self.keep_plan(job, decision, planned)
        return planned

    def keep_plan(self, job: str, decision: StoredDecision, planned: Planned) -> None:
        """Remember the plan of a stored decision, so that it need not be decoded again."""
        self._plans.put(_named(job, decision), planned)


def _named(job: str, decision: StoredDecision) -> tuple[str, int, str]:
    """What no other decision has, in whichever past of the database."""
    return job, decision.generation, decision.decided_at


def _ends_gathering(entry: Entry) -> bool:
    """Whether an entry ends the time for which events wait for others."""
    return isinstance(entry.content, Expiry) and entry.content.kind is DeadlineKind.EVENTS


def first_state(store: Store, job: str) -> JobState:
    """A job before the first entry of its log.

    Raises:
        NotFoundError: there is no such job.
    """
    stored = store.job(job)
    if stored is None:
        raise no_job(job)
    return JobState(
        job=stored,
        profile=store.document(Profile, stored.profile),
        settings=store.document(JobSettings, stored.settings),
        history=_first_history(store, stored),
        heard_at=stored.created_at,
    )


def _first_history(store: Store, job: StoredJob) -> History:
    handling = store.document(Handling, job.handling)
    first = loaded(StoredSnapshot, store.decision(job.id, 0).snapshot)
    lifecycle = Lifecycle.of(handling, created_at=job.created_at, adopted=first.plan_generation is not None)
    return History(membership=Membership.of(store.document(Cluster, job.cluster)), lifecycle=lifecycle)


def _standing_decision(decision: StoredDecision, lifecycle: Lifecycle) -> StandingDecision:
    standing = lifecycle.standing(decision.generation)
    return StandingDecision(decision=decision, standing=standing, status_at_first=lifecycle.first_status)
