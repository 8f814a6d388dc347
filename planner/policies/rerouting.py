"""Who takes a dead slot's micro-batches: living holders of its layers, by estimated load."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import cycle

from estimator.costs import Costs
from estimator.estimate import priced
from estimator.passes import Passes, passes_of
from kintsugi.core.decision import Estimate
from kintsugi.core.errors import InfeasibleError
from kintsugi.core.plan import Plan, Policy, Route, Slot, Stage
from restorer.rounds import colour_rounds, fastest_rounds

Choose = Callable[[Stage, Sequence[str]], str]
"""The worker for a stage of the next micro-batch, of those who hold it."""


def reroute(plan: Plan, living: Collection[str], costs: Costs) -> tuple[Plan, Estimate]:
    """`plan`, and its price, with all other workers' slots dead and their micro-batches given to living holders of the layers.

    Micro-batches go one by one to the holder that would be through first. The even spread of the paper (section IV-A) is
    priced too and taken where it is faster, so the result is never worse; in both, weight parts of backward passes may
    be put off to fill bubbles (ReCycle). A plan that was rerouted before is rerouted anew. Generation and idle workers are
    left to the caller.

    Args:
        plan: what runs now.
        living: workers that are alive with their state.
        costs: of the job's passes.

    Raises:
        InfeasibleError: no living worker holds all layers of a dead slot.
    """
    holders = _holders_of_dead_slots(plan, living)
    spreads = dict.fromkeys(_routes(plan, holders, choose) for choose in (_by_load(plan, holders, costs), _evenly()))
    options: list[tuple[Plan, Estimate, Passes]] = []
    for routes in spreads:
        option = _rerouted(plan, living, routes, costs)
        passes = passes_of(option, costs)
        options.append((option, priced(option, costs, passes=passes), passes))
    best, price, passes = min(options, key=lambda option: option[1].iteration_seconds)
    return min((best, price), _reordered(best, price, passes, costs), key=lambda option: option[1].iteration_seconds)


def reroute_evenly(plan: Plan, living: Collection[str], costs: Costs) -> tuple[Plan, Estimate]:
    """`reroute` with the paper's even spread (section IV-A), whatever is faster: to compare with, never to plan by.

    Raises:
        InfeasibleError: no living worker holds all layers of a dead slot.
    """
    result = _rerouted(plan, living, _routes(plan, _holders_of_dead_slots(plan, living), _evenly()), costs)
    return result, priced(result, costs)


def _reordered(plan: Plan, price: Estimate, passes: Passes, costs: Costs) -> tuple[Plan, Estimate]:
    """The plan with its reductions in the order that is through first, and its price; as it is where none waits for another."""
    rounds = fastest_rounds(plan, costs, passes=passes) if len(plan.rounds) > 1 else plan.rounds
    if rounds == plan.rounds:
        return plan, price
    ordered = plan.amended(rounds=rounds)
    return ordered, priced(ordered, costs)


def _holders_of_dead_slots(plan: Plan, living: Collection[str]) -> dict[Slot, tuple[str, ...]]:
    """Living holders of every dead slot's layers, in slot order."""
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


def _routes(plan: Plan, holders: dict[Slot, tuple[str, ...]], choose: Choose) -> tuple[Route, ...]:
    return tuple(
        Route(microbatch=microbatch, pipeline=slot.pipeline, stage=slot.stage, worker=choose(_stage(plan, slot), workers))
        for slot, workers in holders.items()
        for microbatch in plan.microbatches_of(slot.pipeline)
    )


def _stage(plan: Plan, slot: Slot) -> Stage:
    return plan.pipelines[slot.pipeline].stages[slot.stage]


def _by_load(plan: Plan, holders: Mapping[Slot, Sequence[str]], costs: Costs) -> Choose:
    """Chooses the holder that would be through first with what it has and the pass in question; ties go to slot order."""
    load = {
        worker: plan.pipelines[plan.pipeline_of[worker]].num_microbatches
        * sum(_seconds(costs, worker, stage) for stage in plan.stages_of[worker])
        for workers in holders.values()
        for worker in workers
    }
    passes: dict[range, list[float]] = {}

    def choose(stage: Stage, workers: Sequence[str]) -> str:
        if stage.layers not in passes:
            passes[stage.layers] = [_seconds(costs, worker, stage) for worker in workers]
        ends = [load[worker] + seconds for worker, seconds in zip(workers, passes[stage.layers], strict=True)]
        end = min(ends)
        chosen = workers[ends.index(end)]
        load[chosen] = end
        return chosen

    return choose


def _seconds(costs: Costs, worker: str, stage: Stage) -> float:
    times = costs.stage(worker, stage.layer_start, stage.layer_stop)
    return times.forward_seconds + times.backward_seconds


def _evenly() -> Choose:
    """Chooses holders in turn, over all dead slots of the same layers (the paper's even spread)."""
    turns: dict[range, Iterator[str]] = {}

    def choose(stage: Stage, workers: Sequence[str]) -> str:
        return next(turns.setdefault(stage.layers, cycle(workers)))

    return choose


def _rerouted(plan: Plan, living: Collection[str], routes: tuple[Route, ...], costs: Costs) -> Plan:
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
    return result.amended(rounds=colour_rounds(result, costs.profile))
