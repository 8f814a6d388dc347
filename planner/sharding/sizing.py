"""How large a shard should be: the edge paper's binary search, and the multi-party paper's divisibility chain."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kintsugi.core import checks
from planner.sharding.exact import assign_shards
from planner.sharding.greedy import scan_greedy
from planner.sharding.problem import Neighbor, ShardAssignment, ShardProblem

Solve = Callable[[ShardProblem], ShardAssignment]


@dataclass(frozen=True, slots=True, kw_only=True)
class SizedAssignment:
    """A shard size, the problem that it gives, and its solution."""

    problem: ShardProblem
    assignment: ShardAssignment

    @property
    def shard_bytes(self) -> int:
        """Bytes of a shard."""
        return self.problem.shard_bytes


def search_shard_size(
    layer_bytes: Sequence[int], neighbors: tuple[Neighbor, ...], *, solve: Solve = scan_greedy
) -> SizedAssignment:
    """A shard size between the smallest and the largest layer, by bisection (edge paper, Algorithm 1).

    The makespan is not monotonic in the size, so this is a heuristic: it goes to smaller sizes after every improvement and to
    larger ones after every failure. The paper wants the size to divide the state and yet tries sizes that do not; the last
    shard then counts as a whole one, as Algorithm 2 prices it. Otherwise than there, the state is cut as a whole rather than
    tensor by tensor (line 5), and neighbours that send nothing do not count (theta in line 8).

    Args:
        layer_bytes: sizes of the state's tensors.
        neighbors: who can send; none of them has to.
        solve: the solver of P3; Algorithm 2 by default. `assign_shards` gives the same without a loop over shards.

    Raises:
        InvalidInputError: there is no layer, or one without bytes.

    Complexity: O(log S) calls of `solve` for a range of S sizes.
    """
    low, high, total = _smallest(layer_bytes), max(layer_bytes), sum(layer_bytes)
    best: SizedAssignment | None = None
    while low <= high:
        size = (low + high) // 2
        tried = _sized(-(-total // size), size, 0, neighbors, solve)
        if best is None or tried.assignment.makespan_seconds < best.assignment.makespan_seconds:
            best, high = tried, size - 1
        else:
            low = size + 1
    assert best is not None
    return best


def divisibility_chain(layer_bytes: Sequence[int], min_shards: int) -> tuple[int, ...]:
    """Shard sizes `s_1, 2 s_1, 4 s_1, ...` that divide the state into at least `min_shards` shards, ascending.

    `s_1`, the atomic size, is that of the smallest tensor, or its greatest divisor that divides the state (multi-party
    paper, section III-A). Shards may span tensors. Empty where even atomic shards are too few.

    Raises:
        InvalidInputError: there is no layer, or one without bytes.
    """
    size, total = math.gcd(_smallest(layer_bytes), sum(layer_bytes)), sum(layer_bytes)
    chain = []
    while total % size == 0 and total // size >= max(1, min_shards):
        chain.append(size)
        size *= 2
    return tuple(chain)


def solve_along_chain(
    layer_bytes: Sequence[int], neighbors: tuple[Neighbor, ...], *, min_shards_per_neighbor: int = 1, solve: Solve = assign_shards
) -> tuple[SizedAssignment, ...]:
    """The best assignment for each size of the chain, smallest size first.

    Along the chain the makespan never falls (Theorem 1 and Corollary 1), so the first is the best of all; the others
    show what larger shards would cost. Empty where the chain is.

    Raises:
        InvalidInputError: there is no layer, or one without bytes.
    """
    total, minimum = sum(layer_bytes), min_shards_per_neighbor
    chain = divisibility_chain(layer_bytes, minimum * len(neighbors))
    return tuple(_sized(total // size, size, minimum, neighbors, solve) for size in chain)


def _smallest(layer_bytes: Sequence[int]) -> int:
    checks.not_empty("layer_bytes", layer_bytes)
    for index, num_bytes in enumerate(layer_bytes):
        checks.positive(f"layer_bytes[{index}]", num_bytes)
    return min(layer_bytes)


def _sized(num_shards: int, size: int, minimum: int, neighbors: tuple[Neighbor, ...], solve: Solve) -> SizedAssignment:
    problem = ShardProblem(num_shards=num_shards, shard_bytes=size, min_shards_per_neighbor=minimum, neighbors=neighbors)
    return SizedAssignment(problem=problem, assignment=solve(problem))
