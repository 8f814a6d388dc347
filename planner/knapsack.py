"""Pipeline lengths for a number of workers: a knapsack in which every pipeline of a length is worth its micro-batches."""

import numpy as np
import numpy.typing as npt

Worth = npt.NDArray[np.int64]
IMPOSSIBLE = -(2**40)
"""Worth of what cannot be filled; stays negative under every sum that occurs."""


class Knapsack:
    """Exactly k pipelines over exactly n workers: (max, +) powers of the worth by length, by doubling.

    O(num_workers^2 * log(num_pipelines)).
    """

    def __init__(self, worth: Worth, first_length: int, num_workers: int) -> None:
        """Set the items.

        Args:
            worth: of a pipeline of length first_length + k, shape [lengths]; below 1 where it cannot take a micro-batch.
            first_length: the shortest length.
            num_workers: at most so many in all.
        """
        single = np.full(num_workers + 2, IMPOSSIBLE, dtype=np.int64)  # the last entry is read for fewer than no workers
        stop = min(first_length + len(worth), num_workers + 1)
        single[first_length:stop] = np.where(worth > 0, worth, IMPOSSIBLE)[: stop - first_length]
        self._tables: dict[int, Worth] = {1: single}
        sizes = np.arange(num_workers + 1)
        self._rest = sizes[:, None] - sizes[None, :]
        self._rest[self._rest < 0] = num_workers + 1

    def lengths(self, num_pipelines: int, least_worth: int) -> tuple[int, ...] | None:
        """Lengths, longest first, worth at least `least_worth` together, over as many workers as can be; None: there are none."""
        enough = np.flatnonzero(self._table(num_pipelines)[:-1] >= least_worth)
        return tuple(sorted(self._trace(num_pipelines, int(enough[-1])), reverse=True)) if len(enough) else None

    def _table(self, num_pipelines: int) -> Worth:
        """Most worth of `num_pipelines` pipelines over exactly n workers. Shape [workers + 2]."""
        if num_pipelines not in self._tables:
            first = num_pipelines // 2
            table = np.full(len(self._tables[1]), IMPOSSIBLE, dtype=np.int64)
            self._sums(first, num_pipelines - first).max(axis=1, out=table[:-1])
            self._tables[num_pipelines] = table
        return self._tables[num_pipelines]

    def _sums(self, first: int, second: int) -> Worth:
        """Worth of `first` pipelines over n - a workers and `second` over a. Shape [workers + 1, workers + 1]."""
        result: Worth = self._table(first)[self._rest] + self._table(second)[None, :-1]
        return result

    def _trace(self, num_pipelines: int, num_workers: int) -> tuple[int, ...]:
        if num_pipelines == 1:
            return (num_workers,)
        first = num_pipelines // 2
        second = num_pipelines - first
        share = int(self._sums(first, second)[num_workers].argmax())
        return self._trace(first, num_workers - share) + self._trace(second, share)
