"""Time of one pipeline: the paper's closed forms (equations 9, 10, 12, 13) and the exact recurrence (equation 11).

N_m is per pipeline here, as in the paper's equations.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from estimator.arrays import Floats
from estimator.compiled import compiled
from kintsugi.core.errors import InfeasibleError
from kintsugi.core.plan import Schedule


@dataclass(frozen=True, slots=True)
class PipelineTimes:
    """When a pipeline's stages are through with their last backward pass, in seconds from the step's start."""

    pipeline_seconds: float
    stage_end_seconds: tuple[float, ...]
    """Shape [stages]."""


def symmetric_seconds(num_stages: int, num_microbatches: int, forward_seconds: float, backward_seconds: float) -> float:
    """Equation 9: 1F1B with equal stages and no link delays, (N_pp + N_m - 1) * (T_f + T_b) seconds.

    Args:
        num_stages: N_pp.
        num_microbatches: N_m, that enter each pipeline.
        forward_seconds: T_f, one micro-batch through one stage.
        backward_seconds: T_b, its way back through the stage.
    """
    return (num_stages + num_microbatches - 1) * (forward_seconds + backward_seconds)


def asymmetric_seconds(pipeline_seconds: Iterable[float]) -> float:
    """Equation 10: the slowest pipeline decides, for all update together; max t_p over the pipelines p, in seconds."""
    return max(pipeline_seconds)


def single_failure_seconds(
    num_stages: int, num_microbatches: int, num_pipelines: int, forward_seconds: float, backward_seconds: float
) -> float:
    """Equation 12: data rerouting after one failure, (N_pp + N_m - 1 + N_m / (N_dp - 1)) * (T_f + T_b) seconds.

    The failed worker's micro-batches are spread evenly over the others of its stage; none of that is hidden in bubbles.

    Args:
        num_stages: N_pp, like the others as in equation 9.
        num_microbatches: N_m.
        num_pipelines: N_dp, before the failure.
        forward_seconds: T_f.
        backward_seconds: T_b.

    Raises:
        InfeasibleError: there is no other pipeline to route to.
    """
    failures = [1] + [0] * (num_stages - 1)
    return rerouted_seconds(failures, num_microbatches, num_pipelines, forward_seconds, backward_seconds)


def rerouted_seconds(
    failures: Sequence[int], num_microbatches: int, num_pipelines: int, forward_seconds: float, backward_seconds: float
) -> float:
    """Equation 13: data rerouting, (N_pp + N_m - 1 + sum over i of N_m * F_i / (N_dp - F_i)) * (T_f + T_b) seconds.

    Args:
        failures: F_i, failed workers of stage i. Shape [N_pp].
        num_microbatches: N_m, like the others as in equation 12.
        num_pipelines: N_dp.
        forward_seconds: T_f.
        backward_seconds: T_b.

    Raises:
        InfeasibleError: all replicas of a stage are dead; the paper's formula divides by zero there.
    """
    extra = 0.0
    for stage, failed in enumerate(failures):
        if failed >= num_pipelines:
            raise InfeasibleError(
                f"all {num_pipelines} replicas of stage {stage} are dead; rerouting needs a living one",
                field=f"failures[{stage}]",
                value=failed,
            )
        extra += num_microbatches * failed / (num_pipelines - failed)
    return (len(failures) + num_microbatches - 1 + extra) * (forward_seconds + backward_seconds)


def pipeline_times(
    schedule: Schedule,
    forward_seconds: Sequence[float],
    backward_seconds: Sequence[float],
    delay_seconds: Sequence[float],
    num_microbatches: int,
) -> PipelineTimes:
    """Equation 11 for any stage times, micro-batch count and link delays, with a worker for every stage: GPipe, 1F1B, eager 1F1B.

    Args:
        schedule: order of passes within a stage; interleaved stages with a worker each keep to 1F1B.
        forward_seconds: of one micro-batch, shape [stages].
        backward_seconds: of one micro-batch, shape [stages].
        delay_seconds: of the link between neighbouring stages, each way, shape [stages - 1].
        num_microbatches: that enter the pipeline.

    Complexity O(stages * (stages + num_microbatches)).
    """
    forward, backward, delays = (np.array(part, dtype=np.float64) for part in (forward_seconds, backward_seconds, delay_seconds))
    match schedule:
        case Schedule.GPIPE:
            ends = all_forward_all_backward_ends(forward, backward, delays, num_microbatches)
        case Schedule.EAGER_1F1B:
            ends = eager_ends(forward, backward, delays, num_microbatches)
        case _:
            ends = one_forward_one_backward_ends(forward, backward, delays, num_microbatches)
    return PipelineTimes(float(ends.max()), tuple(ends.tolist()))


@compiled
def one_forward_one_backward_ends(forward: Floats, backward: Floats, delays: Floats, num_microbatches: int) -> Floats:
    """1F1B clock by clock: at clock t, stage i passes (t - i) / 2 forward, or (t + i + 1) / 2 - P backward. Shape [stages].

    Every pass depends only on its own stage's last pass and on a neighbour's pass one clock earlier.
    """
    num_stages = len(forward)
    last = num_stages - 1
    free = np.zeros(num_stages)
    passed = np.zeros(num_stages)
    returned = np.zeros(num_stages)
    for clock in range(2 * (num_microbatches + num_stages) - 1):
        for stage in range(num_stages):
            start = free[stage]
            if (clock - stage) & 1:
                microbatch = (clock + stage + 1) // 2 - num_stages
                if 0 <= microbatch < num_microbatches:
                    if stage < last:
                        start = max(start, returned[stage + 1] + delays[stage])
                    free[stage] = returned[stage] = start + backward[stage]
            elif 0 <= clock - stage < 2 * num_microbatches:
                if stage > 0:
                    start = max(start, passed[stage - 1] + delays[stage - 1])
                free[stage] = passed[stage] = start + forward[stage]
    return free


@compiled
def eager_ends(forward: Floats, backward: Floats, delays: Floats, num_microbatches: int) -> Floats:
    """Eager 1F1B turn by turn: in turn t, stage i passes t - i forward, and then t - 2 (P - 1) + i backward. Shape [stages].

    Every pass waits for a neighbour's in the turn before. Stages are gone through so that this is still the neighbour's latest.
    """
    num_stages = len(forward)
    last = num_stages - 1
    free = np.zeros(num_stages)
    passed = np.zeros(num_stages)
    returned = np.zeros(num_stages)
    for turn in range(num_microbatches + 2 * last):
        for stage in range(min(last, turn), max(-1, turn - num_microbatches), -1):
            start = free[stage]
            if stage > 0:
                start = max(start, passed[stage - 1] + delays[stage - 1])
            free[stage] = passed[stage] = start + forward[stage]
        for stage in range(max(0, 2 * last - turn), min(num_stages, 2 * last - turn + num_microbatches)):
            start = free[stage]
            if stage < last:
                start = max(start, returned[stage + 1] + delays[stage])
            free[stage] = returned[stage] = start + backward[stage]
    return free


@compiled
def all_forward_all_backward_ends(forward: Floats, backward: Floats, delays: Floats, num_microbatches: int) -> Floats:
    """GPipe: every stage passes all micro-batches forward, and then all of them backward. Shape [stages].

    Backward passes come in reverse order; each stage's is one after another whichever they are, so their numbers do not matter.
    """
    last = len(forward) - 1
    free = np.zeros(last + 1)
    for _ in range(num_microbatches):
        arrived = 0.0
        for stage in range(last + 1):
            free[stage] = max(free[stage], arrived) + forward[stage]
            arrived = free[stage] + (delays[stage] if stage < last else 0.0)
    for _ in range(num_microbatches):
        arrived = 0.0
        for stage in range(last, -1, -1):
            free[stage] = max(free[stage], arrived) + backward[stage]
            arrived = free[stage] + (delays[stage - 1] if stage > 0 else 0.0)
    return free
