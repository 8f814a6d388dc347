"""A step commits on all workers or on none.

The all-reduce of the gradient norm is the commit point. Nobody updates before it; it ends on any worker only after all
workers gave their part, that is, after all of them hold complete gradients. So when one survivor is past it, every
survivor can roll the step forward; when none is, all discard it and run it again under the new plan.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from kintsugi.core.errors import InvalidInputError, ReconfigurationError


@dataclass(frozen=True, slots=True)
class CommitRecord:
    """What the commit point of a step told its workers."""

    step: int
    squared_norm: float
    """Squared 2-norm of the whole model's gradient."""
    loss: float
    """Mean over the global batch."""
    divisor: float = 1.0
    """What gradients are still to be divided by: mean count of the micro-batches where losses are sums, 1 where they are means."""
    microbatches: tuple[int, ...] = ()
    """How often the loss of each counted, over all workers. Shape [micro-batches]."""
    asks_for_checkpoint: bool = False
    """Whether any worker asked for the state after this step to be written; then all write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitVector:
    """What every worker adds to the sum at the commit point, and after it the sum. All in 64 bits, in host memory."""

    squared_norm: Tensor
    """Squared 2-norm of the gradients that a worker owns. Shape []."""
    asks_for_checkpoint: Tensor
    """1 where it wants the state after this step to be written. Shape []."""
    loss: Tensor
    """Sum of its losses, and of how much each of them counts. Shape [2]."""
    trained: Tensor
    """How often the loss of each micro-batch counted. Shape [micro-batches]."""
    opinion: Tensor
    """What it says of the state before the step, where that is compared (`Comparison`). Shape [n], the same on all workers."""

    def packed(self) -> Tensor:
        """In one tensor, for one all-reduce. Shape [4 + micro-batches + n]."""
        return torch.cat([torch.stack([self.squared_norm, self.asks_for_checkpoint]), self.loss, self.trained, self.opinion])

    @classmethod
    def unpacked(cls, packed: Tensor, num_microbatches: int) -> Self:
        """What `packed` made one tensor of."""
        first, loss, trained, opinion = packed.split([2, 2, num_microbatches, len(packed) - num_microbatches - 4])
        return cls(squared_norm=first[0], asks_for_checkpoint=first[1], loss=loss, trained=trained, opinion=opinion)


@dataclass(frozen=True, slots=True)
class StepStatus:
    """How far one worker is."""

    step: int
    """The next step to apply."""
    is_reduced: bool = False
    """Whether the gradients of that step are complete here."""
    last_record: CommitRecord | None = None
    """Of the last commit point that this worker passed."""


Permit = Callable[[CommitRecord], None]
"""Asked between the commit point of a step and its update; raises CommunicationError where the others go on without the step."""


def anything(_: CommitRecord) -> None:
    """Permit every step: whoever calls steps off knows what each worker has applied."""


def require_each_once(record: CommitRecord) -> None:
    """Require that every micro-batch of a step was trained on, and none twice, before anybody applies it.

    Raises:
        ReconfigurationError: with the first that was not; all workers find the same.
    """
    for microbatch, count in enumerate(record.microbatches):
        if count != 1:
            raise ReconfigurationError(
                f"micro-batch {microbatch} of step {record.step} was trained {count} times", field="microbatch", value=microbatch
            )


def divisor_of(count: float, num_microbatches: int) -> float:
    """What sums of losses over a step, and their gradients, each divided by the number of micro-batches, are to be divided by.

    Args:
        count: of all micro-batches: of how many tokens or samples sums are; 1 for each mean.
        num_microbatches: of the step.

    Raises:
        InvalidInputError: the count is none; all workers find the same.
    """
    if not (math.isfinite(count) and count >= 0):
        raise InvalidInputError("counts of a step's sums must be finite and not negative", field="loss", value=count)
    return count / num_microbatches or 1.0  # where nothing counts all sums should be 0


def resolve(statuses: Iterable[StepStatus]) -> CommitRecord | None:
    """The record with which survivors that have not applied its step roll forward; None when the step is discarded.

    Raises:
        ReconfigurationError: a survivor cannot follow, which the commit point excludes.
    """
    statuses = tuple(statuses)
    records = [status.last_record for status in statuses if status.last_record is not None]
    if not records:
        return None
    newest = max(records, key=lambda record: record.step)
    behind = [status for status in statuses if status.step <= newest.step]
    for status in behind:
        if status.step != newest.step or not status.is_reduced:
            raise ReconfigurationError(
                f"step {newest.step} is committed, and a survivor at step {status.step} lacks its gradients",
                field="step",
                value=status.step,
            )
    return newest if behind else None
