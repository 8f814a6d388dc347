"""Who of the sources of a replication should send more, and who less, as their links turn out to be: stolen work.

The plan divides the state by measured rates. Links change and measurements err, so when one source is nearly through while another
would go on for longer, bytes that the slower one has not begun with go over to the faster one.
"""

from collections.abc import Mapping
from dataclasses import dataclass

AHEAD_SECONDS = 0.08
"""Who has less than this left is given more: to ask takes about one time there and back. So much of the other's is on its way."""
LEAST_GAIN_SECONDS = 0.04
LEAST_MOVED_BYTES = 256 * 2**10


@dataclass(slots=True)
class Pace:
    """How fast one source sends, of the time in which it had something to send."""

    left_bytes: int = 0
    """That it was asked for and that have not come."""
    is_whole: bool = False
    """Whether it can send all of the state."""
    _counted_bytes: int = 0
    _busy_seconds: float = 0.0
    _last_at: float | None = None

    def assign(self, num_bytes: int) -> None:
        """It was asked for so much more."""
        self.left_bytes += num_bytes

    def count(self, num_bytes: int, now: float) -> None:
        """So much came; what comes first after a pause tells nothing about the rate."""
        if self._last_at is not None:
            self._counted_bytes += num_bytes
            self._busy_seconds += now - self._last_at
        self.left_bytes = max(self.left_bytes - num_bytes, 0)
        self._last_at = now if self.left_bytes else None

    def bytes_per_second(self, now: float) -> float:
        """Up to now, silence included; 0 where not enough came to tell."""
        seconds = self._busy_seconds + (0.0 if self._last_at is None else now - self._last_at)
        return self._counted_bytes / seconds if seconds > 0 else 0.0

    def seconds_left(self, now: float) -> float:
        """Until all that it was asked for has come, at its pace."""
        if not self.left_bytes:
            return 0.0
        rate = self.bytes_per_second(now)
        return self.left_bytes / rate if rate else float("inf")

    def is_nearly_through(self, now: float) -> bool:
        """Whether it is time to give it more."""
        return self.seconds_left(now) <= AHEAD_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """Bytes that go over from one source to another."""

    giver: str
    taker: str
    num_bytes: int


def move(paces: Mapping[str, Pace], now: float) -> Move | None:
    """What should go over from the source that would end last to the one that ends first; None where it does not pay.

    Both would end at the same time after it, the taker's time to be asked counted.

    Args:
        paces: of all sources that have begun.
        now: of the clock of `Pace.count`.
    """
    takers = [name for name, pace in paces.items() if pace.is_whole and pace.bytes_per_second(now) > 0]
    if not takers or len(paces) < 2:
        return None
    taker = min(takers, key=lambda name: paces[name].seconds_left(now))
    giver = max(paces, key=lambda name: paces[name].seconds_left(now))
    gain = paces[giver].seconds_left(now) - paces[taker].seconds_left(now)
    if not paces[taker].is_nearly_through(now) or gain < LEAST_GAIN_SECONDS + AHEAD_SECONDS:
        return None
    num_bytes = _evened_bytes(paces[giver], paces[taker], now)
    return Move(giver=giver, taker=taker, num_bytes=num_bytes) if num_bytes >= LEAST_MOVED_BYTES else None


def _evened_bytes(giver: Pace, taker: Pace, now: float) -> int:
    """What makes both end together, of that which is not on its way yet."""
    slow, fast = giver.bytes_per_second(now), taker.bytes_per_second(now)
    if not slow:
        return giver.left_bytes // 2
    gap = giver.seconds_left(now) - max(taker.seconds_left(now), AHEAD_SECONDS)
    return int(min(gap * slow * fast / (slow + fast), giver.left_bytes - slow * AHEAD_SECONDS))
