"""Peak memory of a stage: the paper's formula (equation 14) and the one that planning uses."""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from estimator.arrays import Ints
from estimator.interleaved import held_passes
from estimator.layers import LayerSums
from estimator.schedule import num_in_flight, scheduled_in_flight
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
    return static + num_in_flight(stage, num_stages, num_microbatches) * num_layers * activation_bytes


def held_activations(
    schedule: Schedule, place: int, num_workers: int, num_microbatches: int, stage_bytes: Sequence[int]
) -> tuple[int, int]:
    """Most micro-batches in stages that one worker holds at once under a fixed order, and the most bytes of activations.

    Args:
        schedule: order of passes.
        place: of the worker in its pipeline, from 0.
        num_workers: that the stages go round.
        num_microbatches: that enter the pipeline.
        stage_bytes: activations of one micro-batch in each of the worker's stages.
    """
    moments = held_moments(schedule, place, num_workers, num_microbatches, len(stage_bytes))
    return int(moments.sum(axis=1).max()), int((moments @ np.array(stage_bytes, dtype=np.int64)).max())


def held_moments(schedule: Schedule, place: int, num_workers: int, num_microbatches: int, num_stages: int) -> Ints:
    """Micro-batches that one worker holds at once in each of its stages, at the moments that count. Shape [moments, stages].

    Arguments as of `held_activations`; `num_stages` are the worker's own.
    """
    if num_stages == 1:
        return np.array([[scheduled_in_flight(schedule, place, num_workers, num_microbatches)]], dtype=np.int64)
    return held_passes(place, num_workers, num_stages, num_microbatches, is_split=schedule.is_split)


@lru_cache(maxsize=1024)
def all_held_moments(schedule: Schedule, num_workers: int, num_microbatches: int, num_stages: int) -> Ints:
    """`held_moments` of every worker, one of them repeated where they are fewer. Shape [workers, moments, stages]."""
    own = [held_moments(schedule, place, num_workers, num_microbatches, num_stages) for place in range(num_workers)]
    most = max(map(len, own))
    return np.stack([moments[np.minimum(np.arange(most), len(moments) - 1)] for moments in own])


def holds_all(schedule: Schedule, in_flight: int, num_microbatches: int) -> bool:
    """Whether all micro-batches are in flight at once: then there are no gradients yet when activations are most."""
    return in_flight == num_microbatches and schedule in (Schedule.GPIPE, Schedule.ONE_F_ONE_B, Schedule.EAGER_1F1B)


def stage_peak_bytes(sums: LayerSums, start: int, stop: int, *, num_in_flight: int, num_replicas: int, is_all: bool = False) -> int:
    """Peak memory of layers start..stop-1, in bytes: equation 14 with the layers' own sums, and what passes and updates take.

    Args:
        sums: of the profile's layers.
        start: first layer.
        stop: one past the last layer.
        num_in_flight: most micro-batches whose activations are held at once.
        num_replicas: holders of each layer, which share the optimizer state under zero1.
        is_all: whether these are all micro-batches (`holds_all`).
    """
    held = num_in_flight * sums.activation_bytes(start, stop)
    num_all = num_in_flight if is_all else None
    return sums.static_bytes(start, stop, num_replicas) + running_bytes(sums, [(start, stop)], held, num_all=num_all)


def running_bytes(sums: LayerSums, ranges: Sequence[tuple[int, int]], held_bytes: int, *, num_all: int | None = None) -> int:
    """The most that a worker's passes and updates take on top of what it always holds, in bytes.

    With most activations held, one more pass takes its widest layer's temporary memory (embedding, head, workspaces);
    an update comes when no activation is held. Exact where all is measured by layer and a stage runs one pass at a time.

    Args:
        sums: of the profile's layers.
        ranges: layers of the worker's stages, half open.
        held_bytes: most activations that it holds at once.
        num_all: how many micro-batches they are of where these are all, of one stage: it makes gradients as it lets go of them.
    """
    update = max(sums.update_bytes(*stage) for stage in ranges)
    if num_all is None:
        return max(update, held_bytes + max(sums.temporary_bytes(*stage) for stage in ranges))
    (stage,) = ranges
    later = held_bytes - sums.activation_bytes(*stage) + sums.temporary_bytes(*stage) if num_all > 1 else 0
    return max(update, held_bytes + sums.first_temporary_bytes(*stage), later)


def worker_peak_bytes(plan: Plan, worker: str, sums: LayerSums, held_bytes: int, *, num_all: int | None = None) -> int:
    """Peak memory of a worker that holds at most so many bytes of activations at once; `num_all` as in `running_bytes`."""
    return worker_static_bytes(plan, worker, sums) + running_bytes(sums, _ranges(plan, worker), held_bytes, num_all=num_all)


def activation_budget(plan: Plan, worker: str, sums: LayerSums, usable_bytes: int) -> int:
    """What a worker has for activations, in bytes, beside what it always holds and what a pass takes."""
    temporary = max(sums.temporary_bytes(*stage) for stage in _ranges(plan, worker))
    return usable_bytes - worker_static_bytes(plan, worker, sums) - temporary


def worker_static_bytes(plan: Plan, worker: str, sums: LayerSums) -> int:
    """Parameters, gradients and optimizer state of all stages that a worker holds, in bytes."""
    stages = plan.stages_of[worker]
    if len(stages) == 1:
        return sums.static_bytes(stages[0].layer_start, stages[0].layer_stop, fewest_replicas(plan, stages[0]))
    replicas = min(fewest_replicas(plan, stage) for stage in stages)
    return sums.held_bytes(_ranges(plan, worker), replicas)


def _ranges(plan: Plan, worker: str) -> list[tuple[int, int]]:
    return [(stage.layer_start, stage.layer_stop) for stage in plan.stages_of[worker]]


def fewest_replicas(plan: Plan, stage: Stage) -> int:
    """Holders of the least replicated layer of a stage: what its optimizer state is divided by under zero1."""
    return plan.dp if not plan.dead_slots else min(plan.num_holders[stage.layer_start : stage.layer_stop])
