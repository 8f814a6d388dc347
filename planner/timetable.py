"""Best time of a pipeline of p equal workers with m micro-batches: bounds first, prices where they matter."""

from collections.abc import Callable

import numpy as np

from estimator.compiled import compiled
from estimator.pipeline import Floats
from planner.minimax import Ints
from planner.partition import Attained, Partitioner, Split
from planner.relaxation import Lengths, table

Entry = tuple[int, int]
"""Length and micro-batches of a pipeline."""


class Timetable:
    """A table over (length, micro-batches) up to a horizon: lower bounds, tightened entry by entry, and then prices."""

    def __init__(
        self, partitioner: Partitioner, attain: Callable[[Entry], Attained], lengths: Lengths, horizon_seconds: float
    ) -> None:
        """Fill the table with closed-form bounds, O(layers) each.

        Args:
            partitioner: splits layers.
            attain: the dynamic program's bound of an entry.
            lengths: of pipelines.
            horizon_seconds: longer times are left out.
        """
        self._partitioner, self._attain = partitioner, attain
        self.first_length = lengths.first
        self._attained: dict[Entry, Attained] = {}
        self._splits: dict[Entry, Split] = {}
        self.seconds = table(lengths, horizon_seconds)
        """Least time of first_length + k workers with n + 1 micro-batches; infinite beyond the horizon."""

    def tighten(self, entry: Entry) -> bool:
        """Raise an entry to the dynamic program's bound; False when it is one already. All entries stay lower bounds."""
        if entry in self._attained:
            return False
        attained = self._attained[entry] = self._attain(entry)
        row = self.seconds[entry[0] - self.first_length, entry[1] - 1 :]
        np.maximum(row, attained.seconds, out=row)
        return True

    def price(self, entry: Entry) -> bool:
        """Put a price in the place of a bound; False when the entry has one or it is no more than the bound.

        What the price adds to the bound is expected of the pipeline's other micro-batch counts too, so that their
        bounds do not have to be disproved one by one. The entries are no lower bounds any more.
        """
        if entry in self._splits:
            return False
        self.tighten(entry)
        attained = self._attained[entry]
        split = self._partitioner.best(attained)
        if split is None:
            return True
        self._splits[entry] = split
        if split.seconds <= attained.seconds * (1 + self._partitioner.tolerance):
            return False
        row = self.seconds[entry[0] - self.first_length]
        np.maximum(row, row * (split.seconds / row[entry[1] - 1]), out=row)
        row[entry[1] - 1] = split.seconds
        return True

    def split(self, entry: Entry) -> Split:
        """The split of an entry that has a price."""
        return self._splits[entry]

    def at(self, entry: Entry) -> float:
        """Present value of an entry, in seconds."""
        return float(self.seconds[entry[0] - self.first_length, entry[1] - 1])

    def caps(self, target_seconds: float) -> Ints:
        """Most micro-batches that a pipeline of each length can take within a time. Shape [lengths]."""
        return _caps(self.seconds, target_seconds)

    def values(self, low: float) -> Floats:
        """`low` and the table's distinct values above it, ascending."""
        return _values(self.seconds, low)


@compiled
def _caps(seconds: Floats, target: float) -> Ints:
    """How many entries of each row are within a time."""
    result = np.zeros(len(seconds), dtype=np.int64)
    for row in range(len(seconds)):
        for column in range(seconds.shape[1]):
            result[row] += seconds[row, column] <= target
    return result


@compiled
def _values(seconds: Floats, low: float) -> Floats:
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
