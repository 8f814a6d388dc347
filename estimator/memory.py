"""Peak memory of a stage: the paper's formula (equation 14) and the one that planning uses."""

from estimator.layers import LayerSums
from estimator.schedule import limit
from kintsugi.core.plan import Plan, Schedule, Stage


def peak_bytes(
    num_layers: int,
    parameter_bytes: int,
    optimizer_bytes: int,
    gradient_bytes: int,
    activation_bytes: int,
    *,
    stage: int,
    num_stages: int,
    num_microbatches: int,
) -> int:
    """Equation 14 for equal layers: static memory plus the activations of the micro-batches in flight, in bytes.

    The paper counts N_pp - i micro-batches in flight; no more than N_m ever are, so it is min(N_pp - i, N_m) here.

    Args:
        num_layers: N_l of the stage.
        parameter_bytes: m_p of one layer.
        optimizer_bytes: m_o of one layer.
        gradient_bytes: m_g of one layer.
        activation_bytes: m_a of one layer and one micro-batch.
        stage: i, from 0.
        num_stages: N_pp.
        num_microbatches: N_m of the pipeline.
    """
    static = num_layers * (parameter_bytes + optimizer_bytes + gradient_bytes)
    return static + scheduled_in_flight(Schedule.ONE_F_ONE_B, stage, num_stages, num_microbatches) * num_layers * activation_bytes


def scheduled_in_flight(schedule: Schedule, stage: int, num_stages: int, num_microbatches: int) -> int:
    """Most micro-batches whose activations a stage holds at once under a fixed order."""
    return limit(schedule, stage, num_stages, num_microbatches)


def stage_peak_bytes(sums: LayerSums, start: int, stop: int, *, num_in_flight: int, num_replicas: int) -> int:
    """Peak memory of layers start..stop-1, in bytes: equation 14 with the layers' own sums.

    Args:
        sums: of the profile's layers.
        start: first layer.
        stop: one past the last layer.
        num_in_flight: most micro-batches whose activations are held at once.
        num_replicas: holders of each layer, which share the optimizer state under zero1.
    """
    return sums.static_bytes(start, stop, num_replicas) + num_in_flight * sums.activation_bytes(start, stop)


def fewest_replicas(plan: Plan, stage: Stage) -> int:
    """Holders of the least replicated layer of a stage: what its optimizer state is divided by under zero1."""
    return plan.dp if not plan.dead_slots else min(plan.num_holders[stage.layer_start : stage.layer_stop])
