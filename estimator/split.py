"""Time of a pipeline under ZB-H1, whose backward passes are split into input and weight part."""

from collections.abc import Sequence

from estimator.layers import StageTimes
from estimator.pipeline import PipelineTimes, pipeline_times
from kintsugi.core.plan import Schedule


def scheduled_times(
    schedule: Schedule, stages: Sequence[StageTimes], delay_seconds: Sequence[float], num_microbatches: int
) -> PipelineTimes:
    """Equation 11 under any schedule.

    Args:
        schedule: order of passes within a stage.
        stages: times of one micro-batch.
        delay_seconds: of the link between neighbouring stages, each way, shape [stages - 1].
        num_microbatches: that enter the pipeline.
    """
    if schedule is Schedule.ZB_H1:
        return zero_bubble_times(stages, delay_seconds, num_microbatches)
    forward, backward = [stage.forward_seconds for stage in stages], [stage.backward_seconds for stage in stages]
    return pipeline_times(schedule, forward, backward, delay_seconds, num_microbatches)


def zero_bubble_times(stages: Sequence[StageTimes], delay_seconds: Sequence[float], num_microbatches: int) -> PipelineTimes:
    """ZB-H1 clock by clock: the clocks of 1F1B, but only the input part is waited for.

    At clock t, stage i passes (t - i) / 2 forward, or m = (t + i + 1) / 2 - P backward, and after that the weight part of
    m - i where there is one; the others follow in the end. O(stages * (stages + num_microbatches)).
    """
    num_stages, last = len(stages), len(stages) - 1
    free, passed, returned = [0.0] * num_stages, [0.0] * num_stages, [0.0] * num_stages
    for clock in range(2 * (num_microbatches + num_stages) - 1):
        for i, stage in enumerate(stages):
            microbatch = (clock + i + 1) // 2 - num_stages
            if (clock - i) & 1 and 0 <= microbatch < num_microbatches:
                ready = returned[i + 1] + delay_seconds[i] if i < last else 0.0
                returned[i] = max(free[i], ready) + stage.backward_input_seconds
                free[i] = returned[i] + (stage.backward_weight_seconds if microbatch >= i else 0.0)
            elif not (clock - i) & 1 and 0 <= clock - i < 2 * num_microbatches:
                ready = passed[i - 1] + delay_seconds[i - 1] if i > 0 else 0.0
                free[i] = passed[i] = max(free[i], ready) + stage.forward_seconds
    ends = tuple(
        end + min(i, num_microbatches) * stage.backward_weight_seconds
        for i, (end, stage) in enumerate(zip(free, stages, strict=True))
    )
    return PipelineTimes(max(ends), ends)
