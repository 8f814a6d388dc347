"""Signs of life: what a host says of its workers, and what it hears in return."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from kintsugi.core import checks
from kintsugi.core.profile import PYDANTIC_CONFIG


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeats:
    """The workers of one host that are alive."""

    __pydantic_config__ = PYDANTIC_CONFIG

    host: str
    workers: tuple[str, ...]
    observed_at: str
    """RFC 3339, UTC; for people: silence is measured by the service's own clock."""
    step: int | None = None
    """The optimizer update that they finished last."""
    incarnations: Mapping[str, int] = field(default_factory=dict)
    """Process lives of those that are not in their first one."""

    def __post_init__(self) -> None:
        checks.name("host", self.host)
        checks.not_empty("workers", self.workers)
        checks.unique("workers", self.workers)
        checks.timestamp("observed_at", self.observed_at)
        if self.step is not None:
            checks.non_negative("step", self.step)
        for worker, incarnation in self.incarnations.items():
            checks.non_negative(f"incarnations.{worker}", incarnation)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatAnswer:
    """The job as it stands, for those who are alive."""

    __pydantic_config__ = PYDANTIC_CONFIG

    generation: int
    """Of the latest decision: a higher one than the trainer's own is a plan to fetch."""
    timeout_seconds: float | None
    """Silence after which a worker counts as failed; null: nobody listens."""
