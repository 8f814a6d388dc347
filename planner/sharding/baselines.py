"""What shard assignments are compared with: even, from a single source, and by brute force."""

import math
from collections.abc import Iterator

from planner.sharding.problem import ExactTimes, ShardAssignment, ShardProblem


def even_assignment(problem: ShardProblem) -> ShardAssignment:
    """The same number of shards from every neighbour, one more from the first ones where they do not divide.

    The edge paper's upper bound, and its multi-neighbour replication before any scheduling.
    """
    share, rest = divmod(problem.num_shards, len(problem.neighbors))
    return ExactTimes.of(problem).assignment([share + (index < rest) for index in range(len(problem.neighbors))])


def single_source(problem: ShardProblem) -> ShardAssignment:
    """All shards from the neighbour of the highest bandwidth, of equals from the one ready first, whatever the minimum.

    The papers' single-source replication (EDL+, Elan).
    """
    times = ExactTimes.of(problem)
    fastest = min(range(len(times.costs)), key=lambda source: (times.costs[source], times.offsets[source]))
    return times.assignment([problem.num_shards * (source == fastest) for source in range(len(times.costs))])


def brute_force(problem: ShardProblem) -> ShardAssignment:
    """The best of all assignments, of equals the first in lexicographic order.

    Complexity: `num_assignments(problem)` assignments are priced.
    """
    times = ExactTimes.of(problem)
    return times.assignment(min(_compositions(problem), key=times.makespan))


def num_assignments(problem: ShardProblem) -> int:
    """How many assignments there are: ways to part what the minimum leaves among the neighbours."""
    sources = len(problem.neighbors)
    free = problem.num_shards - problem.min_shards_per_neighbor * sources
    return math.comb(free + sources - 1, sources - 1)


def _compositions(problem: ShardProblem) -> Iterator[tuple[int, ...]]:
    def parts(total: int, sources: int) -> Iterator[tuple[int, ...]]:
        if sources == 1:
            yield (total,)
            return
        minimum = problem.min_shards_per_neighbor
        for first in range(minimum, total - minimum * (sources - 1) + 1):
            for rest in parts(total - first, sources - 1):
                yield (first, *rest)

    return parts(problem.num_shards, len(problem.neighbors))
