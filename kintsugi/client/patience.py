"""How long a client waits for the service, and how often it asks again."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a client waits for the service and how often it asks again."""

    timeout_seconds: float = 30.0
    """For one whole answer, beyond the time that the call itself asks the service to wait."""
    connect_seconds: float = 5.0
    attempts: int = 6
    retry_seconds: float = 0.1
    """Before the first retry; each later one waits about twice as long."""
    longest_retry_seconds: float = 5.0
