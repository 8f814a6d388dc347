"""Whether the ranks of a plain script are of one mind: what differs is told on all of them, before any of it does harm."""

from dataclasses import asdict
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from kintsugi.core.errors import CommunicationError, InvalidInputError
from kintsugi.runtime.checkpoints.recording import CheckpointOptions
from kintsugi.runtime.likeness import Traits, differences, group_told
from kintsugi.runtime.plain_state import tensors_of
from kintsugi.runtime.synchronization.wrapping import within
from restorer.packing import type_name

_TURN = 1024


def from_all(value: Any) -> list[Any]:
    """What every rank of the default group gives, by rank; all of them call it."""
    if not dist.is_initialized():
        return [value]
    everybody: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everybody, value)
    return everybody


def require_alike(told: Traits) -> None:
    """Require that all ranks of the default group tell the same of a run; all of them call it.

    Raises:
        InvalidInputError: one tells something else than rank 0; on every rank.
    """
    everybody = from_all(told)
    for rank, theirs in enumerate(everybody):
        if found := differences(theirs, everybody[0]):
            raise InvalidInputError(f"of rank {rank} is unlike that of rank 0: {found}; give all ranks the same", field="run")


def require_none_failed(failure: Exception | None) -> None:
    """Go on where no rank of the default group failed; all of them call it, each with its own failure.

    Raises:
        Exception: this rank's own.
        CommunicationError: another rank's.
    """
    everybody = from_all(failure and f"{type(failure).__name__}: {failure}")
    if failure is not None:
        raise failure
    for rank, told in enumerate(everybody):
        if told:
            raise CommunicationError(f"rank {rank} could not go on: {told}", field="run")


def run_traits(options: CheckpointOptions, **given: object) -> Traits:
    """What the ranks of a run were given."""
    return {name: str(value) for name, value in given.items()} | {
        f"checkpoints.{name}": str(value) for name, value in asdict(options).items()
    }


def training_traits(model: nn.Module, optimizer: torch.optim.Optimizer, scheduler: object) -> Traits:
    """What a rank trains, and how, as far as it can be told."""
    told = {
        f"{name!r} of the model": f"{type_name(value.dtype)} of shape {tuple(value.shape)}"
        for name, value in tensors_of(model).items()
    }
    told |= {f"whether {name!r} is trained": str(value.requires_grad) for name, value in model.named_parameters()}
    for index, group in enumerate(optimizer.param_groups):
        size = len(group["params"])
        told[f"group {index} of the optimizer"] = f"{group_told(within(optimizer), group)} of {size} parameters"
    return told | {"scheduler": type(scheduler).__name__}


def sum_of_all(value: float) -> float:
    """The sum of what all ranks of the default group give; all of them call it."""
    if not dist.is_initialized():
        return value
    told = torch.tensor([value], dtype=torch.float64)
    dist.all_reduce(told)
    return float(told)


def sum_together(step: int, loss: float, advised: int) -> tuple[float, int]:
    """The sums of all ranks' losses and of the intervals that they advise, where all commit the same step.

    Args:
        step: that this rank commits.
        loss: of this rank.
        advised: steps from checkpoint to checkpoint; 0 of ranks that know nothing of it.

    Raises:
        InvalidInputError: ranks commit different steps; on every rank.
    """
    if not dist.is_initialized():
        return loss, advised
    place = step % _TURN  # whose squares add up exactly
    told = torch.tensor([loss, advised, step, place, place * place], dtype=torch.float64)
    dist.all_reduce(told)
    total, intervals, steps, places, squares = told.tolist()
    if squares * dist.get_world_size() != places * places:  # only of equal numbers the square of the mean is the mean of squares
        mean = steps / dist.get_world_size()
        message = f"is {step} on rank {dist.get_rank()} and {mean:g} in the mean of all ranks: all commit the same steps"
        raise InvalidInputError(message, field="step", value=str(step))
    return total, int(intervals)
