"""When all gradients are reduced: the rounds of a plan after its workers' last passes."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from estimator.costs import Costs
from kintsugi.core.plan import Plan


def reduced_seconds(plan: Plan, costs: Costs, end_seconds: Mapping[str, float]) -> float:
    """End of the last reduction, in seconds; each starts when all its workers are free. O(workers * rounds).

    Args:
        plan: its rounds say who reduces what.
        costs: of the reductions.
        end_seconds: of each worker's last pass; workers that are left out have none.
    """
    free = dict(end_seconds)
    for reductions in plan.rounds:
        for reduction in reductions:
            arrivals = [free[worker] for worker in reduction.workers if worker in free]
            if not arrivals:
                continue
            end = max(arrivals) + costs.reduction_seconds(reduction)
            for worker in reduction.workers:
                free[worker] = end
    return max(free.values())


def staged_reduced_seconds(plan: Plan, costs: Costs, last_passes: Mapping[str, Sequence[tuple[range, float]]]) -> float:
    """`reduced_seconds` where workers are through with some layers earlier, and reduce them beside the passes of the others.

    A worker begins its reductions in their global order, each after the last pass through its layers, and carries them out
    one at a time. O(workers * rounds * parts per worker).

    Args:
        plan: its rounds say who reduces what.
        costs: of the reductions.
        last_passes: layers that each worker passes together, and when it is through with them.
    """
    begun: dict[str, float] = defaultdict(float)
    free: dict[str, float] = defaultdict(float)
    for reduction in (reduction for reductions in plan.rounds for reduction in reductions):
        layers = frozenset(reduction.layers)
        for worker in reduction.workers:
            ends = (end for own, end in last_passes[worker] if not layers.isdisjoint(own))
            begun[worker] = max(begun[worker], *ends, 0.0)
        start = max(max(begun[worker], free[worker]) for worker in reduction.workers)
        free.update(dict.fromkeys(reduction.workers, start + costs.reduction_seconds(reduction)))
    return max(*(end for parts in last_passes.values() for _, end in parts), *free.values(), 0.0)
