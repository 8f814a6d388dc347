"""How a site handles the plans of a job: whether they bind, who approves them, how long anybody waits; how one plan stands."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from kintsugi.core import checks
from kintsugi.core.errors import InvalidInputError
from kintsugi.core.profile import PYDANTIC_CONFIG

LONGEST_COALESCING_SECONDS = 600.0
"""A failed job stands still while events are gathered; more than ten minutes is a wrong unit."""


class Verdict(StrEnum):
    """What is said about a proposed plan."""

    APPROVE = "approve"
    REFUSE = "refuse"


class PlanStatus(StrEnum):
    """How the plan of one generation stands."""

    ADVISED = "advised"
    """Told, and binding for nobody: the job is advise-only."""
    PROPOSED = "proposed"
    """Waits for somebody's approval; no trainer is given it as the plan to go on with."""
    APPROVED = "approved"
    """The plan to go on with, by somebody's approval or because the job asks for none; trainers have not answered yet."""
    REFUSED = "refused"
    """Somebody refused it: it never counts."""
    APPLIED = "applied"
    """It runs: trainers said so, or it is the first plan of a job that is not advise-only."""
    REJECTED = "rejected"
    """Trainers could not carry it out: the plan before it is what runs."""
    TIMED_OUT = "timed_out"
    """Trainers did not answer in time; an answer that comes later counts still."""
    SUPERSEDED = "superseded"
    """A later plan took its place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Handling:
    """What has to happen before a plan counts. It changes when plans are made and who may use them, never what is planned."""

    __pydantic_config__ = PYDANTIC_CONFIG

    advise_only: bool = False
    """The service tells what it would do; no plan counts as running, not even the first, before a trainer reports it applied."""
    requires_approval: bool = False
    """Every plan after the first is proposed until somebody approves or refuses it."""
    approval_timeout_seconds: float | None = None
    """After so long a proposed plan is taken as `on_approval_timeout` says; null waits for ever."""
    on_approval_timeout: Verdict = Verdict.REFUSE
    coalesce_seconds: float = 0.0
    """Events within so long of the first that calls for a plan are answered with one plan."""
    answer_timeout_seconds: float | None = 600.0
    """A plan that trainers neither applied nor rejected after so long is shown as timed out; null waits for ever."""

    def __post_init__(self) -> None:
        if self.advise_only and self.requires_approval:
            message = "makes no sense beside advise_only: advice binds nobody, so there is nothing to approve; choose one of them"
            raise InvalidInputError(message, field="requires_approval", value=True)
        checks.seconds("coalesce_seconds", self.coalesce_seconds, at_most=LONGEST_COALESCING_SECONDS)
        for field in ("approval_timeout_seconds", "answer_timeout_seconds"):
            if (seconds := getattr(self, field)) is not None:
                checks.positive(field, seconds)
        if self.approval_timeout_seconds is not None and not self.requires_approval:
            message = "is of no use without requires_approval; set that, or leave this out"
            raise InvalidInputError(message, field="approval_timeout_seconds", value=self.approval_timeout_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How the plan of one generation stands, since when and why."""

    __pydantic_config__ = PYDANTIC_CONFIG

    generation: int
    status: PlanStatus
    number: int | None = None
    """Log entry since which it stands so; null once superseded."""
    since: str | None = None
    """When that was: RFC 3339, UTC; null once superseded."""
    by: str | None = None
    """Who approved or refused it; null where nobody had to, or nobody did in time."""
    reason: str = ""
    """Why it was approved, refused, rejected, or counts as timed out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Approval:
    """Somebody's word on a proposed plan, as it stands in the log."""

    __pydantic_config__ = PYDANTIC_CONFIG

    generation: int
    decision: Verdict
    by: str
    """A person's name, or that of a program that decides for one."""
    reason: str = ""
    """Needed by refuse."""
    replan: bool = False
    """refuse: decide anew at once, without this plan's policy."""
    decided_at: str | None = None
    """Of the plan that was looked at: RFC 3339; null where that was not said."""

    def __post_init__(self) -> None:
        checks.non_negative("generation", self.generation)
        if self.decided_at is not None:
            checks.timestamp("decided_at", self.decided_at)
        checks.name("by", self.by)
        checks.settle_text(self, "reason")
        if self.decision is Verdict.REFUSE and not self.reason:
            raise InvalidInputError("is needed by a refusal: the next one who looks wants to know why", field="reason", value="")
        if self.decision is Verdict.APPROVE and self.replan:
            raise InvalidInputError("goes with refuse alone; an approved plan counts as it is", field="replan", value=True)


class DeadlineKind(StrEnum):
    """What a job waits for no longer."""

    EVENTS = "events"
    """More events for the same plan: `coalesce_seconds` are over."""
    APPROVAL = "approval"
    ANSWER = "answer"
    """A trainer's answer, applied or rejected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expiry:
    """A deadline that passed, as it stands in the log: what follows from it needs no clock."""

    __pydantic_config__ = PYDANTIC_CONFIG

    kind: DeadlineKind
    generation: int
    """Whose approval or answer was waited for; the latest one where it was for events."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadline:
    """The moment at which an `Expiry` is due."""

    at: str
    """RFC 3339, UTC, to the microsecond."""
    kind: DeadlineKind
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRecord:
    """Somebody's word on a plan in the log of its job, and how the plan stands by it."""

    __pydantic_config__ = PYDANTIC_CONFIG

    number: int
    """Position in the job's log, from 1."""
    received_at: str
    generation: int
    """Of the latest decision once it was taken into account: a later one than the refused plan's where it was decided anew."""
    problem: Mapping[str, Any] | None
    """Why nothing else could be decided in the place of the refused plan; null when something was, or was not asked for."""
    approval: Approval


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalPage:
    """What was said about a job's plans, in the order of its log."""

    __pydantic_config__ = PYDANTIC_CONFIG

    approvals: tuple[ApprovalRecord, ...]
    next_cursor: str | None
    """Give it as `cursor` for the next page; null at the end."""
