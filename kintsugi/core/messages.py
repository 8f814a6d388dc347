"""What trainers and the service tell each other: reports, answers, jobs as they stand, pages of the log."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from kintsugi.core import checks
from kintsugi.core.cluster import Cluster
from kintsugi.core.decision import Decision
from kintsugi.core.ending import EndingRecord, Outcome
from kintsugi.core.errors import InvalidInputError
from kintsugi.core.handling import Handling, PlanStatus, Standing
from kintsugi.core.job import JobSettings
from kintsugi.core.membership import Event
from kintsugi.core.plan import Policy
from kintsugi.core.profile import PYDANTIC_CONFIG


class ReportStatus(StrEnum):
    """What a trainer did with a plan."""

    APPLIED = "applied"
    """All workers of the plan run it: the state lies where the plan puts it."""
    REJECTED = "rejected"
    """The plan was not carried out; the state lies where it lay before."""
    MEASURED = "measured"
    """Times of a plan that runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTimes:
    """Measured times of one layer and one micro-batch on one worker."""

    __pydantic_config__ = PYDANTIC_CONFIG

    layer: int
    worker: str
    forward_seconds: float
    backward_seconds: float

    def __post_init__(self) -> None:
        checks.non_negative("layer", self.layer)
        checks.seconds("forward_seconds", self.forward_seconds)
        checks.seconds("backward_seconds", self.backward_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What a trainer measured while a plan ran or was put in place."""

    __pydantic_config__ = PYDANTIC_CONFIG

    step: int | None = None
    """The optimizer update that was measured last."""
    iteration_seconds: float | None = None
    worker_busy_seconds: Mapping[str, float] = field(default_factory=dict)
    """Computing per step, by worker."""
    layers: tuple[LayerTimes, ...] = ()
    phase_seconds: Mapping[str, float] = field(default_factory=dict)
    """Phases of the recovery that led to this plan, each since the failure: detected, planned, quiesced, ..."""
    incarnations: Mapping[str, int] = field(default_factory=dict)
    """Process lives of the workers that run the plan."""

    def __post_init__(self) -> None:
        if self.step is not None:
            checks.non_negative("step", self.step)
        for worker, incarnation in self.incarnations.items():
            checks.non_negative(f"incarnations.{worker}", incarnation)
        if self.iteration_seconds is not None:
            checks.positive("iteration_seconds", self.iteration_seconds)
        for name in ("worker_busy_seconds", "phase_seconds"):
            for key, value in getattr(self, name).items():
                checks.seconds(f"{name}.{key}", value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A trainer's word on a plan: applied, rejected with a reason, or measured."""

    __pydantic_config__ = PYDANTIC_CONFIG

    generation: int
    status: ReportStatus
    reason: str = ""
    """Needed by rejected."""
    measured: Measurement | None = None
    """Needed by measured."""
    replan: bool = False
    """rejected: decide anew at once, without this plan's policy."""

    def __post_init__(self) -> None:
        checks.settle_choice(self, ReportStatus, "status")
        checks.settle_text(self, "reason")
        checks.non_negative("generation", self.generation)
        if self.status is ReportStatus.REJECTED and not self.reason:
            raise InvalidInputError("is needed by a report of status rejected", field="reason", value="")
        if self.status is ReportStatus.MEASURED and self.measured is None:
            raise InvalidInputError("is needed by a report of status measured", field="measured")
        if self.replan and self.status is not ReportStatus.REJECTED:
            raise InvalidInputError("goes with a report of status rejected alone", field="replan", value=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The decision of one generation of one job, which never changes, and how its plan stands."""

    __pydantic_config__ = PYDANTIC_CONFIG

    job: str
    generation: int
    decided_at: str
    """RFC 3339, UTC."""
    decision: Decision
    status: PlanStatus = PlanStatus.APPROVED
    """How the plan stands; what answers an event says how it stood when it was decided."""
    standing: Standing | None = None
    """Since when and why; null from a service that is older than this field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """Events that are in the log and wait there, with others that may come, for one plan."""

    __pydantic_config__ = PYDANTIC_CONFIG

    job: str
    number: int
    """Position of the last of them in the job's log, from 1."""
    generation: int
    """Of the latest decision so far."""
    decides_at: str
    """When it is decided about them: RFC 3339, UTC."""
    plan: str
    """Path to ask for the plan; with `wait_seconds` it answers once the plan is there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSummary:
    """A job in a few words."""

    __pydantic_config__ = PYDANTIC_CONFIG

    id: str
    created_at: str
    """RFC 3339, UTC."""
    profile: str
    """The profile's name."""
    policy: Policy
    """Of the latest decision."""
    generation: int
    """Of the latest decision."""
    applied_generation: int
    """Of the plan that runs: the one that trainers last reported as applied; -1 where an advise-only job has none."""
    num_workers: int
    num_alive: int
    problem: Mapping[str, Any] | None
    """Why there is no plan for the present membership; null when there is one."""
    current_generation: int = 0
    """Of the plan to go on with: the latest that is approved; in an advise-only job the latest advice."""
    status: PlanStatus = PlanStatus.APPROVED
    """Of the latest decision's plan."""
    outcome: Outcome | None = None
    """How the job ended; null as long as it goes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """A job as it stands: its cluster as events have changed it, who is alive, and the latest decision."""

    __pydantic_config__ = PYDANTIC_CONFIG

    summary: JobSummary
    settings: JobSettings
    cluster: Cluster
    alive: tuple[str, ...]
    decision: Decision
    handling: Handling = field(default_factory=Handling)
    standings: tuple[Standing, ...] = ()
    """Of the plan that runs, the one to go on with and the latest one, by generation."""
    decides_at: str | None = None
    """When it is decided about the events that wait for others; null where none do."""
    ended: EndingRecord | None = None
    """When and how the job ended; null as long as it goes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRecord:
    """An event in the log of its job."""

    __pydantic_config__ = PYDANTIC_CONFIG

    number: int
    """Position in the job's log, from 1."""
    received_at: str
    generation: int
    """Of the decision that answered the event."""
    problem: Mapping[str, Any] | None
    """Why no plan could answer the event; null when one did."""
    event: Event
    pending: bool = False
    """Whether the event still waits with others for its plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportRecord:
    """A report in the log of its job."""

    __pydantic_config__ = PYDANTIC_CONFIG

    number: int
    """Position in the job's log, from 1."""
    received_at: str
    generation: int
    """Of the latest decision once the report was taken into account."""
    problem: Mapping[str, Any] | None
    report: Report


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPage:
    """Some jobs, in the order of their ids."""

    __pydantic_config__ = PYDANTIC_CONFIG

    jobs: tuple[JobSummary, ...]
    next_cursor: str | None
    """Give it as `cursor` for the next page; null at the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventPage:
    """Some events of a job, in the order of its log."""

    __pydantic_config__ = PYDANTIC_CONFIG

    events: tuple[EventRecord, ...]
    next_cursor: str | None
    """Give it as `cursor` for the next page; null at the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportPage:
    """Some reports of a job, in the order of its log."""

    __pydantic_config__ = PYDANTIC_CONFIG

    reports: tuple[ReportRecord, ...]
    next_cursor: str | None
    """Give it as `cursor` for the next page; null at the end."""
