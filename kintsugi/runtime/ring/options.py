"""For how long the members of a ring wait for what."""

from dataclasses import dataclass

from kintsugi.core import checks
from kintsugi.core.errors import InvalidInputError


@dataclass(frozen=True, slots=True, kw_only=True)
class RingOptions:
    """Patience of one member."""

    heartbeat_seconds: float = 0.5
    """From one sign of life to the next, on every connection."""
    heartbeat_timeout_seconds: float = 5.0
    """Silence after which a member counts as frozen, and an attempt to connect, or to have something acknowledged, as failed."""
    start_timeout_seconds: float = 60.0
    """For the first neighbours to say anything at all, once their hosts have answered: they may still be loading."""
    retry_seconds: float = 1.0
    """From one question to the next, to the lease and to members that cannot be reached, while nothing can be decided."""

    def __post_init__(self) -> None:
        for field in ("heartbeat_seconds", "heartbeat_timeout_seconds", "start_timeout_seconds", "retry_seconds"):
            checks.positive(field, getattr(self, field))
        if self.heartbeat_timeout_seconds < 2 * self.heartbeat_seconds:
            message = f"must be at least twice heartbeat_seconds ({self.heartbeat_seconds:g}): one late sign of life is no loss"
            raise InvalidInputError(message, field="heartbeat_timeout_seconds", value=self.heartbeat_timeout_seconds)
