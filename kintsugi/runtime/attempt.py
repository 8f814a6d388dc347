"""An attempt of the agent to bring its workers onto a plan: its phases, and what has come in."""

from dataclasses import dataclass, field
from enum import StrEnum

from kintsugi.runtime.commit import StepStatus
from kintsugi.runtime.messages import Collected, Ready


class Phase(StrEnum):
    """What the job is doing."""

    STARTING = "starting"
    QUIESCING = "quiescing"
    """Survivors leave the interrupted step while the next plan is decided."""
    PREPARING = "preparing"
    """Survivors connect their groups and transfer state."""
    TRAINING = "training"
    COLLECTING = "collecting"


@dataclass(slots=True)
class Attempt:
    """What has come in since an attempt to reach a plan began."""

    number: int
    statuses: dict[str, StepStatus | None] = field(default_factory=dict)
    members: tuple[str, ...] = ()
    ready: dict[str, Ready] = field(default_factory=dict)
    resumed: dict[str, float] = field(default_factory=dict)
    finished: set[str] = field(default_factory=set)
    collected: dict[str, Collected] = field(default_factory=dict)
    broken: tuple[float, str] | None = None
    """When a link broke, and what its worker said."""
