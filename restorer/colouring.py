"""Few and short rounds by first fit and by branch and bound; machine code."""

import numpy as np

from estimator.arrays import Ints, Mask
from estimator.compiled import borrowing, compiled


@compiled
def first_fitted(conflicts: Mask, num_bytes: Ints) -> Ints:
    """The round of every bucket by first fit along the model, by size or by degree, whichever weighs least. Shape [buckets].

    Args:
        conflicts: whether two buckets share a worker, shape [buckets, buckets].
        num_bytes: of each.
    """
    by_size, degrees = np.argsort(-num_bytes, kind="mergesort"), conflicts.sum(axis=1)
    by_degree = by_size[np.argsort(-degrees[by_size], kind="mergesort")]
    best = _first_fit(conflicts, np.arange(len(num_bytes)))
    for order in (by_size, by_degree):
        colours = _first_fit(conflicts, order)
        if weight(colours, num_bytes) < weight(best, num_bytes):
            best = colours
    return best


@compiled
def weight(colours: Ints, num_bytes: Ints) -> tuple[int, int]:
    """How many rounds, and the sum of their largest buckets, in bytes."""
    largest = np.zeros(len(colours), dtype=np.int64)
    for index in range(len(colours)):
        largest[colours[index]] = max(largest[colours[index]], num_bytes[index])
    return (colours.max() + 1 if len(colours) else 0), largest.sum()


@compiled
def _first_fit(conflicts: Mask, order: Ints) -> Ints:
    """Every bucket in the first round without a conflict."""
    colours = np.full(len(order), -1)
    for index in order:
        is_taken = np.zeros(len(order), dtype=np.bool_)
        for other in range(len(order)):
            if conflicts[index, other] and colours[other] >= 0:
                is_taken[colours[other]] = True
        while is_taken[colours[index] + 1]:
            colours[index] += 1
        colours[index] += 1
    return colours


@compiled
def coloured(conflicts: Mask, num_bytes: Ints, least: tuple[int, int], most_nodes: int) -> Ints:
    """The round of every bucket where that needs fewer rounds, or as many with fewer bytes; empty where none is found.

    Buckets are placed in the order given, the largest first, so that the first of a round is its largest and pays for it.

    Args:
        conflicts: whether two buckets share a worker, shape [buckets, buckets].
        num_bytes: of each, descending.
        least: rounds that are known, and their bytes.
        most_nodes: places that are tried at most.
    """
    size, depth, num_nodes, is_new = len(num_bytes), 0, 0, True
    best, colour = np.empty(0, dtype=np.int64), np.zeros(size, dtype=np.int64)
    count, weight = np.zeros(size + 1, dtype=np.int64), np.zeros(size + 1, dtype=np.int64)
    following, last = np.zeros(size + 1, dtype=np.int64), np.zeros(size + 1, dtype=np.int64)
    while depth >= 0:
        if is_new:
            following[depth], last[depth], is_new = 0, -1, False
            if (count[depth], weight[depth]) < least and num_nodes < most_nodes:
                if depth == size:
                    best, least = colour.copy(), (count[depth], weight[depth])
                else:
                    num_nodes, last[depth] = num_nodes + 1, count[depth]
        choice = _free(conflicts, colour, depth, following[depth], last[depth])
        if choice > last[depth]:
            depth -= 1
            continue
        is_own, colour[depth], following[depth] = choice == count[depth], choice, choice + 1
        count[depth + 1] = count[depth] + is_own
        weight[depth + 1] = weight[depth] + is_own * num_bytes[depth]
        depth, is_new = depth + 1, True
    return best


@borrowing
def _free(conflicts: Mask, colour: Ints, depth: int, first: int, last: int) -> int:
    """The first round from one on without a conflict; one more than the last where there is none."""
    for choice in range(first, last + 1):
        is_free = True
        for other in range(depth):
            if colour[other] == choice and conflicts[depth, other]:
                is_free = False
                break
        if is_free:
            return choice
    return last + 1
