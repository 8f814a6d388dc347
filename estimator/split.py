"""Time of a pipeline under any schedule, also where backward passes are split into input and weight part (zero bubble)."""

from collections.abc import Sequence

import numpy as np

from estimator.interleaved import interleaved_ends
from estimator.layers import StageTimes
from estimator.pipeline import PassTimes, PipelineTimes, alternating_ends, pipeline_times
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
        one = PassTimes(*(part[:, None] for part in times))
        ends = interleaved_ends(one, delays[:, None], round_of, num_microbatches, is_split)[:, 0]
    else:
        ends = alternating_ends(times, delays, num_microbatches, schedule.lag)
    return PipelineTimes(float(ends.max()), tuple(ends.tolist()))


def _pass_times(stages: Sequence[StageTimes], *, is_split: bool) -> PassTimes:
    """As arrays."""
    if is_split:
        rows = [(s.forward_seconds, s.backward_input_seconds, s.backward_weight_seconds) for s in stages]
    else:
        rows = [(s.forward_seconds, s.backward_seconds, 0.0) for s in stages]
    return PassTimes(*np.array(rows, dtype=np.float64).T.copy())
