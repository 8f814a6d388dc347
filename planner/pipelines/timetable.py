"""Best time of a pipeline of p equal workers with m micro-batches: bounds first, prices where they matter."""

import numpy as np

from estimator.arrays import Floats, Ints
from estimator.compiled import compiled
from planner.pipelines.entries import Entries, Entry
from planner.pipelines.partition import Split
from planner.pipelines.relaxation import Lengths, table


class Timetable:
    """A table over (length, micro-batches) up to a horizon: lower bounds, tightened entry by entry, and then prices."""

    def __init__(self, entries: Entries, lengths: Lengths, horizon_seconds: float) -> None:
        """Fill the table with closed-form bounds, O(layers) each, and with better ones that are known.

        Args:
            entries: better bounds, and splits.
            lengths: of pipelines.
            horizon_seconds: longer times are left out.
        """
        self._entries = entries
        self.first_length = lengths.first
        self._least: dict[Entry, float] = {}
        self._proven: set[Entry] = set()
        self._priced: set[Entry] = set()
        self.seconds = table(lengths, horizon_seconds)
        """Least time of first_length + k workers with n + 1 micro-batches; infinite beyond the horizon."""
        for (length, count), least_seconds in entries.known_bounds():
            if 0 <= length - lengths.first < len(self.seconds) and count <= self.seconds.shape[1]:
                self._raise((length, count), least_seconds)

    def tighten(self, entry: Entry) -> bool:
        """Raise an entry to the dynamic program's bound; False when it is one already. All entries stay lower bounds."""
        if entry in self._least:
            return False
        self._raise(entry, self._entries.attain(entry).seconds)
        return True

    def prove(self, entry: Entry) -> bool:
        """Raise an entry to the best bound that is known of it; False when it is one already. All entries stay lower bounds."""
        if entry in self._proven:
            return False
        self._proven.add(entry)
        is_news, split = self.tighten(entry), self._entries.look(entry)
        if split is None or split.least_seconds <= self._least[entry]:
            return is_news
        self._raise(entry, split.least_seconds)
        return True

    def price(self, entry: Entry) -> bool:
        """Put a price in the place of a bound; False when the entry has one or it is no more than the bound.

        What the price adds to the bound is expected of the pipeline's other micro-batch counts too, so that their
        bounds do not have to be disproved one by one. The entries are no lower bounds any more.
        """
        if entry in self._priced:
            return False
        self.prove(entry)
        split = self._entries.look(entry)
        if split is None:
            return True
        self._priced.add(entry)
        if split.seconds <= self._least[entry] * (1 + self._entries.tolerance):
            return False
        row = self.seconds[entry[0] - self.first_length]
        np.maximum(row, row * (split.seconds / row[entry[1] - 1]), out=row)
        row[entry[1] - 1] = split.seconds
        return True

    def split(self, entry: Entry) -> Split:
        """The split of an entry that has a price."""
        split = self._entries.look(entry)
        assert split is not None, "the entry has no price"
        return split

    def _raise(self, entry: Entry, least_seconds: float) -> None:
        self._least[entry] = least_seconds
        row = self.seconds[entry[0] - self.first_length, entry[1] - 1 :]
        np.maximum(row, least_seconds, out=row)

    def at(self, entry: Entry) -> float:
        """Present value of an entry, in seconds."""
        return float(self.seconds[entry[0] - self.first_length, entry[1] - 1])


@compiled
def caps_within(seconds: Floats, target: float) -> Ints:
    """How many entries of each row are within a time: the most micro-batches of a pipeline of each length. Shape [lengths]."""
    result = np.zeros(len(seconds), dtype=np.int64)
    for row in range(len(seconds)):
        for column in range(seconds.shape[1]):
            result[row] += seconds[row, column] <= target
    return result


@compiled
def values_from(seconds: Floats, low: float) -> Floats:
    """`low` and the distinct finite entries above it, ascending."""
    found, size = np.empty(seconds.size + 1), 1
    found[0] = low
    for value in seconds.flat:
        if low < value < np.inf:
            found[size] = value
            size += 1
    found[:size].sort()
    distinct = 1
    for index in range(1, size):
        if found[index] != found[distinct - 1]:
            found[distinct] = found[index]
            distinct += 1
    return found[:distinct]
