"""How long a client waits for the service, and how often it asks again."""

from dataclasses import dataclass

from kintsugi.core import checks


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a client waits for the service and how often it asks again.

    Raises:
        InvalidInputError: a time is none, a timeout is 0, or no attempt is made.
    """

    timeout_seconds: float = 30.0
    """For one whole answer, beyond the time that the call itself asks the service to wait."""
    connect_seconds: float = 5.0
    """For a connection to be made, its encryption included."""
    attempts: int = 7
    """At most, the first one included: with 1 nothing is asked again."""
    retry_seconds: float = 0.1
    """Before the first retry; each later one waits about twice as long."""
    longest_retry_seconds: float = 5.0
    """Longest pause between two attempts; where the service asks for a longer one that counts, up to a minute."""

    def __post_init__(self) -> None:
        checks.count("attempts", self.attempts)
        for field in ("timeout_seconds", "connect_seconds"):
            checks.positive(field, getattr(self, field))
        for field in ("retry_seconds", "longest_retry_seconds"):
            checks.seconds(field, getattr(self, field))
