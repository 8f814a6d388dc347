"""Request bodies that the nouns do not already give."""

from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field as field_of

from kintsugi.core import checks
from kintsugi.core.cluster import MOST_WORKERS, Cluster
from kintsugi.core.errors import InvalidInputError
from kintsugi.core.handling import Approval, Handling, Verdict
from kintsugi.core.job import DEFAULT_MTBF_SECONDS, JobSettings
from kintsugi.core.membership import Event
from kintsugi.core.plan import Plan
from kintsugi.core.profile import PYDANTIC_CONFIG, Profile
from kintsugi.simulator.rows import Row

MOST_EVENTS = 10_000


def cluster_of(cluster: Cluster | None, workers: int | None, workers_per_host: int) -> Cluster:
    """The cluster that a request gives, either whole or as a number of equal workers.

    Raises:
        InvalidInputError: both are given, or none, or too many workers.
    """
    if (cluster is None) == (workers is None):
        raise InvalidInputError("give either workers (a number) or cluster, not both or none", field="workers", value=workers)
    if cluster is not None:
        return cluster
    assert workers is not None
    if not 1 <= workers <= MOST_WORKERS:
        raise InvalidInputError(f"must be from 1 to {MOST_WORKERS}", field="workers", value=workers)
    checks.count("workers_per_host", workers_per_host)
    return Cluster.uniform(workers, workers_per_host=workers_per_host)


def check_times(settings: JobSettings) -> None:
    """Require credible times where a job is asked for; the noun takes others, for they may be stored.

    Raises:
        InvalidInputError: one is too short.
    """
    checks.mean_time("settings.mtbf_seconds", settings.mtbf_seconds)
    if settings.heartbeat_timeout_seconds is not None:
        checks.heartbeat_timeout("settings.heartbeat_timeout_seconds", settings.heartbeat_timeout_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewJob:
    """A job to plan for: its model, its workers and how it wants to be planned for."""

    __pydantic_config__ = PYDANTIC_CONFIG

    id: str | None = None
    """1 to 100 letters, digits, dots, dashes and underscores; null lets the service choose."""
    profile: Profile
    cluster: Cluster | None = None
    workers: int | None = None
    """So many equal workers w00, w01, ... in the place of a cluster."""
    workers_per_host: int = 1
    settings: JobSettings
    plan: Plan | None = None
    """The plan that runs already; null searches for the best one."""
    handling: Handling = field_of(default_factory=Handling)
    """Who has to approve plans, how long answers are waited for, which events are taken together; by default nobody and none."""

    def __post_init__(self) -> None:
        if self.id is not None:
            checks.identifier("id", self.id)
        cluster_of(self.cluster, self.workers, self.workers_per_host)
        check_times(self.settings)
        if self.settings.allows_follow_up:
            raise InvalidInputError(
                "the service does not follow plans of two steps yet; ask the planner itself",
                field="settings.allows_follow_up",
                value=True,
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class EventBatch:
    """Events that happened together and are answered with one plan."""

    __pydantic_config__ = PYDANTIC_CONFIG

    events: tuple[Event, ...]

    def __post_init__(self) -> None:
        checks.not_empty("events", self.events)
        if len(self.events) > MOST_EVENTS:
            raise InvalidInputError(f"must be at most {MOST_EVENTS}", field="events", value=len(self.events))
        checks.unique("events", [event.id for event in self.events])


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """Somebody's word on a plan that waits for approval."""

    __pydantic_config__ = PYDANTIC_CONFIG

    decision: Verdict
    by: str
    """A person's name, or that of a program that decides for one."""
    reason: str = ""
    """Needed by refuse."""
    replan: bool = False
    """refuse: decide anew at once, without this plan's policy; otherwise the job stays as it is until something happens."""
    decided_at: str | None = None
    """Of the plan that was looked at, as the plan itself and webhooks tell it: a plan that was decided at another moment is neither
    approved nor refused. After a failover of the database another one may have its generation; null means whichever has."""

    def __post_init__(self) -> None:
        self.on(0)

    def on(self, generation: int) -> Approval:
        """The judgement as it is logged, on the plan of one generation."""
        return Approval(
            generation=generation,
            decision=self.decision,
            by=self.by,
            reason=self.reason,
            replan=self.replan,
            decided_at=self.decided_at,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateRequest:
    """A plan to price on a cluster."""

    __pydantic_config__ = PYDANTIC_CONFIG

    profile: Profile
    cluster: Cluster | None = None
    workers: int | None = None
    """So many equal workers w00, w01, ... in the place of a cluster."""
    workers_per_host: int = 1
    plan: Plan
    reconfiguration_seconds: float = 0.0
    mtbf_seconds: float = DEFAULT_MTBF_SECONDS

    def __post_init__(self) -> None:
        cluster_of(self.cluster, self.workers, self.workers_per_host)
        checks.seconds("reconfiguration_seconds", self.reconfiguration_seconds)
        checks.mean_time("mtbf_seconds", self.mtbf_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """Failures and arrivals to think through, for a stored job or for one that is described here."""

    __pydantic_config__ = PYDANTIC_CONFIG

    job: str | None = None
    """A stored job: nothing but `fail`, `fail_hosts`, `join` and `slow` may stand beside it."""
    profile: Profile | None = None
    cluster: Cluster | None = None
    workers: int | None = None
    """So many equal workers w00, w01, ... in the place of a cluster."""
    workers_per_host: int = 1
    settings: JobSettings | None = None
    plan: Plan | None = None
    """The plan that runs; null starts from the best one."""
    fail: tuple[str, ...] = ()
    """Workers that fail, all at once."""
    fail_hosts: tuple[str, ...] = ()
    """Hosts that fail with all their workers."""
    join: tuple[str, ...] = ()
    """Workers that join or return."""
    slow: Mapping[str, float] = field_of(default_factory=dict)
    """Workers that run at another speed than now, and their `speed_ratio`."""

    def __post_init__(self) -> None:
        for field in ("fail", "fail_hosts", "join"):
            checks.unique(field, getattr(self, field))
        for worker, speed_ratio in self.slow.items():
            checks.positive(f"slow.{worker}", speed_ratio)
            if worker in self.fail and worker not in self.join:
                raise InvalidInputError("fails, so its speed says nothing; name it in one of them", field=f"slow.{worker}")
        if self.job is not None:
            checks.name("job", self.job)
            absent = {"profile": None, "cluster": None, "workers": None, "workers_per_host": 1, "settings": None, "plan": None}
            for field, nothing in absent.items():
                if getattr(self, field) != nothing:
                    raise InvalidInputError("is given by the job already; leave it out", field=field)
            return
        for field in ("profile", "settings"):
            if getattr(self, field) is None:
                raise InvalidInputError("is needed where no job is named", field=field)
        assert self.settings is not None
        check_times(self.settings)
        cluster_of(self.cluster, self.workers, self.workers_per_host)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationRequest:
    """A small simulation: one of the scenarios that come with Kintsugi, with some of its numbers changed."""

    __pydantic_config__ = PYDANTIC_CONFIG

    scenario: str
    values: Mapping[str, float] = field_of(default_factory=dict)
    """Other numbers, by dotted path, such as `spares`, `mtbf` or `faults.repair_seconds`."""
    policies: tuple[str, ...] = ("kintsugi", "published")
    seeds: int = 1
    """Runs of every policy."""

    def __post_init__(self) -> None:
        checks.count("seeds", self.seeds)
        checks.not_empty("policies", self.policies)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationReply:
    """What became of the job under each policy."""

    __pydantic_config__ = PYDANTIC_CONFIG

    scenario: str
    rows: tuple[Row, ...]
