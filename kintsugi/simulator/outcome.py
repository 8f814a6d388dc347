"""What became of a job."""

from collections.abc import Mapping
from dataclasses import dataclass

from kintsugi.simulator.ledger import Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a job."""

    policy: str
    seed: int
    duration_seconds: float
    num_samples: int
    seconds: Mapping[str, float]
    """By account; they sum up to the duration."""
    num_transitions: int
    num_rollbacks: int
    choices: Mapping[str, int]
    """How often each kind of plan was moved to."""
    spans: tuple[Span, ...] = ()
    """Micro-batches per second over time."""
    trained: tuple[tuple[float, int], ...] = ()
    """Micro-batches that count, at one moment after the other; fewer after a rollback."""
    live: tuple[tuple[float, int], ...] = ()
    """Number of living workers from each moment on."""
    stopped_because: str | None = None
    """Why no plan was found for the most workers for which none was; null where the job never stood still."""

    @property
    def samples_per_second(self) -> float:
        """Equation 3: samples of the whole run by its time."""
        return self.num_samples / self.duration_seconds
