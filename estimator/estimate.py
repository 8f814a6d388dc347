"""What a plan costs: the one entry point of the estimator."""

from dataclasses import replace

from estimator.costs import Costs
from estimator.goodput import expected_restart_seconds, goodput_samples_per_second, throughput_samples_per_second
from estimator.passes import Passes, passes_of
from estimator.pipeline import asymmetric_seconds
from estimator.reductions import reduced_seconds, staged_reduced_seconds
from kintsugi.core.cluster import Cluster
from kintsugi.core.decision import Estimate, StageEstimate
from kintsugi.core.job import DEFAULT_MTBF_SECONDS
from kintsugi.core.plan import Plan
from kintsugi.core.profile import Profile


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
    return priced(plan, Costs(profile, cluster), reconfiguration_seconds=reconfiguration_seconds, mtbf_seconds=mtbf_seconds)


def priced(
    plan: Plan,
    costs: Costs,
    *,
    reconfiguration_seconds: float = 0.0,
    mtbf_seconds: float = DEFAULT_MTBF_SECONDS,
    passes: Passes | None = None,
) -> Estimate:
    """`estimate` with costs that several plans share, and the plan's passes where they are known."""
    passes = passes or passes_of(plan, costs)
    pipelines, reduced = asymmetric_seconds(passes.pipeline_seconds), _reduced_seconds(plan, costs, passes)
    seconds = reduced + costs.commit_seconds(len(plan.workers)) + passes.update_seconds  # nobody updates before all have reduced
    throughput = throughput_samples_per_second(plan.num_microbatches, costs.profile.microbatch_size, seconds)
    available = len(plan.workers) * pipelines
    return Estimate(
        iteration_seconds=seconds,
        pipeline_seconds=pipelines,
        reduce_seconds=reduced - pipelines,
        reconfiguration_seconds=reconfiguration_seconds,
        throughput_samples_per_second=throughput,
        goodput_samples_per_second=goodput_samples_per_second(throughput, reconfiguration_seconds, mtbf_seconds),
        bubble_ratio=max(0.0, 1.0 - passes.busy_seconds / available) if available else 0.0,
        stages=_stages(plan, passes),
        expected_restart_seconds=expected_restart_seconds(plan, costs.profile),
        splits_backward=passes.splits_backward,
    )


def overfull(price: Estimate, costs: Costs) -> list[StageEstimate]:
    """Stages that take more memory than their workers have."""
    return [stage for stage in price.stages if stage.peak_memory_bytes > costs.usable_bytes(stage.worker)]


def after_transition(price: Estimate, reconfiguration_seconds: float, mtbf_seconds: float) -> Estimate:
    """The same step after another transition: only reconfiguration and goodput (equation 8) differ."""
    goodput = goodput_samples_per_second(price.throughput_samples_per_second, reconfiguration_seconds, mtbf_seconds)
    return replace(price, reconfiguration_seconds=reconfiguration_seconds, goodput_samples_per_second=goodput)


def _reduced_seconds(plan: Plan, costs: Costs, passes: Passes) -> float:
    """End of the last reduction; some begin earlier where workers are through with some of their layers before the others."""
    taken = {(route.worker, plan.pipelines[route.pipeline].stages[route.stage].layers) for route in plan.routes}
    is_whole = all(plan.stages_of[worker][0].layers == layers for worker, layers in taken)
    if is_whole and all(pipeline.stages_per_worker == 1 for pipeline in plan.pipelines):
        return reduced_seconds(plan, costs, passes.end_seconds)
    return staged_reduced_seconds(plan, costs, _last_passes(plan, passes))


def _last_passes(plan: Plan, passes: Passes) -> dict[str, list[tuple[range, float]]]:
    """Layers that each worker passes together, and when it does so for the last time."""
    result = {
        worker: [(stage.layers, end) for stage, end in zip(plan.stages_of[worker], ends, strict=True)]
        for worker, ends in passes.stage_end_seconds.items()
    }
    for worker, schedule in passes.rerouted.items():
        result[worker] = [(plan.pipelines[p].stages[s].layers, end) for (p, s), end in schedule.last_seconds.items()]
    return result


def _stages(plan: Plan, passes: Passes) -> tuple[StageEstimate, ...]:
    return tuple(
        [
            StageEstimate(
                worker=stage.worker,
                pipeline=p,
                stage=s,
                layer_start=stage.layer_start,
                layer_stop=stage.layer_stop,
                forward_seconds=seat.forward_seconds,
                backward_seconds=seat.backward_seconds,
                num_in_flight=seat.num_in_flight,
                peak_memory_bytes=seat.peak_memory_bytes,
                busy_seconds=seat.busy_seconds,
            )
            for p, pipeline in enumerate(plan.pipelines)
            for s, (stage, seat) in enumerate(zip(pipeline.stages, passes.seats[p], strict=True))
            if stage.worker is not None and seat is not None
        ]
    )
