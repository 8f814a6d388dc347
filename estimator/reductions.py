"""When all gradients are reduced: the rounds of a plan after its workers' last passes."""

from collections.abc import Mapping

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
