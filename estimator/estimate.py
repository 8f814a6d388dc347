"""What a plan costs: the one entry point of the estimator."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from estimator.costs import Costs
from estimator.goodput import goodput_samples_per_second, throughput_samples_per_second
from estimator.layers import StageTimes
from estimator.memory import program_in_flight, scheduled_in_flight
from estimator.pipeline import PipelineTimes, asymmetric_seconds, pipeline_times
from estimator.program import ActionKind, compile_program, replay
from kintsugi.core.cluster import Cluster
from kintsugi.core.job import DEFAULT_MTBF_SECONDS
from kintsugi.core.plan import Estimate, Pipeline, Plan, StageEstimate
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

    A plan without routes is timed by the recurrence (equation 11), one with routes by replaying its program; both
    agree where both apply. O(S + W) for S passes of distinct pipelines and W workers; with routes O(A log A) for A actions.

    Args:
        plan: to be priced.
        profile: of the job.
        cluster: speeds and links of the workers.
        reconfiguration_seconds: what the transition to this plan takes.
        mtbf_seconds: mean time between failures of the whole job.
    """
    costs = Costs(profile, cluster)
    step = _replayed(plan, costs) if plan.routes else _recurrent(plan, costs)
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
    )


def after_transition(price: Estimate, reconfiguration_seconds: float, mtbf_seconds: float) -> Estimate:
    """The same step after another transition: only reconfiguration and goodput (equation 8) differ."""
    goodput = goodput_samples_per_second(price.throughput_samples_per_second, reconfiguration_seconds, mtbf_seconds)
    return replace(price, reconfiguration_seconds=reconfiguration_seconds, goodput_samples_per_second=goodput)


def _bubble_ratio(step: StepTimes) -> float:
    available = len(step.busy_seconds) * step.pipeline_seconds
    return max(0.0, 1.0 - sum(step.busy_seconds.values()) / available) if available else 0.0


def _recurrent(plan: Plan, costs: Costs) -> StepTimes:
    """Equations 10 and 11; pipelines that are alike are timed once."""
    known: dict[object, PipelineTimes] = {}
    free: dict[str, float] = {}
    busy: dict[str, float] = {}
    in_flight: dict[str, tuple[int, int]] = {}
    pipelines = []
    for pipeline in plan.pipelines:
        workers = [stage.worker for stage in pipeline.stages if stage.worker is not None]
        stages = _stage_times(pipeline, workers, costs)
        delays = _delays(pipeline, workers, costs)
        count = pipeline.num_microbatches
        key = (count, tuple(stages), delays)
        times = known.get(key)
        if times is None:
            forward, backward = [s.forward_seconds for s in stages], [s.backward_seconds for s in stages]
            times = known[key] = pipeline_times(plan.schedule, forward, backward, delays, count)
        pipelines.append(times.pipeline_seconds)
        for index, (worker, stage, cost) in enumerate(zip(workers, pipeline.stages, stages, strict=True)):
            free[worker] = times.stage_end_seconds[index]
            busy[worker] = count * (cost.forward_seconds + cost.backward_seconds)
            held = scheduled_in_flight(plan.schedule, index, len(stages), count)
            in_flight[worker] = held, held * costs.sums.activation_bytes(stage.layer_start, stage.layer_stop)
    reduced_seconds = _reduced_seconds(plan, costs, free)
    return StepTimes(
        asymmetric_seconds(pipelines), reduced_seconds, _applied_seconds(plan, costs, reduced_seconds), busy, in_flight
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


def _reduced_seconds(plan: Plan, costs: Costs, free: dict[str, float]) -> float:
    """End of the last reduction; each starts when all its workers are free. Advances `free`, worker by worker."""
    for reductions in plan.rounds:
        for reduction in reductions:
            end = max(free[worker] for worker in reduction.workers) + costs.reduction_seconds(reduction)
            for worker in reduction.workers:
                free[worker] = end
    return max(free.values())


def _applied_seconds(plan: Plan, costs: Costs, reduced_seconds: float) -> float:
    """End of the last update: nobody updates before all have reduced."""
    update = max(
        costs.stage(worker, stage.layer_start, stage.layer_stop).optimizer_seconds for worker, stage in plan.stage_of.items()
    )
    return reduced_seconds + costs.commit_seconds(len(plan.workers)) + update


def _replayed(plan: Plan, costs: Costs) -> StepTimes:
    program = compile_program(plan, costs.profile, costs.cluster)
    result = replay(program, costs)
    busy = dict.fromkeys(plan.workers, 0.0)
    reduced_seconds = result.pipeline_seconds
    for worker, timings in result.timings.items():
        for timing in timings:
            if timing.action.kind in (ActionKind.FORWARD, ActionKind.BACKWARD):
                busy[worker] += timing.end_seconds - timing.start_seconds
            elif timing.action.kind is ActionKind.REDUCE:
                reduced_seconds = max(reduced_seconds, timing.end_seconds)
    in_flight = program_in_flight(program, costs.sums)
    return StepTimes(result.pipeline_seconds, reduced_seconds, result.iteration_seconds, busy, in_flight)


def _stages(plan: Plan, costs: Costs, step: StepTimes) -> tuple[StageEstimate, ...]:
    holders, result = plan.holders, []
    for p, pipeline in enumerate(plan.pipelines):
        for s, stage in enumerate(pipeline.stages):
            if stage.worker is None:
                continue
            times = costs.stage(stage.worker, stage.layer_start, stage.layer_stop)
            num_in_flight, activations = step.in_flight[stage.worker]
            replicas = min(len(holders[layer]) for layer in stage.layers)
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
                    peak_memory_bytes=costs.sums.static_bytes(stage.layer_start, stage.layer_stop, replicas) + activations,
                    busy_seconds=step.busy_seconds[stage.worker],
                )
            )
    return tuple(result)
