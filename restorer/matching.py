"""Who takes which slot of the next plan: the assignment that moves the fewest bytes (Chameleon, section IV-B)."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy.optimize import linear_sum_assignment

FORBIDDEN = 2.0**52
"""Cost of a worker in a slot it must not take; above every sum of bytes that floats count exactly."""


def match(cost_bytes: npt.NDArray[np.float64], kept: npt.NDArray[np.bool_] | None = None) -> tuple[int, ...]:
    """The worker (row) for each slot (column), moving the fewest bytes in all; Kuhn-Munkres, O(n^3).

    Equal costs are broken towards `kept`, then by the solver, which is deterministic.

    Args:
        cost_bytes: bytes that must reach worker i before it can take slot j, shape [workers, slots], workers >= slots.
        kept: whether worker i holds slot j already, same shape.
    """
    costs = cost_bytes * 2 if kept is None else cost_bytes * 2 + ~kept
    rows, columns = linear_sum_assignment(costs)
    order = np.argsort(columns, kind="stable")
    return tuple(int(row) for row in rows[order])


def missing_bytes(
    prefix_bytes: Sequence[int], held: Sequence[tuple[int, int]], wanted: Sequence[tuple[int, int]]
) -> npt.NDArray[np.float64]:
    """Bytes of the layers that each slot needs and each worker lacks. Shape [workers, slots].

    Args:
        prefix_bytes: state of the first n layers, shape [layers + 1].
        held: half-open layer range of each worker; an empty one where it holds nothing.
        wanted: half-open layer range of each slot.
    """
    prefix = np.asarray(prefix_bytes, dtype=np.int64)
    have, want = np.asarray(held, dtype=np.int64), np.asarray(wanted, dtype=np.int64)
    start = np.maximum(have[:, None, 0], want[None, :, 0])
    stop = np.maximum(start, np.minimum(have[:, None, 1], want[None, :, 1]))
    total = prefix[want[:, 1]] - prefix[want[:, 0]]
    result: npt.NDArray[np.float64] = (total[None, :] - (prefix[stop] - prefix[start])).astype(np.float64)
    return result
