"""Fixed orders of forward and backward passes, stage by stage.

An order keeps five invariants: every micro-batch passes forward once and backward once, in one pass or in its input
and its weight part; forward comes first, the input part before the weight part; micro-batches pass in order; a stage
never holds more micro-batches in flight than its limit; the orders of all stages together admit an execution (no
deadlock).
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from estimator.compiled import shared
from kintsugi.core.errors import InvalidInputError
from kintsugi.core.plan import Schedule


class Pass(StrEnum):
    """What a worker computes for one micro-batch in one stage."""

    FORWARD = "F"
    BACKWARD = "B"
    """Input and weight part in one."""
    BACKWARD_INPUT = "I"
    """The gradient of the stage's input, which the stage before waits for."""
    BACKWARD_WEIGHT = "W"
    """The gradients of the stage's weights, which nobody waits for before the reductions."""


KINDS = (Pass.FORWARD, Pass.BACKWARD, Pass.BACKWARD_INPUT, Pass.BACKWARD_WEIGHT)
"""By the numbers that they have in arrays and compiled loops."""
FORWARD, BACKWARD, INPUT, WEIGHT = range(len(KINDS))

LAST_PASSES = frozenset({Pass.BACKWARD, Pass.BACKWARD_WEIGHT})
"""After these the activations of a micro-batch are not needed any more."""


@dataclass(frozen=True, slots=True)
class Step:
    """One pass of one micro-batch; `microbatch` counts within the pipeline."""

    kind: Pass
    microbatch: int

    def text(self, stage: int) -> str:
        """The field's notation, such as `2F0`: stage 2, forward, micro-batch 0."""
        return f"{stage}{self.kind.value}{self.microbatch}"


def parse(text: str) -> tuple[int, Step]:
    """Read `2F0` back: the stage and the step.

    Raises:
        InvalidInputError: the text is no step.
    """
    match = re.fullmatch(r"(\d+)([FBIW])(\d+)", text)
    if match is None:
        raise InvalidInputError("is no step such as 2F0", field="step", value=text)
    return int(match[1]), Step(Pass(match[2]), int(match[3]))


@shared
def most_in_flight(num_to_go: int, lag: int = 1) -> int:
    """Most micro-batches that 1F1B holds in flight at a stage, however many there are: one at the last, `lag` more at each before.

    Args:
        num_to_go: stages from this one on.
        lag: of the schedule.
    """
    return lag * (num_to_go - 1) + 1


def num_in_flight(stage: int, num_stages: int, num_microbatches: int, lag: int = 1) -> int:
    """Most micro-batches that 1F1B holds in flight at a stage: min(N_pp - i, N_m) where `lag` is 1."""
    return min(most_in_flight(num_stages - stage, lag), num_microbatches)


def one_forward_one_backward(stage: int, num_stages: int, num_microbatches: int, lag: int = 1) -> tuple[Step, ...]:
    """1F1B: warmup forwards, then one forward and one backward in turn, then the cooldown. 2 * M steps."""
    warmup = num_in_flight(stage, num_stages, num_microbatches, lag) - 1
    steps = [Step(Pass.FORWARD, m) for m in range(warmup)]
    for m in range(warmup, num_microbatches):
        steps += [Step(Pass.FORWARD, m), Step(Pass.BACKWARD, m - warmup)]
    steps += [Step(Pass.BACKWARD, m) for m in range(num_microbatches - warmup, num_microbatches)]
    return tuple(steps)


def eager_one_forward_one_backward(stage: int, num_stages: int, num_microbatches: int) -> tuple[Step, ...]:
    """Eager 1F1B (Zhuang et al., *On Optimizing the Communication of Model Parallelism*, 2023): about twice the warmup of 1F1B.

    Stages pass forward and backward in turn with two micro-batches more in flight than the next one: while a message is under way
    in either direction there is another pass to compute. 2 * M steps.
    """
    return one_forward_one_backward(stage, num_stages, num_microbatches, Schedule.EAGER_1F1B.lag)


