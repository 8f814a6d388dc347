"""What the service knows of its jobs: their state, folded from the log, and the plans and snapshots that follow from it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from api.history import History
from api.recent import Recent
from api.store import Store
from api.stored import StoredDecision, StoredJob
from kintsugi.core.cluster import Cluster
from kintsugi.core.errors import NotFoundError
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


class Records:
    """The reading half of the service; caches are checked against the log at every look."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._states: dict[str, JobState] = {}
        self._plans: Recent[tuple[str, int], Plan] = Recent(CACHED_PLANS)

    def state(self, job: str) -> JobState:
        """The job as its whole log tells it.

        Raises:
            NotFoundError: there is no such job.
        """
        state = self._states.get(job) or self._first_state(job)
        history = state.history
        for entry in self.store.entries(job, after=history.number):
            history = history.replayed(entry)
        state = replace(state, history=history)
        self.keep_state(state)
        return state

    def known_state(self, job: str) -> JobState | None:
        """The job as this process saw it last, if it did; other processes may have written since."""
        return self._states.get(job)

    def decision(self, job: str, generation: int | None = None) -> StoredDecision:
        """The decision of a generation, by default the latest.

        Raises:
            NotFoundError: there is no such job or generation.
        """
        latest = self.latest_generations([job]).get(job)
        if latest is None:
            raise _no_job(job)
        return self.store.decision(job, latest if generation is None else generation)

    def latest_generations(self, jobs: Sequence[str]) -> Mapping[str, int]:
        """Generation of each job's latest decision; jobs that are not there are left out."""
        return self.store.latest_generations(jobs)

    def snapshot(self, state: JobState, history: History) -> Snapshot:
        """What the next decision of a job depends on."""
        plan = self._plan(state.job.id, history.applied_generation)
        return Snapshot(
            profile=state.profile,
            cluster=history.membership.cluster,
            settings=state.settings,
            plan=plan,
            alive=history.membership.alive,
            generation=history.generation + 1,
            stateless=history.stateless(plan),
            failures=None if state.settings.mtbf_prior_failures is None else history.failures(state.job.created_at),
        )

    def keep_state(self, state: JobState) -> None:
        """Remember a state that the store holds."""
        self._states[state.job.id] = state

    def _first_state(self, job: str) -> JobState:
        first = first_state(self.store, job)
        kept = self.store.latest_history(job)
        return first if kept is None else replace(first, history=kept)

    def _plan(self, job: str, generation: int) -> Plan:
        plan = self._plans.get((job, generation))
        if plan is None:
            plan = self.store.decision(job, generation).wording.plan()
            self.keep_plan(job, plan)
        return plan

    def keep_plan(self, job: str, plan: Plan) -> None:
        """Remember a stored plan, so that it need not be decoded again."""
        self._plans.put((job, plan.generation), plan)


def first_state(store: Store, job: str) -> JobState:
    """A job before the first entry of its log.

    Raises:
        NotFoundError: there is no such job.
    """
    stored = store.job(job)
    if stored is None:
        raise _no_job(job)
    return JobState(
        job=stored,
        profile=store.document(Profile, stored.profile),
        settings=store.document(JobSettings, stored.settings),
        history=History(membership=Membership.of(store.document(Cluster, stored.cluster))),
    )


def _no_job(job: str) -> NotFoundError:
    """The error for an id that no job has."""
    return NotFoundError("there is no job of this id", field="job", value=job)
