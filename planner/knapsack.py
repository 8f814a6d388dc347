"""Pipeline lengths for a number of workers: a knapsack in which every pipeline of a length is worth its micro-batches."""

import numpy as np
import numpy.typing as npt

Worth = npt.NDArray[np.int64]
IMPOSSIBLE = -(2**40)
"""Worth of what cannot be filled; stays negative under every sum that occurs."""


def best_lengths(worth: Worth, first_length: int, num_pipelines: int, num_workers: int, least_worth: int) -> tuple[int, ...] | None:
    """Lengths of `num_pipelines` pipelines over at most `num_workers` workers, worth at least `least_worth` together.

    Uses as many workers as it can. Dynamic program over (pipelines, workers): O(num_pipelines * num_workers * lengths).

    Args:
        worth: of a pipeline of length first_length + k, shape [lengths]; below 1 where it cannot take a micro-batch.
        first_length: the shortest length.
        num_pipelines: exactly so many.
        num_workers: at most so many in all.
        least_worth: that must be reached.

    Returns:
        Lengths in descending order; None where `least_worth` is out of reach.
    """
    lengths = [(first_length + k, int(value)) for k, value in enumerate(worth) if value > 0]
    filled = np.full(num_workers + 1, IMPOSSIBLE, dtype=np.int64)
    filled[0] = 0
    tables = [filled]
    for _ in range(num_pipelines):
        following = np.full(num_workers + 1, IMPOSSIBLE, dtype=np.int64)
        for length, value in lengths:
            if length <= num_workers:
                np.maximum(following[length:], tables[-1][: num_workers + 1 - length] + value, out=following[length:])
        tables.append(following)
    enough = np.flatnonzero(tables[-1] >= least_worth)
    return _trace(tables, lengths, int(enough[-1])) if len(enough) else None


def _trace(tables: list[Worth], lengths: list[tuple[int, int]], num_workers: int) -> tuple[int, ...]:
    result = []
    for index in range(len(tables) - 1, 0, -1):
        length = next(
            length
            for length, value in reversed(lengths)
            if length <= num_workers and tables[index - 1][num_workers - length] + value == tables[index][num_workers]
        )
        result.append(length)
        num_workers -= length
    return tuple(sorted(result, reverse=True))
