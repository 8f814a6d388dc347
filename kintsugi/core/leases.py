"""Generations that workers decide by themselves: what they ask a service to hold, and the plans that it made ahead for them."""

from dataclasses import dataclass

from kintsugi.core import checks
from kintsugi.core.decision import Decision
from kintsugi.core.errors import InvalidInputError
from kintsugi.core.profile import PYDANTIC_CONFIG

MOST_AGREEMENT_LETTERS = 1_048_576


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseClaim:
    """What a worker wants to have held as the one agreement on a generation."""

    __pydantic_config__ = PYDANTIC_CONFIG

    holder: str
    """The worker that asks, for people."""
    agreement: str
    """Opaque to the service: who goes on and from where, in the workers' own words."""

    def __post_init__(self) -> None:
        checks.name("holder", self.holder)
        if not 0 < len(self.agreement) <= MOST_AGREEMENT_LETTERS:
            message = f"must have 1 to {MOST_AGREEMENT_LETTERS} characters"
            raise InvalidInputError(message, field="agreement", value=len(self.agreement))
        checks.storable("agreement", self.agreement)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRecord:
    """The one agreement on a generation of a job's workers: the first that was asked for."""

    __pydantic_config__ = PYDANTIC_CONFIG

    job: str
    generation: int
    """Of the workers' membership."""
    holder: str
    agreement: str
    granted_at: str
    """RFC 3339, UTC."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contingency:
    """A decision made ahead."""

    __pydantic_config__ = PYDANTIC_CONFIG

    fingerprint: str
    """SHA-256 of the snapshot that it answers, by which whoever knows what happened finds it."""
    decision: Decision
    """Without alternatives and previous plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContingencyPage:
    """Some of the decisions that were made ahead of a job's next generation."""

    __pydantic_config__ = PYDANTIC_CONFIG

    generation: int
    """That they would decide: the one after the latest."""
    contingencies: tuple[Contingency, ...]
    """In the order of their fingerprints; more may be made still, single losses first."""
    next_cursor: str | None
