"""The timeline of one recovery: when each phase ended, on the host's monotonic clock."""

from dataclasses import dataclass, field


@dataclass(slots=True, kw_only=True)
class RecoveryTimeline:
    """From a failure to training again. Times are instants in seconds; null until they come."""

    lost: list[str] = field(default_factory=list)
    generation: int = -1
    """Of the plan that ended the recovery."""
    policy: str = ""
    failed_at: float | None = None
    """When the worker was struck, where that is known."""
    detected_at: float
    planned_at: float | None = None
    quiesced_at: float | None = None
    regrouped_at: float | None = None
    transferred_at: float | None = None
    resumed_at: float | None = None
    """The last survivor begins its first step."""
    committed_at: float | None = None
    """The first step is committed."""

    @property
    def began_at(self) -> float:
        """The failure, or its detection where the failure's instant is unknown."""
        return self.failed_at if self.failed_at is not None else self.detected_at

    def phase_seconds(self) -> dict[str, float]:
        """Seconds from the failure to the end of each phase that came to its end."""
        instants = {
            "detected": self.detected_at,
            "planned": self.planned_at,
            "quiesced": self.quiesced_at,
            "regrouped": self.regrouped_at,
            "transferred": self.transferred_at,
            "resumed": self.resumed_at,
            "first_step": self.committed_at,
        }
        return {phase: max(instant - self.began_at, 0.0) for phase, instant in instants.items() if instant is not None}
