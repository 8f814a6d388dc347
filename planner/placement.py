"""Who takes which slot of an arrangement."""

from collections import Counter, defaultdict, deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from estimator.costs import Costs
from kintsugi.core.plan import IdleWorker, Pipeline, Plan, Policy, Schedule, Stage
from planner.partition import WorkerKind
from planner.search import Arrangement, kind_of
from restorer.matching import FORBIDDEN, match, missing_bytes
from restorer.migration import state_prefix_bytes
from restorer.rounds import colour_rounds

NOT_NEEDED = "no arrangement with this worker has a shorter step"


@dataclass(frozen=True, slots=True)
class Holdings:
    """Who holds what before the plan: the plan that ran last and its workers that are alive with their state."""

    plan: Plan | None
    survivors: Collection[str]

    def layers_of(self, worker: str) -> tuple[int, int]:
        """Half-open layer range that a worker holds; (0, 0) for nothing."""
        stage = self.plan.stage_of.get(worker) if self.plan is not None and worker in self.survivors else None
        return (0, 0) if stage is None else (stage.layer_start, stage.layer_stop)


def place(
    arrangement: Arrangement,
    workers: Sequence[str],
    holdings: Holdings,
    costs: Costs,
    *,
    schedule: Schedule,
    generation: int,
    policy: Policy,
) -> Plan:
    """Name the workers of an arrangement so that the fewest bytes move; with nothing to keep, in the order given.

    Args:
        arrangement: pipelines without names.
        workers: that may be used, in cluster order.
        holdings: who holds what already.
        costs: of the job.
        schedule: order of passes.
        generation: of the plan.
        policy: of the plan.
    """
    slots = [(a, b) for shape in arrangement.shapes for a, b in pairwise(shape.cuts)]
    chosen = _assign(slots, arrangement.kinds, workers, holdings, costs)
    names = iter(chosen)
    pipelines = tuple(
        Pipeline(
            num_microbatches=shape.num_microbatches,
            stages=tuple(Stage(layer_start=a, layer_stop=b, worker=next(names)) for a, b in pairwise(shape.cuts)),
        )
        for shape in arrangement.shapes
    )
    used = set(chosen)
    idle = tuple(IdleWorker(worker=worker, reason=NOT_NEEDED) for worker in workers if worker not in used)
    plan = Plan(generation=generation, policy=policy, schedule=schedule, pipelines=pipelines, idle_workers=idle)
    return replace(plan, rounds=colour_rounds(plan, costs.profile))


def least_migration_seconds(arrangement: Arrangement, holdings: Holdings, costs: Costs) -> float:
    """What reaching an arrangement takes at least: some worker must receive what the closest holding lacks.

    Slots whose layers as many survivors hold are free. Exact in which kinds of slots lack holders, not in who takes them.
    """
    wanted = Counter((a, b) for shape in arrangement.shapes for a, b in pairwise(shape.cuts))
    held = Counter(holdings.layers_of(worker) for worker in holdings.survivors)
    missing = sorted(wanted - held)
    if not missing:
        return 0.0
    free = sorted(held - wanted) or [(0, 0)]
    lacking = missing_bytes(state_prefix_bytes(costs.profile), free, missing).min(axis=0).max()
    network = costs.profile.network
    beta = min(link.beta_seconds_per_byte for link in (network.intra_host, network.inter_host))
    return float(lacking) * beta


def _assign(
    slots: list[tuple[int, int]],
    planned: Sequence[WorkerKind] | None,
    workers: Sequence[str],
    holdings: Holdings,
    costs: Costs,
) -> tuple[str, ...]:
    """The worker of every slot."""
    if holdings.plan is None:
        return tuple(workers[: len(slots)]) if planned is None else _in_order(planned, workers, costs)
    held = [holdings.layers_of(worker) for worker in workers]
    cost = missing_bytes(state_prefix_bytes(costs.profile), held, slots)
    if planned is not None:
        kinds = [kind_of(costs.cluster.by_id[worker], costs.profile) for worker in workers]
        cost += FORBIDDEN * np.array([[kind != wanted for wanted in planned] for kind in kinds])
    return tuple(workers[row] for row in match(cost))


def _in_order(planned: Sequence[WorkerKind], workers: Sequence[str], costs: Costs) -> tuple[str, ...]:
    """For every slot the next worker of its kind, in cluster order."""
    queues: dict[WorkerKind, deque[str]] = defaultdict(deque)
    for worker in workers:
        queues[kind_of(costs.cluster.by_id[worker], costs.profile)].append(worker)
    return tuple(queues[kind].popleft() for kind in planned)
