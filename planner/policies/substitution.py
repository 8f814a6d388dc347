"""Spare substitution: idle workers take dead slots over; what is left is rerouted."""

from collections.abc import Collection, Sequence
from dataclasses import replace

from estimator.costs import Costs
from kintsugi.core.decision import Estimate
from kintsugi.core.errors import InfeasibleError
from kintsugi.core.plan import Pipeline, Plan, Policy, Slot
from planner.policies.rerouting import reroute


def substitute(plan: Plan, survivors: Collection[str], spares: Sequence[str], costs: Costs) -> tuple[Plan, Estimate]:
    """`plan`, and its price, with spares in the place of dead workers, those with the most work first, the fastest spares first.

    A worker that lost its state takes its own place back.

    Args:
        plan: what ran last.
        survivors: workers of the plan that are alive with their state.
        spares: living workers without state, in cluster order.
        costs: of the job.

    Raises:
        InfeasibleError: there is no dead slot or no spare worker.
    """
    dead = [
        Slot(pipeline=p, stage=s)
        for p, pipeline in enumerate(plan.pipelines)
        for s, stage in enumerate(pipeline.stages[: pipeline.num_workers])
        if stage.worker not in survivors
    ]
    if not dead:
        raise InfeasibleError("no slot is dead", field="plan", value=None)
    if not spares:
        raise InfeasibleError("no living worker is idle", field="alive", value=None)
    dead.sort(key=lambda place: (-_work(plan, place, costs), place))
    returned = {plan.slots_of[worker][0]: worker for worker in spares if worker in plan.slots_of}
    free = [worker for worker in spares if worker not in plan.slots_of]
    fastest = sorted(free, key=lambda worker: (-costs.cluster.by_id[worker].speed_ratio, costs.cluster.order[worker]))
    empty = [place for place in dead if place not in returned]
    takers = returned | dict(zip(empty, fastest, strict=False))
    filled = _filled(plan, takers)
    result, price = reroute(filled, {*survivors, *takers.values()}, costs)
    return result.amended(policy=Policy.SPARE_SUBSTITUTION), price


def _work(plan: Plan, place: Slot, costs: Costs) -> float:
    """Forward passes of all stages of a worker, which is named by its first slot; in seconds at full speed."""
    pipeline, sums = plan.pipelines[place.pipeline], costs.sums.forward
    stages = pipeline.stages[place.stage :: pipeline.num_workers]
    return pipeline.num_microbatches * sum(sums[stage.layer_stop] - sums[stage.layer_start] for stage in stages)


def _filled(plan: Plan, takers: dict[Slot, str]) -> Plan:
    """`plan` with other workers in some places; the routes of their slots go, those to whom they replace lead to them."""
    pipelines = tuple(
        Pipeline(
            num_microbatches=pipeline.num_microbatches,
            stages=tuple(
                replace(stage, worker=takers.get(_place(plan, p, s), stage.worker)) for s, stage in enumerate(pipeline.stages)
            ),
        )
        for p, pipeline in enumerate(plan.pipelines)
    )
    routes = tuple(
        replace(route, worker=takers.get(plan.slots_of[route.worker][0], route.worker))
        for route in plan.routes
        if _place(plan, route.pipeline, route.stage) not in takers
    )
    return replace(plan, pipelines=pipelines, routes=routes, rounds=(), idle_workers=())


def _place(plan: Plan, pipeline: int, stage: int) -> Slot:
    """The first slot of the worker that holds a stage, dead or alive."""
    return Slot(pipeline=pipeline, stage=stage % plan.pipelines[pipeline].num_workers)
