"""The papers' greedy assignments, shard by shard, in exact arithmetic.

With no minimum they are Algorithm 2 of the edge paper, with a minimum of one Algorithm 1 of the multi-party paper.
"""

from planner.sharding.exact import hand_out
from planner.sharding.problem import ExactTimes, ShardAssignment, ShardProblem


def scan_greedy(problem: ShardProblem) -> ShardAssignment:
    """Every neighbour gets its minimum, every further shard goes to the neighbour of least `l_u + p_u`.

    The edge paper calls this within 33 % of the optimum (LPT); for equal shards it is optimal (multi-party paper, Lemma 1).
    Complexity: O(K m) for K shards and m neighbours.
    """
    times = ExactTimes.of(problem)
    counts = [problem.min_shards_per_neighbor] * len(times.costs)
    loads = list(times.after(problem.min_shards_per_neighbor).offsets)
    for _ in range(problem.num_shards - sum(counts)):
        nexts = [load + cost for load, cost in zip(loads, times.costs, strict=True)]
        chosen = nexts.index(min(nexts))
        counts[chosen] += 1
        loads[chosen] = nexts[chosen]
    return times.assignment(counts)


def heap_greedy(problem: ShardProblem) -> ShardAssignment:
    """The same with the heads of all neighbours in a heap.

    Complexity: O((K - m) log m) for K shards and m neighbours.
    """
    times = ExactTimes.of(problem)
    counts = [problem.min_shards_per_neighbor] * len(times.costs)
    return times.assignment(hand_out(times, counts, problem.num_shards - sum(counts)))
