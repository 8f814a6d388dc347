"""What a job's past says about its failures."""

from dataclasses import dataclass

from kintsugi.core import checks
from kintsugi.core.profile import PYDANTIC_CONFIG


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRecord:
    """Failures of a job, and the time over which they were counted."""

    __pydantic_config__ = PYDANTIC_CONFIG

    num_failures: int
    """Losses that one plan answered count once."""
    observed_seconds: float

    def __post_init__(self) -> None:
        checks.non_negative("num_failures", self.num_failures)
        checks.non_negative("observed_seconds", self.observed_seconds)
