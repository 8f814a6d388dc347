"""Time of one pipeline: the paper's closed forms (equations 9, 10, 12, 13) and the exact recurrence (equation 11).

N_m is per pipeline here, as in the paper's equations.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from estimator.arrays import Floats
from estimator.compiled import compiled
from estimator.lockstep import FEWEST_STAGES, MOST_STAGES, lockstep_ends
from kintsugi.core.errors import InfeasibleError
from kintsugi.core.plan import Schedule


@dataclass(frozen=True, slots=True)
class PipelineTimes:
    """When a pipeline's stages are through with their last backward pass, in seconds from the step's start."""

    pipeline_seconds: float
    stage_end_seconds: tuple[float, ...]
    """Shape [stages]."""


class PassTimes(NamedTuple):
    """Of one micro-batch in each stage, in seconds. Shape [stages] each."""

    forward: Floats
    backward: Floats
    """What the stage before waits for: the whole backward pass, or its input part where the weight part is put off."""
    weight: Floats
    """What is put off; zeros where nothing is."""


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
    if schedule is Schedule.GPIPE:
        ends = all_forward_all_backward_ends(forward, backward, delays, num_microbatches)
    else:
        ends = alternating_ends(PassTimes(forward, backward, np.zeros_like(backward)), delays, num_microbatches, schedule.lag)
    return PipelineTimes(float(ends.max()), tuple(ends.tolist()))


@compiled
def alternating_ends(times: PassTimes, delays: Floats, num_microbatches: int, lag: int) -> Floats:
    """When each stage is through under 1F1B and ZB-H1, or with a lag of 2 under eager 1F1B and ZB-H2. Shape [stages].

    Stage i puts the weight parts of `lag` * i micro-batches off.
    """
    if lag > 1:
        return eager_ends(times, delays, num_microbatches)
    return one_forward_one_backward_ends(times, delays, num_microbatches)


@compiled
def one_forward_one_backward_ends(times: PassTimes, delays: Floats, num_microbatches: int) -> Floats:
    """`stagewise_ends`, by vectors in long pipelines: the same to the last bit."""
    if FEWEST_STAGES <= len(times.forward) <= MOST_STAGES:
        return lockstep_ends(times.forward, times.backward, times.weight, delays, num_microbatches)
    return stagewise_ends(times, delays, num_microbatches)


@compiled
def stagewise_ends(times: PassTimes, delays: Floats, num_microbatches: int) -> Floats:
    """Clock by clock: at clock t, stage i passes (t - i) / 2 forward, or m = (t + i + 1) / 2 - P backward. Shape [stages].

    After that comes the weight part of m - i where there is one; the others follow in the end. Every pass that is waited for
    depends only on its own stage's last pass and on a neighbour's pass one clock earlier.
    """
    num_stages = len(times.forward)
    last = num_stages - 1
    free, passed, returned = np.zeros(num_stages), np.zeros(num_stages), np.zeros(num_stages)
    for clock in range(2 * (num_microbatches + num_stages) - 1):
        for i in range(num_stages):
            start = free[i]
            if (clock - i) & 1:
                microbatch = (clock + i + 1) // 2 - num_stages
                if 0 <= microbatch < num_microbatches:
                    if i < last:
                        start = max(start, returned[i + 1] + delays[i])
                    returned[i] = start + times.backward[i]
                    free[i] = returned[i] + (times.weight[i] if microbatch >= i else 0.0)
            elif 0 <= clock - i < 2 * num_microbatches:
                if i > 0:
                    start = max(start, passed[i - 1] + delays[i - 1])
                free[i] = passed[i] = start + times.forward[i]
    for i in range(num_stages):
        free[i] += min(i, num_microbatches) * times.weight[i]
    return free


@compiled
def eager_ends(times: PassTimes, delays: Floats, num_microbatches: int) -> Floats:
    """Turn by turn: in turn t, stage i passes t - i forward, and then m = t - 2 (P - 1) + i backward. Shape [stages].

    After that comes the weight part of m - 2 i where there is one; the others follow in the end. Every pass that is waited for
    waits for a neighbour's in the turn before. Stages are gone through so that this is still the neighbour's latest.
    """
    num_stages = len(times.forward)
    last = num_stages - 1
    free, passed, returned = np.zeros(num_stages), np.zeros(num_stages), np.zeros(num_stages)
    for turn in range(num_microbatches + 2 * last):
        for i in range(min(last, turn), max(-1, turn - num_microbatches), -1):
            start = free[i]
            if i > 0:
                start = max(start, passed[i - 1] + delays[i - 1])
            free[i] = passed[i] = start + times.forward[i]
        first = turn - 2 * last
        for i in range(max(0, -first), min(num_stages, num_microbatches - first)):
            start = free[i]
            if i < last:
                start = max(start, returned[i + 1] + delays[i])
            returned[i] = start + times.backward[i]
            free[i] = returned[i] + (times.weight[i] if i <= first else 0.0)
    for i in range(num_stages):
        free[i] += min(2 * i, num_microbatches) * times.weight[i]
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
