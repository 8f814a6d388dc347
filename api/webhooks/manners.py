"""How insistently deliveries are made, and what an attempt leads to."""

import random
from dataclasses import dataclass
from datetime import datetime, timedelta

from api.moments import text_of
from api.webhooks.hooks import DeliveryStatus
from api.webhooks.outbox import LONGEST_PAUSE_SECONDS, Parcel, Settlement
from api.webhooks.sender import Attempt
from kintsugi.core.pauses import doubled_seconds

MOST_ERROR_LETTERS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Manners:
    """Times of the deliveries of one service."""

    timeout_seconds: float = 10.0
    """For one attempt."""
    first_retry_seconds: float = 1.0
    """Each later one waits twice as long."""
    longest_retry_seconds: float = LONGEST_PAUSE_SECONDS
    retry_seconds: float = 86_400.0
    """From the news to giving up."""
    keep_seconds: float = 604_800.0
    """How long deliveries that came to an end are shown."""

    def pause_seconds(self, attempts: int) -> float:
        """The pause after so many attempts: exponential, from half to all of it at random, so that senders spread."""
        longest = doubled_seconds(self.first_retry_seconds, attempts - 1, self.longest_retry_seconds)
        return longest * random.uniform(0.5, 1.0)  # noqa: S311

    def settlement(self, parcel: Parcel, attempt: Attempt, now: datetime) -> Settlement:
        """How the delivery stands after an attempt that ended at `now`."""
        attempts = parcel.attempts + 1
        due = now + timedelta(seconds=self.pause_seconds(attempts))
        if attempt.error is None:
            status, due = DeliveryStatus.DELIVERED, now
        elif attempt.is_final or text_of(due) > parcel.retry_until:
            status, due = DeliveryStatus.DEAD, now
        else:
            status = DeliveryStatus.PENDING
        return Settlement(
            status=status,
            attempts=attempts,
            due_at=text_of(due),
            last_status=attempt.status,
            last_error=None if attempt.error is None else attempt.error[:MOST_ERROR_LETTERS],
        )
