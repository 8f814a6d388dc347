"""Best time of a pipeline of p equal workers with m micro-batches: bounds first, prices where they matter."""

import math

import numpy as np
import numpy.typing as npt

from estimator.pipeline import Floats
from planner.partition import Partitioner, Split, WorkerKind

Entry = tuple[int, int]
"""Length and micro-batches of a pipeline."""


class Timetable:
    """A table over (length, micro-batches): lower bounds, tightened entry by entry, and then prices."""

    def __init__(
        self, partitioner: Partitioner, kind: WorkerKind, lengths: range, num_microbatches: int, tail_seconds: Floats
    ) -> None:
        """Fill the table with closed-form bounds, O(lengths * layers * num_microbatches).

        Args:
            partitioner: splits layers.
            kind: of all workers.
            lengths: of pipelines.
            num_microbatches: most that one pipeline takes.
            tail_seconds: what follows the last backward pass when the first stage holds n layers, shape [layers + 1].
        """
        self._partitioner, self._kind, self._tail = partitioner, kind, tail_seconds
        self.lengths = lengths
        self._bounds: dict[Entry, float] = {}
        self._splits: dict[Entry, Split] = {}
        self.seconds: Floats = np.array(
            [partitioner.least_seconds(length, kind, num_microbatches, tail_seconds) for length in lengths]
        )
        """Least time of lengths[k] workers with n + 1 micro-batches; infinite where memory does not suffice."""

    def tighten(self, entry: Entry) -> bool:
        """Raise an entry to the dynamic program's bound; False when it is one already. All entries stay lower bounds."""
        if entry in self._bounds:
            return False
        self._bounds[entry] = self._partitioner.bound((self._kind,) * entry[0], entry[1], self._tail)
        row = self.seconds[entry[0] - self.lengths.start, entry[1] - 1 :]
        np.maximum(row, self._bounds[entry], out=row)
        return True

    def price(self, entry: Entry) -> bool:
        """Put a price in the place of a bound; False when the entry has one or it is no more than the bound.

        What the price adds to the bound is expected of the pipeline's other micro-batch counts too, so that their
        bounds do not have to be disproved one by one. The entries are no lower bounds any more.
        """
        if entry in self._splits:
            return False
        self.tighten(entry)
        if math.isinf(self._bounds[entry]):
            return True
        split = self._partitioner.best((self._kind,) * entry[0], entry[1], self._tail)
        assert split is not None, "a finite bound has a split"
        self._splits[entry] = split
        if split.seconds <= self._bounds[entry] * (1 + self._partitioner.tolerance):
            return False
        row = self.seconds[entry[0] - self.lengths.start]
        np.maximum(row, row * (split.seconds / row[entry[1] - 1]), out=row)
        row[entry[1] - 1] = split.seconds
        return True

    def split(self, entry: Entry) -> Split:
        """The split of an entry that has a price."""
        return self._splits[entry]

    def at(self, entry: Entry) -> float:
        """Present value of an entry, in seconds."""
        return float(self.seconds[entry[0] - self.lengths.start, entry[1] - 1])

    def caps(self, target_seconds: float) -> npt.NDArray[np.int64]:
        """Most micro-batches that a pipeline of each length can take within a time. Shape [lengths]."""
        result: npt.NDArray[np.int64] = (self.seconds <= target_seconds).sum(axis=1)
        return result

    def values(self, low: float, high: float) -> npt.NDArray[np.float64]:
        """The table's distinct values within [low, high], ascending."""
        return np.unique(self.seconds[(self.seconds >= low) & (self.seconds <= high) & np.isfinite(self.seconds)])
