"""When processes of the service tell each other whom they heard, and from when on what they tell is all there is to know."""

from collections.abc import Mapping

from api.outages import Outage

EXCHANGES = 4
"""Per timeout: hosts tell three times in it that they live, and what was heard must not be old by the time that others know it."""
SHORTEST_PERIOD_SECONDS, LONGEST_PERIOD_SECONDS = 0.1, 5.0
"""From one exchange to the next."""
OVERDUE_PERIODS = 2.0
"""After so many of its own periods without a word nobody knows whom a process hears; once they have passed since an outage, what is
known of others is not of before it.
"""

Heard = Mapping[str, Mapping[str, float]]
"""When each worker was heard last, by job, in seconds."""


class Exchanges:
    """Of one process. All times are in seconds, by its clock."""

    def __init__(self) -> None:
        self.period_seconds = LONGEST_PERIOD_SECONDS
        """From one to the next, as the shortest timeout asked for last."""
        self._is_under_way = False
        self._attempted_at = float("-inf")
        self._began: float | None = None
        """When the last one began that succeeded; null where none did since nobody was listened to."""
        self._resumed_at = float("inf")
        """Since when they succeed."""
        self._forgiven_seconds = 0.0
        """Since then, of the service's own."""
        self._outage = Outage("exchange with other processes of the service who was heard")

    def is_due(self, now: float, timeout_seconds: float | None, noticed: Mapping[str, float]) -> bool:
        """Whether to begin one: it is time, or somebody was found silent, in a job, after the last one began."""
        if timeout_seconds is None:
            self._began = None
            return False
        if self._is_under_way:
            return False
        is_time = now - self._attempted_at >= _period_seconds(timeout_seconds)
        return is_time or any(at >= self._attempted_at for at in noticed.values())

    def begin(self, now: float, timeout_seconds: float | None) -> float:
        """One begins now."""
        self._is_under_way, self._attempted_at = True, now
        if timeout_seconds is not None:
            self.period_seconds = _period_seconds(timeout_seconds)
        return now

    def since(self, now: float) -> float:
        """Since when they succeed; now, where this one would be the first after an outage."""
        return now if self._is_late(now) else self._resumed_at

    def succeeded(self, began: float, now: float) -> float:
        """One did, that began then: for how long before nobody knew what others heard, which is nobody's silence.

        What was forgiven meanwhile is not counted.
        """
        away = 0.0
        if self._began is None:
            self._resumed_at = now
        elif self._is_late(now):
            away, self._resumed_at = max(now - self._began - self._forgiven_seconds, 0.0), now
        self._is_under_way, self._began, self._forgiven_seconds = False, began, 0.0
        self._outage.is_over()
        return away

    def failed(self, error: Exception) -> None:
        """One did."""
        self._is_under_way = False
        self._outage.goes_on(error)

    def forgiven(self, seconds: float) -> None:
        """The service itself was stopped or too busy for so long, and everybody was forgiven that."""
        self._forgiven_seconds += seconds

    def are_known_since(self, moment: float, now: float) -> bool:
        """Whether one that began no earlier succeeded, and they have gone on for so long that all others told what they heard."""
        settled = now - self._resumed_at >= OVERDUE_PERIODS * self.period_seconds
        return self._began is not None and self._began >= moment and settled and not self._is_late(now)

    def _is_late(self, now: float) -> bool:
        return self._began is None or now - self._began > OVERDUE_PERIODS * self.period_seconds


def _period_seconds(timeout_seconds: float) -> float:
    return max(SHORTEST_PERIOD_SECONDS, min(LONGEST_PERIOD_SECONDS, timeout_seconds / EXCHANGES))
