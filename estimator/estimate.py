"""What a plan costs: the one entry point of the estimator."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from estimator.costs import Costs
from estimator.goodput import expected_restart_seconds, goodput_samples_per_second, throughput_samples_per_second
from estimator.layers import StageTimes
from estimator.memory import held_activations, worker_static_bytes
from estimator.pipeline import asymmetric_seconds
from estimator.reductions import reduced_seconds, staged_reduced_seconds
from estimator.rerouted import Schedules, rerouted_schedules, touched_pipelines
from estimator.split import scheduled_times
from kintsugi.core.cluster import Cluster
from kintsugi.core.decision import Estimate, StageEstimate
from kintsugi.core.job import DEFAULT_MTBF_SECONDS
from kintsugi.core.plan import Pipeline, Plan
from kintsugi.core.profile import Profile


@dataclass(frozen=True, slots=True)
class StepTimes:
    """The milestones of one step, in seconds from its start, and what every worker does until then."""

    pipeline_seconds: float
    reduced_seconds: float
    """All passes and reductions are through."""
    iteration_seconds: float
    busy_seconds: Mapping[str, float]
    in_flight: Mapping[str, tuple[int, int]]
    """Most micro-batches in flight per worker, and the bytes of their activations."""


def estimate(
    plan: Plan,
    profile: Profile,
    cluster: Cluster,
    *,
    reconfiguration_seconds: float = 0.0,
    mtbf_seconds: float = DEFAULT_MTBF_SECONDS,
) -> Estimate:
    """Price `plan`: step time, memory, throughput and goodput.

    Pipelines that no failure touched are timed by the recurrence (equation 11), the others by the simulation that orders
    their passes; both agree with the replay of the plan's program. O(S + W) for S passes of distinct pipelines and W
    workers; O(A log A) for A passes of touched pipelines.

    Args:
        plan: to be priced.
        profile: of the job.
        cluster: speeds and links of the workers.
        reconfiguration_seconds: what the transition to this plan takes.
        mtbf_seconds: mean time between failures of the whole job.
    """
    costs = Costs(profile, cluster)
    step = _timed(plan, costs)
    throughput = throughput_samples_per_second(plan.num_microbatches, profile.microbatch_size, step.iteration_seconds)
    return Estimate(
        iteration_seconds=step.iteration_seconds,
        pipeline_seconds=step.pipeline_seconds,
        reduce_seconds=step.reduced_seconds - step.pipeline_seconds,
        reconfiguration_seconds=reconfiguration_seconds,
        throughput_samples_per_second=throughput,
        goodput_samples_per_second=goodput_samples_per_second(throughput, reconfiguration_seconds, mtbf_seconds),
        bubble_ratio=_bubble_ratio(step),
        stages=_stages(plan, costs, step),
        expected_restart_seconds=expected_restart_seconds(plan, profile),
    )


def stage_end_seconds(plan: Plan, costs: Costs) -> dict[str, Sequence[float]]:
    """End of the last pass through each of a worker's stages, in seconds; alike pipelines are timed once; no routes."""
    passes = _Passes()
    _add_fixed(passes, plan, costs, frozenset())
    return passes.stage_end_seconds


def after_transition(price: Estimate, reconfiguration_seconds: float, mtbf_seconds: float) -> Estimate:
    """The same step after another transition: only reconfiguration and goodput (equation 8) differ."""
    goodput = goodput_samples_per_second(price.throughput_samples_per_second, reconfiguration_seconds, mtbf_seconds)
    return replace(price, reconfiguration_seconds=reconfiguration_seconds, goodput_samples_per_second=goodput)


def _bubble_ratio(step: StepTimes) -> float:
    available = len(step.busy_seconds) * step.pipeline_seconds
    return max(0.0, 1.0 - sum(step.busy_seconds.values()) / available) if available else 0.0


@dataclass(slots=True)
class _Passes:
    """What the passes of a plan make of its workers, filled pipeline by pipeline."""

    pipeline_seconds: list[float] = field(default_factory=list)
    end_seconds: dict[str, float] = field(default_factory=dict)
    stage_end_seconds: dict[str, Sequence[float]] = field(default_factory=dict)
    """Where no failure touched them: the end of the last pass through each of a worker's stages."""
    rerouted: Schedules = field(default_factory=dict)
    """Schedules of the workers that a failure touched."""
    busy_seconds: dict[str, float] = field(default_factory=dict)
    in_flight: dict[str, tuple[int, int]] = field(default_factory=dict)


def _timed(plan: Plan, costs: Costs) -> StepTimes:
    passes = _Passes()
    touched = touched_pipelines(plan) if plan.routes else frozenset()
    if touched:
        _add_rerouted(passes, plan, costs, touched)
    _add_fixed(passes, plan, costs, touched)
    reduced = _reduced_seconds(plan, costs, passes)
    return StepTimes(
        asymmetric_seconds(passes.pipeline_seconds),
        reduced,
        _applied_seconds(plan, costs, reduced),
        passes.busy_seconds,
        passes.in_flight,
    )


def _reduced_seconds(plan: Plan, costs: Costs, passes: _Passes) -> float:
    """End of the last reduction; some begin earlier where workers are through with some of their layers before the others."""
    taken = {(route.worker, plan.pipelines[route.pipeline].stages[route.stage].layers) for route in plan.routes}
    is_whole = all(plan.stages_of[worker][0].layers == layers for worker, layers in taken)
    if is_whole and all(pipeline.stages_per_worker == 1 for pipeline in plan.pipelines):
        return reduced_seconds(plan, costs, passes.end_seconds)
    return staged_reduced_seconds(plan, costs, _last_passes(plan, passes))


