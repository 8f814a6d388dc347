"""Who takes which slot of the next plan: the assignment that moves the fewest bytes (Chameleon, section IV-B)."""

from collections import Counter, defaultdict, deque
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy.optimize import linear_sum_assignment, linprog

Range = tuple[int, int]
"""Half-open layer range."""

MOST_SINGLY = 192
"""Up to so many workers are matched one by one; more as kinds of ranges, by the simplex method, whose vertices are integral."""

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


def match_ranges(prefix_bytes: Sequence[int], held: Sequence[Range], wanted: Sequence[Range]) -> tuple[int, ...]:
    """The worker for each slot, moving the fewest bytes in all, where only layer ranges distinguish workers and slots.

    Whoever holds a slot's range takes it: with A held by the worker and wanted by the slot, B held by another worker and T
    another slot's range, |A| + |B & T| >= |A & T| + |B & A|. What is left over is a transportation problem between kinds
    of ranges. Equal choices go by the orders given.

    Args:
        prefix_bytes: state of the first n layers, shape [layers + 1].
        held: half-open layer range of each worker, at least as many as there are slots; an empty one where it holds nothing.
        wanted: half-open layer range of each slot.
    """
    workers: dict[Range, deque[int]] = defaultdict(deque)
    for index, own in enumerate(held):
        workers[own].append(index)
    kept = [workers[slot].popleft() if workers.get(slot) else None for slot in wanted]
    missing = Counter(slot for slot, worker in zip(wanted, kept, strict=True) if worker is None)
    left = Counter({own: len(queue) for own, queue in workers.items() if queue})
    sources: dict[Range, deque[Range]] = defaultdict(deque)
    for (source, slot), count in _transport(prefix_bytes, left, missing).items():
        sources[slot].extend([source] * count)
    return tuple(
        workers[sources[slot].popleft()].popleft() if worker is None else worker for slot, worker in zip(wanted, kept, strict=True)
    )


def _transport(prefix_bytes: Sequence[int], left: Counter[Range], missing: Counter[Range]) -> dict[tuple[Range, Range], int]:
    """How many workers of each range take slots of each other range."""
    if not missing:
        return {}
    sources, slots = sorted(left), sorted(missing)
    costs = missing_bytes(prefix_bytes, sources, slots)
    if left.total() <= MOST_SINGLY:
        rows = np.repeat(np.arange(len(sources)), [left[source] for source in sources])
        columns = np.repeat(np.arange(len(slots)), [missing[slot] for slot in slots])
        pairs = zip(rows[list(match(costs[rows][:, columns]))].tolist(), columns.tolist(), strict=True)
        return dict(Counter((sources[row], slots[column]) for row, column in pairs))
    supply = np.kron(np.eye(len(sources)), np.ones(len(slots)))
    demand = np.tile(np.eye(len(slots)), len(sources))
    solution = linprog(
        costs.ravel() / max(1.0, costs.max()),
        A_ub=supply,
        b_ub=[left[source] for source in sources],
        A_eq=demand,
        b_eq=[missing[slot] for slot in slots],
        method="highs-ds",
    )
    counts = np.rint(solution.x).astype(np.int64).reshape(costs.shape)
    return {(sources[i], slots[j]): int(counts[i, j]) for i, j in zip(*np.nonzero(counts), strict=True)}


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
