"""How many micro-batches a pipeline of each length can take within a time at most: found where it matters, and once."""

import math

import numpy as np

from estimator.arrays import Ints
from planner.pipelines.entries import Entries, Entry


class Ceilings:
    """Ceilings of one of several pipelines of equal workers, by the best bounds that there are.

    What is too much within a time is too much within less.
    """

    def __init__(self, entries: Entries, lengths: range) -> None:
        """Nothing is known yet.

        Args:
            entries: what is known of such pipelines.
            lengths: that they may have.
        """
        self._entries, self._first = entries, lengths.start
        self._within = np.full(len(lengths), -math.inf)
        """The time for which each ceiling was found last, in seconds."""
        self._most = np.zeros(len(lengths), dtype=np.int64)

    def lower(self, most: Ints, limit_seconds: float) -> None:
        """Lower micro-batches by length (shape [lengths]) to what is known to be the most within a time."""
        np.copyto(most, np.minimum(most, self._most), where=self._within >= limit_seconds)

    def most_within(self, entry: Entry, limit_seconds: float) -> int:
        """Most micro-batches, up to the entry's, with which a pipeline of its length may be through within a time.

        Times are nearly linear in micro-batches: what lies between two of them is found by their line and by halves in turn.
        """
        length, high = entry
        if not self._is_late(entry, limit_seconds):
            return high
        low, seconds, is_by_line = 0, (0.0, self._seconds(entry)), False
        while high - low > 1:
            is_by_line = not is_by_line and seconds[1] < math.inf
            share = (limit_seconds - seconds[0]) / (seconds[1] - seconds[0]) if is_by_line else 0.5
            middle = min(max(low + int((high - low) * share), low + 1), high - 1)
            found = self._seconds((length, middle))
            if found > limit_seconds:
                high, seconds = middle, (seconds[0], found)
            else:
                low, seconds = middle, (found, seconds[1])
        self._within[length - self._first], self._most[length - self._first] = limit_seconds, low
        return low

    def _is_late(self, entry: Entry, limit_seconds: float) -> bool:
        return limit_seconds < math.inf and self._seconds(entry) > limit_seconds

    def _seconds(self, entry: Entry) -> float:
        return self._entries.attain(entry).seconds


class OneByOne(Ceilings):
    """Ceilings that are lowered by one micro-batch at a time: fewer bounds where soon nothing is left."""

    def most_within(self, entry: Entry, limit_seconds: float) -> int:
        """The entry's micro-batches, or one less where these take longer; that one may be too many, too."""
        return entry[1] - self._is_late(entry, limit_seconds)
