"""Few and short rounds by branch and bound; machine code."""

import numpy as np
import numpy.typing as npt

from estimator.compiled import compiled

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


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


@compiled
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
