"""Best time of a pipeline of p equal workers with m micro-batches: lower bounds first, exact values where they matter."""

import numpy as np
import numpy.typing as npt

from planner.partition import Partitioner, Split, WorkerKind


class Timetable:
    """A table over (length, micro-batches), filled with closed-form bounds and refined entry by entry."""

    def __init__(self, partitioner: Partitioner, kind: WorkerKind, lengths: range, num_microbatches: int) -> None:
        """Fill the table with bounds, O(lengths * num_microbatches)."""
        self._partitioner, self._kind = partitioner, kind
        self.lengths = lengths
        self._splits: dict[tuple[int, int], Split | None] = {}
        counts = np.arange(1, num_microbatches + 1)
        self.seconds: npt.NDArray[np.float64] = np.array(
            [partitioner.least_seconds(length, kind, counts) for length in lengths]
        ).reshape(len(lengths), num_microbatches)
        """Least time of lengths[k] workers with n + 1 micro-batches; infinite where memory does not suffice."""

    def is_exact(self, length: int, num_microbatches: int) -> bool:
        """Whether the entry was refined."""
        return (length, num_microbatches) in self._splits

    def split(self, length: int, num_microbatches: int) -> Split | None:
        """The best split of an entry; refines the entry, and with it those of more micro-batches."""
        key = length, num_microbatches
        if key not in self._splits:
            split = self._partitioner.best((self._kind,) * length, num_microbatches)
            self._splits[key] = split
            row = self.seconds[length - self.lengths.start, num_microbatches - 1 :]
            np.maximum(row, np.inf if split is None else split.pipeline_seconds, out=row)
        return self._splits[key]

    @property
    def num_refined(self) -> int:
        """Entries that were refined."""
        return len(self._splits)