def gpipe(stage: int, num_stages: int, num_microbatches: int) -> tuple[Step, ...]:  # noqa: ARG001  # one signature for all
    """GPipe: all forwards, then all backwards in reverse order. 2 * M steps."""
    forwards = [Step(Pass.FORWARD, m) for m in range(num_microbatches)]
    return (*forwards, *(Step(Pass.BACKWARD, m) for m in reversed(range(num_microbatches))))


def zero_bubble_h1(stage: int, num_stages: int, num_microbatches: int, lag: int = 1) -> tuple[Step, ...]:
    """ZB-H1 (Qi et al., *Zero Bubble Pipeline Parallelism*, 2023): 1F1B whose weight parts come later, to fill bubbles.

    Stage i puts the weight parts of `lag` * i micro-batches off, so that every stage holds as many micro-batches in flight as
    the first one, which holds what it does with whole backward passes. Nobody waits for the first stage's input part: it passes
    backward in one. At most 3 * M steps.
    """
    if stage == 0:
        return one_forward_one_backward(stage, num_stages, num_microbatches, lag)
    warmup, num_put_off = num_in_flight(stage, num_stages, num_microbatches, lag), lag * stage
    steps = [Step(Pass.FORWARD, m) for m in range(warmup)]
    for m in range(num_microbatches):
        steps.append(Step(Pass.BACKWARD_INPUT, m))
        if m >= num_put_off:
            steps.append(Step(Pass.BACKWARD_WEIGHT, m - num_put_off))
        if m + warmup < num_microbatches:
            steps.append(Step(Pass.FORWARD, m + warmup))
    steps += [Step(Pass.BACKWARD_WEIGHT, m) for m in range(max(0, num_microbatches - num_put_off), num_microbatches)]
    return tuple(steps)


def zero_bubble_h2(stage: int, num_stages: int, num_microbatches: int) -> tuple[Step, ...]:
    """ZB-H2 (Qi et al., 2023): ZB-H1 with about twice the warmup, eager 1F1B whose weight parts come later. At most 3 * M steps."""
    return zero_bubble_h1(stage, num_stages, num_microbatches, Schedule.ZB_H2.lag)


ORDERS: dict[Schedule, Callable[[int, int, int], tuple[Step, ...]]] = {
    Schedule.ONE_F_ONE_B: one_forward_one_backward,
    Schedule.EAGER_1F1B: eager_one_forward_one_backward,
    Schedule.GPIPE: gpipe,
    Schedule.ZB_H1: zero_bubble_h1,
    Schedule.ZB_H2: zero_bubble_h2,
    Schedule.INTERLEAVED: one_forward_one_backward,
    Schedule.INTERLEAVED_ZB: zero_bubble_h1,
}
"""Orders where every worker holds one stage of its pipeline; `estimator.interleaved` has those for several."""


def require_known(schedule: Schedule) -> Schedule:
    """`schedule`, when this version has an order for it.

    Raises:
        InvalidInputError: it has none.
    """
    if schedule not in ORDERS:
        known = ", ".join(known.value for known in ORDERS)
        raise InvalidInputError(f"is not available in this version; choose one of {known}", field="schedule", value=schedule.value)
    return schedule


def order(schedule: Schedule, stage: int, num_stages: int, num_microbatches: int) -> tuple[Step, ...]:
    """The order of passes of one stage. Shape [2 * num_microbatches], or 3 * num_microbatches with a split backward pass.

    Raises:
        InvalidInputError: the schedule has no order in this version.
    """
    return ORDERS[require_known(schedule)](stage, num_stages, num_microbatches)


def scheduled_in_flight(schedule: Schedule, stage: int, num_stages: int, num_microbatches: int) -> int:
    """Most micro-batches whose activations a stage holds at once, from a forward pass to the last that needs them."""
    if schedule is Schedule.GPIPE:
        return num_microbatches
    return num_in_flight(0 if schedule.is_split else stage, num_stages, num_microbatches, schedule.lag)
