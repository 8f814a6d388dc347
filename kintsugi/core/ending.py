"""The end of a job: who says how it ended, once, after which nothing more happens in it."""

from dataclasses import dataclass
from enum import StrEnum

from kintsugi.core import checks
from kintsugi.core.errors import InvalidInputError
from kintsugi.core.profile import PYDANTIC_CONFIG


class Outcome(StrEnum):
    """How a job ended."""

    COMPLETED = "completed"
    """It trained all that it was to train."""
    FAILED = "failed"
    """It could not go on."""
    CANCELLED = "cancelled"
    """Somebody had it stopped, or takes it for dead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """Somebody's word that a job is over, as it stands in its log."""

    __pydantic_config__ = PYDANTIC_CONFIG

    outcome: Outcome
    by: str | None = None
    """A person's name, or that of a program; null where nobody says."""
    reason: str = ""
    """Needed by failed and cancelled."""

    def __post_init__(self) -> None:
        checks.settle_choice(self, Outcome, "outcome")
        checks.settle_text(self, "reason")
        if self.by is not None:
            checks.name("by", self.by)
        if self.outcome is not Outcome.COMPLETED and not self.reason:
            message = f"is needed by an ending of outcome {self.outcome.value}: the next one who looks wants to know why"
            raise InvalidInputError(message, field="reason", value="")


@dataclass(frozen=True, slots=True, kw_only=True)
class EndingRecord:
    """The end of a job in its log."""

    __pydantic_config__ = PYDANTIC_CONFIG

    number: int
    """Position in the job's log, from 1; what was measured, logged or decided before stands in front of it."""
    received_at: str
    """RFC 3339, UTC."""
    generation: int
    """Of the latest decision."""
    ending: Ending
