"""Who takes which slot of an arrangement."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from estimator.costs import Costs
from kintsugi.core.plan import IdleWorker, Pipeline, Plan, Policy, Schedule, Stage
from planner.search import Arrangement
from restorer.matching import match, missing_bytes
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
    slots = [(a, b) for shape in arrangement.shapes for a, b in zip(shape.cuts, shape.cuts[1:], strict=False)]
    chosen = _assign(slots, workers, holdings, costs)
    names = iter(chosen)
    pipelines = tuple(
        Pipeline(
            num_microbatches=shape.num_microbatches,
            stages=tuple(
                Stage(layer_start=a, layer_stop=b, worker=next(names)) for a, b in zip(shape.cuts, shape.cuts[1:], strict=False)
            ),
        )
        for shape in arrangement.shapes
    )
    used = set(chosen)
    idle = tuple(IdleWorker(worker=worker, reason=NOT_NEEDED) for worker in workers if worker not in used)
    plan = Plan(generation=generation, policy=policy, schedule=schedule, pipelines=pipelines, idle_workers=idle)
    return replace(plan, rounds=colour_rounds(plan, costs.profile))


def _assign(slots: list[tuple[int, int]], workers: Sequence[str], holdings: Holdings, costs: Costs) -> tuple[str, ...]:
    if holdings.plan is None:
        return tuple(workers[: len(slots)])
    held = [holdings.layers_of(worker) for worker in workers]
    cost = missing_bytes(state_prefix_bytes(costs.profile), held, slots)
    return tuple(workers[row] for row in match(cost))
