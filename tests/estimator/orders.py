"""The recurrence for any order of passes, step by step: what faster forms of it are held against."""

from collections.abc import Sequence

from estimator.pipeline import PipelineTimes
from estimator.schedule import Pass, Step


def ordered_times(
    orders: Sequence[Sequence[Step]],
    forward_seconds: Sequence[float],
    backward_seconds: Sequence[float],
    delay_seconds: Sequence[float],
) -> PipelineTimes:
    """Equation 11 for any order of passes per stage; f_1 and f_2 are the neighbour stage and the same micro-batch.

    Complexity O(passes * stages) at worst, O(passes) for orders that run on when they can.
    """
    num_stages = len(orders)
    ends: dict[tuple[Pass, int, int], float] = {}
    free, position = [0.0] * num_stages, [0] * num_stages
    remaining = sum(map(len, orders))
    while remaining:
        before = remaining
        for stage, steps in enumerate(orders):
            while position[stage] < len(steps):
                step = steps[position[stage]]
                ready = _ready_seconds(step, stage, ends, delay_seconds)
                if ready is None:
                    break
                duration = forward_seconds[stage] if step.kind is Pass.FORWARD else backward_seconds[stage]
                free[stage] = ends[step.kind, stage, step.microbatch] = max(free[stage], ready) + duration
                position[stage] += 1
                remaining -= 1
        assert remaining < before, "the orders deadlock"
    return PipelineTimes(max(free), tuple(free))


def _ready_seconds(
    step: Step, stage: int, ends: dict[tuple[Pass, int, int], float], delay_seconds: Sequence[float]
) -> float | None:
    """When the pass that `step` depends on is through and delivered; None while it is not known."""
    if step.kind is Pass.FORWARD:
        if stage == 0:
            return 0.0
        end, delay = ends.get((Pass.FORWARD, stage - 1, step.microbatch)), delay_seconds[stage - 1]
    elif stage == len(delay_seconds):
        end, delay = ends.get((Pass.FORWARD, stage, step.microbatch)), 0.0
    else:
        end, delay = ends.get((Pass.BACKWARD, stage + 1, step.microbatch)), delay_seconds[stage]
    return None if end is None else end + delay