def _last_passes(plan: Plan, passes: _Passes) -> dict[str, list[tuple[range, float]]]:
    """Layers that each worker passes together, and when it does so for the last time."""
    result = {
        worker: [(stage.layers, end) for stage, end in zip(plan.stages_of[worker], ends, strict=True)]
        for worker, ends in passes.stage_end_seconds.items()
    }
    for worker, schedule in passes.rerouted.items():
        result[worker] = [(plan.pipelines[p].stages[s].layers, end) for (p, s), end in schedule.last_seconds.items()]
    return result


def _add_rerouted(passes: _Passes, plan: Plan, costs: Costs, touched: frozenset[int]) -> None:
    schedules = passes.rerouted = rerouted_schedules(plan, costs, touched)
    for worker in (worker for worker, index in plan.pipeline_of.items() if index in touched):
        own = schedules[worker]
        passes.end_seconds[worker] = own.end_seconds
        passes.busy_seconds[worker] = own.busy_seconds
        passes.in_flight[worker] = own.num_in_flight, own.activation_bytes
    passes.pipeline_seconds.append(max(schedule.end_seconds for schedule in schedules.values()))


def _add_fixed(passes: _Passes, plan: Plan, costs: Costs, touched: frozenset[int]) -> None:
    """Equation 11; pipelines that are alike are timed once."""
    known: dict[object, _Alike] = {}
    for pipeline_index, pipeline in enumerate(plan.pipelines):
        if pipeline_index in touched:
            continue
        workers = [stage.worker for stage in pipeline.stages if stage.worker is not None]
        num_workers = pipeline.num_workers
        key = num_workers, pipeline.num_microbatches, tuple([stage.layer_stop for stage in pipeline.stages])
        passes_of = () if costs.is_uniform else (tuple(_stage_times(pipeline, workers, costs)), _delays(pipeline, workers, costs))
        alike = known.get((key, passes_of))
        if alike is None:
            alike = known[key, passes_of] = _alike(plan, pipeline, workers, costs)
        passes.pipeline_seconds.append(alike.pipeline_seconds)
        for place, worker in enumerate(workers[:num_workers]):
            ends = passes.stage_end_seconds[worker] = alike.stage_end_seconds[place]
            passes.end_seconds[worker] = max(ends)
            passes.busy_seconds[worker] = alike.busy_seconds[place]
            passes.in_flight[worker] = alike.in_flight[place]


@dataclass(frozen=True, slots=True)
class _Alike:
    """What pipelines have in common that hold the same layers on alike workers; by the worker's place."""

    pipeline_seconds: float
    stage_end_seconds: list[tuple[float, ...]]
    busy_seconds: list[float]
    in_flight: list[tuple[int, int]]


def _alike(plan: Plan, pipeline: Pipeline, workers: list[str], costs: Costs) -> _Alike:
    count, num_workers, sums = pipeline.num_microbatches, pipeline.num_workers, costs.sums
    places, stages = range(num_workers), _stage_times(pipeline, workers, costs)
    times = scheduled_times(plan.schedule, stages, _delays(pipeline, workers, costs), count, num_workers=num_workers)
    activations = [sums.activation_bytes(stage.layer_start, stage.layer_stop) for stage in pipeline.stages]
    return _Alike(
        times.pipeline_seconds,
        [times.stage_end_seconds[place::num_workers] for place in places],
        [count * sum(s.forward_seconds + s.backward_seconds for s in stages[place::num_workers]) for place in places],
        [held_activations(plan.schedule, place, num_workers, count, activations[place::num_workers]) for place in places],
    )


def _stage_times(pipeline: Pipeline, workers: list[str], costs: Costs) -> list[StageTimes]:
    return [
        costs.stage(worker, stage.layer_start, stage.layer_stop) for worker, stage in zip(workers, pipeline.stages, strict=True)
    ]


def _delays(pipeline: Pipeline, workers: list[str], costs: Costs) -> tuple[float, ...]:
    return tuple(
        costs.boundary_seconds(source, target, stage.layer_stop)
        for source, target, stage in zip(workers, workers[1:], pipeline.stages, strict=False)
    )


def _applied_seconds(plan: Plan, costs: Costs, reduced_seconds: float) -> float:
    """End of the last update: nobody updates before all have reduced."""
    update = max(
        sum(costs.stage(worker, stage.layer_start, stage.layer_stop).optimizer_seconds for stage in stages)
        for worker, stages in plan.stages_of.items()
    )
    return reduced_seconds + costs.commit_seconds(len(plan.workers)) + update


def _stages(plan: Plan, costs: Costs, step: StepTimes) -> tuple[StageEstimate, ...]:
    result = []
    static = {worker: worker_static_bytes(plan, worker, costs.sums) for worker in plan.workers}
    for p, pipeline in enumerate(plan.pipelines):
        for s, stage in enumerate(pipeline.stages):
            if stage.worker is None:
                continue
            times = costs.stage(stage.worker, stage.layer_start, stage.layer_stop)
            num_in_flight, activations = step.in_flight[stage.worker]
            result.append(
                StageEstimate(
                    worker=stage.worker,
                    pipeline=p,
                    stage=s,
                    layer_start=stage.layer_start,
                    layer_stop=stage.layer_stop,
                    forward_seconds=times.forward_seconds,
                    backward_seconds=times.backward_seconds,
                    num_in_flight=num_in_flight,
                    peak_memory_bytes=static[stage.worker] + activations,
                    busy_seconds=step.busy_seconds[stage.worker],
                )
            )
    return tuple(result)
