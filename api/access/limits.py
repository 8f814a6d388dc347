"""How much of the service one caller may take."""

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import ceil

from api.access.callers import caller
from kintsugi.core.errors import TooManyRequestsError

TRACKED_CALLERS = 10_000
"""Callers whose rates are known at the same time; the one that was silent longest is forgotten first."""

ONE_TOKENS_SHARE = 0.75
"""Of the places for clients that wait: one token's may be lost or run wild, and the others' jobs still get their plans."""


class Buckets:
    """A token bucket for each caller; used by one thread.

    Args:
        rate: requests per second in the long run.
        burst: requests at once after a silence.
        setting: what to change for another rate.
        clock: seconds.
    """

    def __init__(self, *, rate: float, burst: float, setting: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._burst = max(burst, 1.0)
        self._setting = setting
        self._clock = clock
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, key: str) -> None:
        """Let one request of `key` pass.

        Raises:
            TooManyRequestsError: it must wait.
        """
        if not self.passes(key):
            raise self._refusal(self._level(key))

    def passes(self, key: str) -> bool:
        """Whether one request of `key` may pass now; if so, it is counted."""
        level = self._level(key)
        passes = level >= 1.0
        self._keep(key, level - 1.0 if passes else level)
        return passes

    def _level(self, key: str) -> float:
        level, moment = self._levels.get(key, (self._burst, self._clock()))
        return min(self._burst, level + (self._clock() - moment) * self._rate)

    def _keep(self, key: str, level: float) -> None:
        self._levels[key] = (level, self._clock())
        self._levels.move_to_end(key)
        if len(self._levels) > TRACKED_CALLERS:
            self._levels.popitem(last=False)

    def _refusal(self, level: float) -> TooManyRequestsError:
        seconds = ceil((1.0 - level) / self._rate)
        message = f"come again in {seconds} s; {self._setting} sets the limit"
        return TooManyRequestsError(message, field=self._setting, retry_seconds=seconds)


class Places:
    """Room for so many clients that wait at the same time, and for fewer of one token; used by one thread."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._most_of_one = ceil(most * ONE_TOKENS_SHARE)
        self._taken: Counter[str] = Counter()

    @contextmanager
    def one(self) -> Iterator[None]:
        """A place for the present caller, for as long as it is needed.

        Raises:
            TooManyRequestsError: all are taken, or all that may be the caller's token's.
        """
        token = caller().token
        name = token.id if token is not None else ""
        if self._taken.total() >= self._most:
            raise self._refusal(f"{self._most} clients wait already")
        if token is not None and self._taken[name] >= self._most_of_one:
            raise self._refusal(f"{self._most_of_one} clients with this token wait already, and others need places, too")
        self._taken[name] += 1
        try:
            yield
        finally:
            self._taken[name] -= 1
            if not self._taken[name]:
                del self._taken[name]

    def _refusal(self, why: str) -> TooManyRequestsError:
        message = f"{why}; come again, or let KINTSUGI_MAX_WAITING_CLIENTS be more"
        return TooManyRequestsError(message, field="KINTSUGI_MAX_WAITING_CLIENTS", retry_seconds=1)
