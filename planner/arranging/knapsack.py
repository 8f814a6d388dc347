"""Pipeline lengths for a number of workers: a knapsack in which every pipeline of a length is worth its micro-batches.

Halving keeps it small: sorted by length and dealt out in turn, any pipelines fall into two halves (by number) whose
workers differ from their shares of the whole by no more than the spread of lengths. So the best worth of c pipelines is
needed only for totals within one spread of c times the mean length (the argument of Jansen and Rohwedder, "On integer
programming and convolution", 2019, in one dimension): O(spread^2 * log(pipelines)) whatever the number of workers.
"""

import numpy as np

from estimator.arrays import Ints
from estimator.compiled import borrowing, compiled

Worth = Ints
IMPOSSIBLE = -(2**40)
"""Worth of what cannot be filled; stays negative under every sum that occurs."""


@compiled
def most_worth(worth: Worth, first_length: int, num_workers: int, num_pipelines: int) -> int:
    """The most that exactly so many pipelines over so many workers, some of whom may stay idle, are worth together.

    Negative where there are none.

    Args:
        worth: of a pipeline of length first_length + k, shape [lengths]; below 1 where it cannot take a micro-batch.
        first_length: the shortest length.
        num_workers: at most so many in all.
        num_pipelines: exactly so many.
    """
    single, _ = _with_idle(worth)
    most = min(num_workers, num_pipelines * (first_length + len(worth) - 1))
    result: int = _tables(single, first_length, most, num_pipelines, _halves(num_pipelines))[0, len(worth) - 1]
    return result


@compiled
def lengths_worth(worth: Worth, first_length: int, num_workers: int, num_pipelines: int, enough: int) -> Worth:
    """How many pipelines of each length are worth most together, over as many workers as can be. Shape [lengths].

    Args:
        worth: as for `most_worth`, like the rest.
        first_length: the shortest length.
        num_workers: at most so many in all.
        num_pipelines: exactly so many.
        enough: worth, above 0, below which no pipelines will do: then the result is empty.
    """
    single, used = _with_idle(worth)
    most, counts = min(num_workers, num_pipelines * (first_length + len(worth) - 1)), _halves(num_pipelines)
    tables = _tables(single, first_length, most, num_pipelines, counts)
    if tables[0, len(worth) - 1] < enough:
        return np.zeros(0, dtype=np.int64)
    result = np.zeros(len(worth), dtype=np.int64)
    for index, times in enumerate(_trace(tables, counts, len(worth), first_length, most)):
        result[used[index]] += times
    return result


@compiled
def lowest_total(count: int, num_lengths: int, num_workers: int, num_pipelines: int) -> int:
    """The fewest workers of `count` pipelines that a table looks at."""
    return count * num_workers // num_pipelines - (num_lengths - 1)


@compiled
def _halves(count: int) -> Worth:
    """All numbers of pipelines that halving comes to, the largest first."""
    result, size = np.empty(2 * 64, dtype=np.int64), 1
    result[0] = few = many = count
    while many > 1:
        few, many = few // 2, many - many // 2
        for number in (many, few):
            if number > 0 and _place(result[:size], number) < 0:
                result[size] = number
                size += 1
    return result[:size]


@borrowing
def _place(counts: Worth, count: int) -> int:
    """Where a number of pipelines is; -1 where it is not."""
    for place in range(len(counts)):
        if counts[place] == count:
            return place
    return -1


@compiled
def _with_idle(worth: Worth) -> tuple[Worth, Worth]:
    """Worth when a pipeline may leave some of its workers idle, and the index of the length it then has."""
    best, indices = np.empty_like(worth), np.zeros_like(worth)
    for length in range(len(worth)):
        own = worth[length] if worth[length] > 0 else IMPOSSIBLE
        is_better = length == 0 or own >= best[length - 1]
        best[length] = own if is_better else best[length - 1]
        indices[length] = length if is_better else indices[length - 1]
    return best, indices


@compiled
def _tables(single: Worth, first_length: int, num_workers: int, num_pipelines: int, counts: Worth) -> Worth:
    """Most worth of counts[k] pipelines over lowest_total + n workers. Shape [counts, 2 * lengths]."""
    num_lengths = len(single)
    width = 2 * num_lengths
    tables = np.full((len(counts), width), IMPOSSIBLE)
    for row in range(len(counts) - 1, -1, -1):
        count = counts[row]
        low = lowest_total(count, num_lengths, num_workers, num_pipelines)
        if count == 1:
            for length in range(num_lengths):
                if 0 <= first_length + length - low < width:
                    tables[row, first_length + length - low] = single[length]
            continue
        few, many = count // 2, count - count // 2
        shift = lowest_total(few, num_lengths, num_workers, num_pipelines) - low
        shift += lowest_total(many, num_lengths, num_workers, num_pipelines)
        first, second = _place(counts, few), _place(counts, many)
        _combine(tables[first], tables[second], shift, tables[row])
    return tables


@borrowing
def _combine(first: Worth, second: Worth, shift: int, result: Worth) -> None:
    """Put the most worth of both halves together into `result`, whose entry n + shift is filled by entries that sum to n."""
    width = len(result)
    for a in range(width):
        if first[a] < 0:
            continue
        begin = max(0, -shift - a)
        filled, others = result[begin + a + shift :], second[begin:]
        for n in range(min(len(filled), len(others))):  # what cannot be filled stays negative; nothing else decides, for speed
            filled[n] = max(filled[n], first[a] + others[n])


@compiled
def _trace(tables: Worth, counts: Worth, num_lengths: int, first_length: int, num_workers: int) -> Worth:
    """How many pipelines of each length, idle workers included, make up the whole. Shape [lengths]."""
    num_pipelines, width = counts[0], tables.shape[1]
    times = np.zeros(tables.shape, dtype=np.int64)
    times[0, num_lengths - 1] = 1
    result = np.zeros(num_lengths, dtype=np.int64)
    for row in range(len(counts)):
        few, many = counts[row] // 2, counts[row] - counts[row] // 2
        low = lowest_total(counts[row], num_lengths, num_workers, num_pipelines)
        if counts[row] == 1:
            for n in range(width):
                if times[row, n]:
                    result[low + n - first_length] += times[row, n]
            continue
        shift = low - lowest_total(few, num_lengths, num_workers, num_pipelines)
        shift -= lowest_total(many, num_lengths, num_workers, num_pipelines)
        first, second = _place(counts, few), _place(counts, many)
        for n in range(width):
            if times[row, n]:
                part = _part(tables[first], tables[second], n + shift, tables[row, n])
                times[first, part] += times[row, n]
                times[second, n + shift - part] += times[row, n]
    return result


@borrowing
def _part(first: Worth, second: Worth, total: int, worth: int) -> int:
    """Where `first` and `second`, at entries that sum to `total`, are worth so much together."""
    for a in range(max(0, total - len(second) + 1), min(len(first), total + 1)):
        if first[a] >= 0 and second[total - a] >= 0 and first[a] + second[total - a] == worth:
            return a
    return -1
