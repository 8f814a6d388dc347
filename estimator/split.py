"""Time of a pipeline under any schedule, also where backward passes are split into input and weight part (ZB-H1)."""

from collections.abc import Sequence

import numpy as np

from estimator.arrays import Floats
from estimator.compiled import compiled
from estimator.interleaved import PassTimes, interleaved_ends
from estimator.layers import StageTimes
from estimator.pipeline import PipelineTimes, pipeline_times
from kintsugi.core.plan import Schedule


def scheduled_times(
    schedule: Schedule,
    stages: Sequence[StageTimes],
    delay_seconds: Sequence[float],
    num_microbatches: int,
    *,
    num_workers: int | None = None,
) -> PipelineTimes:
    """Equation 11 under any schedule.

    Args:
        schedule: order of passes within a stage.
        stages: times of one micro-batch.
        delay_seconds: of the link between neighbouring stages, each way, shape [stages - 1].
        num_microbatches: that enter the pipeline.
        num_workers: that the stages go round; None for one per stage.
    """
    is_split, round_of = schedule.is_split, num_workers or len(stages)
    if round_of == len(stages) and not is_split:
        forward, backward = [stage.forward_seconds for stage in stages], [stage.backward_seconds for stage in stages]
        return pipeline_times(schedule, forward, backward, delay_seconds, num_microbatches)
    times, delays = _pass_times(stages, is_split=is_split), np.array(delay_seconds, dtype=np.float64)
    if round_of < len(stages):
        ends = interleaved_ends(times, delays, round_of, num_microbatches, is_split)
    else:
        ends = zero_bubble_ends(*times, delays, num_microbatches)
    return PipelineTimes(float(ends.max()), tuple(ends.tolist()))


def _pass_times(stages: Sequence[StageTimes], *, is_split: bool) -> PassTimes:
    """As arrays."""
    if is_split:
        rows = [(s.forward_seconds, s.backward_input_seconds, s.backward_weight_seconds) for s in stages]
    else:
        rows = [(s.forward_seconds, s.backward_seconds, 0.0) for s in stages]
    return PassTimes(*np.array(rows, dtype=np.float64).T.copy())


@compiled
def zero_bubble_ends(forward: Floats, backward_input: Floats, weight: Floats, delays: Floats, num_microbatches: int) -> Floats:
    """ZB-H1 clock by clock: the clocks of 1F1B, but only the input part is waited for. Shape [stages].

    At clock t, stage i passes (t - i) / 2 forward, or m = (t + i + 1) / 2 - P backward, and after that the weight part of
    m - i where there is one; the others follow in the end.
    """
    num_stages = len(forward)
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
                    returned[i] = start + backward_input[i]
                    free[i] = returned[i] + (weight[i] if microbatch >= i else 0.0)
            elif 0 <= clock - i < 2 * num_microbatches:
                if i > 0:
                    start = max(start, passed[i - 1] + delays[i - 1])
                free[i] = passed[i] = start + forward[i]
    for i in range(num_stages):
        free[i] += min(i, num_microbatches) * weight[i]
    return free
