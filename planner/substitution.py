"""Spare substitution: idle workers take dead slots over; what is left is rerouted."""

from collections.abc import Collection, Sequence
from dataclasses import replace

from estimator.costs import Costs
from kintsugi.core.decision import Estimate
from kintsugi.core.errors import InfeasibleError
from kintsugi.core.plan import Pipeline, Plan, Policy, Slot, Stage
from planner.rerouting import reroute


def substitute(plan: Plan, survivors: Collection[str], spares: Sequence[str], costs: Costs) -> tuple[Plan, Estimate]:
    """`plan`, and its price, with spares in its dead slots, the slots with the most work first, the fastest spares first.

    A worker that lost its state takes its own slot back.

    Args:
        plan: what ran last.
        survivors: workers of the plan that are alive with their state.
        spares: living workers without state, in cluster order.
        costs: of the job.

    Raises:
        InfeasibleError: there is no dead slot or no spare worker.
    """
    dead = [
        (Slot(pipeline=p, stage=s), stage, pipeline.num_microbatches)
        for p, pipeline in enumerate(plan.pipelines)
        for s, stage in enumerate(pipeline.stages)
        if stage.worker not in survivors
    ]
    if not dead:
        raise InfeasibleError("no slot is dead", field="plan", value=None)
    if not spares:
        raise InfeasibleError("no living worker is idle", field="alive", value=None)
    work = costs.sums.forward
    dead.sort(key=lambda item: (-(work[item[1].layer_stop] - work[item[1].layer_start]) * item[2], item[0]))
    returned = {plan.slot_of[worker]: worker for worker in spares if worker in plan.slot_of}
    free = [worker for worker in spares if worker not in plan.slot_of]
    fastest = sorted(free, key=lambda worker: (-costs.cluster.by_id[worker].speed_ratio, costs.cluster.order[worker]))
    empty = [slot for slot, _, _ in dead if slot not in returned]
    takers = returned | dict(zip(empty, fastest, strict=False))
    filled = _filled(plan, takers)
    result, price = reroute(filled, {*survivors, *takers.values()}, costs)
    return replace(result, policy=Policy.SPARE_SUBSTITUTION), price


def _filled(plan: Plan, takers: dict[Slot, str]) -> Plan:
    """`plan` with other workers in some slots; the routes of these slots go, those to whom they replace lead to them."""
    pipelines = tuple(
        Pipeline(
            num_microbatches=pipeline.num_microbatches,
            stages=tuple(_stage(stage, p, s, takers) for s, stage in enumerate(pipeline.stages)),
        )
        for p, pipeline in enumerate(plan.pipelines)
    )
    routes = tuple(
        replace(route, worker=takers.get(plan.slot_of[route.worker], route.worker))
        for route in plan.routes
        if Slot(pipeline=route.pipeline, stage=route.stage) not in takers
    )
    return replace(plan, pipelines=pipelines, routes=routes, rounds=(), idle_workers=())


def _stage(stage: Stage, pipeline: int, index: int, takers: dict[Slot, str]) -> Stage:
    return replace(stage, worker=takers.get(Slot(pipeline=pipeline, stage=index), stage.worker))
