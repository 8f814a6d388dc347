"""Orders of passes for the pipelines of a plan that gave micro-batches away or took them in."""

from collections.abc import Mapping, Sequence

from estimator.costs import Costs
from estimator.interleaved import stage_limit
from estimator.list_schedule import Budget, Hop, Journey, ListScheduler, WorkerSchedule
from estimator.memory import Allowance, allowance
from estimator.reductions import reduced_seconds
from kintsugi.core.plan import Plan, Stage

Schedules = Mapping[str, WorkerSchedule]

Halt = tuple[int, str, str | None]
"""A stage of a micro-batch's way: its number, the worker that computes it, and the one that computes the next."""


def touched_pipelines(plan: Plan) -> frozenset[int]:
    """Pipelines with a dead slot, and those whose workers stand in for one."""
    givers = {slot.pipeline for slot in plan.dead_slots}
    takers = {plan.pipeline_of[route.worker] for route in plan.routes}
    return frozenset(givers | takers)


def rerouted_schedules(plan: Plan, costs: Costs, touched: frozenset[int], splits: Sequence[bool] = (False, True)) -> Schedules:
    """Every worker's schedule in the touched pipelines, list-scheduled together.

    Backward passes are split, so that weight parts fill bubbles, where the gradients are reduced sooner with it than
    without; whether there is memory decides first. One or two list schedules per option, O(A log A) for A passes each.

    Args:
        plan: with routes.
        costs: of its passes, messages and reductions.
        touched: its pipelines that gave micro-batches away or took them in.
        splits: whether backward passes may be whole, split, or either.
    """
    key = plan.pipelines, plan.routes, plan.schedule, tuple(splits)
    options = costs.rerouted.get(key)
    if options is None:
        options = costs.rerouted[key] = _options(plan, costs, touched, splits)
    return min(options, key=lambda option: (not option[0], _reduced(plan, costs, option[1])))[1]


def _options(plan: Plan, costs: Costs, touched: frozenset[int], splits: Sequence[bool]) -> list[tuple[bool, Schedules]]:
    """List schedules with whole and with split backward passes, and whether they fit memory; reductions do not matter."""
    journeys, budgets = _journeys(plan, costs, touched), _budgets(plan, costs, touched)
    apart, shared = (
        ListScheduler(journeys, plan.schedule, is_limit_shared=is_shared, budgets=budgets) for is_shared in (False, True)
    )
    options = [_within_memory(apart, shared, budgets, is_split=is_split) for is_split in splits]
    return [(_fits(schedules, budgets), schedules) for schedules in options]


def _reduced(plan: Plan, costs: Costs, schedules: Schedules) -> float:
    return reduced_seconds(plan, costs, {worker: schedule.end_seconds for worker, schedule in schedules.items()})


def _within_memory(apart: ListScheduler, shared: ListScheduler, budgets: Mapping[str, Budget], *, is_split: bool) -> Schedules:
    """Pipelines apart share no limits; where that takes more memory than there is, they do."""
    schedules = apart.run(is_split=is_split)
    return schedules if _fits(schedules, budgets) else shared.run(is_split=is_split)


def _fits(schedules: Schedules, budgets: Mapping[str, Budget]) -> bool:
    return all(schedule.activation_bytes <= budgets[worker].activation_bytes for worker, schedule in schedules.items())


def allowances_of(plan: Plan, costs: Costs, touched: frozenset[int]) -> dict[str, Allowance]:
    """What each worker of the touched pipelines takes beside activations."""
    known, result = costs.allowances.setdefault(plan.num_holders, {}), {}
    for worker, index in plan.pipeline_of.items():
        if index in touched:
            key = tuple([(stage.layer_start, stage.layer_stop) for stage in plan.stages_of[worker]])
            if key not in known:
                known[key] = allowance(plan, worker, costs.sums)
            result[worker] = known[key]
    return result


def _budgets(plan: Plan, costs: Costs, touched: frozenset[int]) -> dict[str, Budget]:
    """What each worker has for activations."""
    return {
        worker: Budget(own.activation_budget(costs.usable_bytes(worker)), own.input_excess_bytes, own.weight_excess_bytes)
        for worker, own in allowances_of(plan, costs, touched).items()
    }


def _journeys(plan: Plan, costs: Costs, touched: frozenset[int]) -> list[Journey]:
    """Ways of the touched pipelines' micro-batches: one for each pipeline, or for all workers that its dead slots are given to."""
    result, givers = [], {slot.pipeline for slot in plan.dead_slots}
    for pipeline in sorted(touched):
        microbatches, stages = plan.microbatches_of(pipeline), plan.pipelines[pipeline].stages
        turns_of: dict[tuple[str, ...], list[int]] = {}
        if pipeline in givers:
            for turn, microbatch in enumerate(microbatches):
                workers = tuple([stage.worker or plan.route_of[microbatch, s] for s, stage in enumerate(stages)])
                turns_of.setdefault(workers, []).append(turn)
        else:
            turns_of[tuple([stage.worker for stage in stages if stage.worker])] = list(range(len(microbatches)))
        limits, known = _limits(plan, pipeline), dict[Halt, Hop]()
        for workers, turns in turns_of.items():
            halts = list(zip(range(len(stages)), workers, (*workers[1:], None), strict=True))
            for halt in halts:
                if halt not in known:
                    known[halt] = _hop(costs, stages[halt[0]], *halt[1:], limits[halt[0]])
            hops = tuple([known[halt] for halt in halts])
            result.append(Journey(pipeline, hops, [microbatches[turn] for turn in turns], turns))
    return result


def _hop(costs: Costs, stage: Stage, worker: str, following: str | None, limit: int | None) -> Hop:
    times = costs.stage(worker, stage.layer_start, stage.layer_stop)
    return Hop(
        worker=worker,
        forward_seconds=times.forward_seconds,
        backward_input_seconds=times.backward_input_seconds,
        backward_weight_seconds=times.backward_weight_seconds,
        delay_seconds=costs.boundary_seconds(worker, following, stage.layer_stop) if following else 0.0,
        activation_bytes=costs.sums.activation_bytes(stage.layer_start, stage.layer_stop),
        deferred_bytes=costs.sums.deferred_bytes(stage.layer_start, stage.layer_stop),
        limit=limit,
    )


def _limits(plan: Plan, pipeline: int) -> tuple[int | None, ...]:
    """Most micro-batches in flight in every stage of a pipeline, where that does not follow from the number of stages to go."""
    own = plan.pipelines[pipeline]
    num_workers, num_stages = own.num_workers, len(own.stages)
    if num_workers == num_stages:
        return (None,) * num_stages
    return tuple(stage_limit(stage, num_workers, num_stages, own.num_microbatches) for stage in range(num_stages))
