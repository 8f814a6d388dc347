"""Living holders of its layers take a dead slot's micro-batches."""

from collections.abc import Collection
from dataclasses import replace

from estimator.costs import Costs
from estimator.estimate import overfull, priced
from estimator.passes import Passes, passes_of
from kintsugi.core.decision import Estimate
from kintsugi.core.errors import InfeasibleError
from kintsugi.core.plan import Plan, Policy, Slot
from planner.policies.spreads import Routes, even_spread, spreads
from restorer.rounds import colour_rounds, fastest_rounds


def reroute(plan: Plan, living: Collection[str], costs: Costs) -> tuple[Plan, Estimate]:
    """`plan`, and its price, with all other workers' slots dead and their micro-batches given to living holders of the layers.

    The fastest of several spreads, of which the paper's even one (section IV-A) is one, so that the result is never worse;
    weight parts of backward passes may be put off to fill bubbles (ReCycle). A plan that was rerouted before is rerouted
    anew. Generation and idle workers are left to the caller.

    Args:
        plan: what runs now.
        living: workers that are alive with their state.
        costs: of the job's passes.

    Raises:
        InfeasibleError: no living worker holds all layers of a dead slot.
    """
    holders = holders_of_dead_slots(plan, living)
    first, *others = spreads(plan, holders, costs)
    rerouted = _rerouted(plan, living, first, costs)
    options = [with_routes(rerouted, routes, costs) for routes in (first, *others)]
    return reordered(*min(options, key=lambda option: (bool(overfull(option[1], costs)), option[1].iteration_seconds)), costs)


def reroute_evenly(plan: Plan, living: Collection[str], costs: Costs) -> tuple[Plan, Estimate]:
    """`reroute` with the paper's even spread (section IV-A), whatever is faster: to compare with, never to plan by.

    Raises:
        InfeasibleError: no living worker holds all layers of a dead slot.
    """
    result = _rerouted(plan, living, even_spread(plan, holders_of_dead_slots(plan, living)), costs)
    return result, priced(result, costs)


def with_routes(plan: Plan, routes: Routes, costs: Costs) -> tuple[Plan, Estimate, Passes]:
    """`plan` with other routes from its dead slots, its price, and its passes."""
    option = plan if routes == plan.routes else plan.amended(routes=routes)
    passes = passes_of(option, costs)
    return option, priced(option, costs, passes=passes), passes


def reordered(plan: Plan, price: Estimate, passes: Passes, costs: Costs) -> tuple[Plan, Estimate]:
    """The plan with its reductions in the order that is through first, and its price; as it is where that is no sooner."""
    rounds = fastest_rounds(plan, costs, passes=passes) if len(plan.rounds) > 1 else plan.rounds
    if rounds == plan.rounds:
        return plan, price
    ordered = plan.amended(rounds=rounds)
    return min((plan, price), (ordered, priced(ordered, costs)), key=lambda option: option[1].iteration_seconds)


def holders_of_dead_slots(plan: Plan, living: Collection[str]) -> dict[Slot, tuple[str, ...]]:
    """Living holders of every dead slot's layers, in slot order.

    Raises:
        InfeasibleError: no living worker holds all layers of a dead slot.
    """
    result = {}
    for p, pipeline in enumerate(plan.pipelines):
        for s, stage in enumerate(pipeline.stages):
            if stage.worker in living:
                continue
            holders = tuple(w for w in plan.holders[stage.layer_start] if w in living and plan.holds(w, stage))
            if not holders:
                raise InfeasibleError(
                    f"no living worker holds all of layers {stage.layer_start} to {stage.layer_stop - 1}; "
                    "rerouting needs one, dynamic parallelism does not",
                    field=f"pipelines[{p}].stages[{s}]",
                    value=stage.worker,
                )
            result[Slot(pipeline=p, stage=s)] = holders
    return result


def _rerouted(plan: Plan, living: Collection[str], routes: Routes, costs: Costs) -> Plan:
    pipelines = tuple(
        pipeline
        if all(stage.worker in living for stage in pipeline.stages)
        else replace(
            pipeline,
            stages=tuple(stage if stage.worker in living else replace(stage, worker=None) for stage in pipeline.stages),
        )
        for pipeline in plan.pipelines
    )
    result = replace(plan, policy=Policy.DATA_REROUTING, pipelines=pipelines, routes=routes, rounds=())
    return result.amended(rounds=colour_rounds(result, costs.profile, costs))
