"""A training job whose layers take as long as they are told: real processes and messages, emulated computing.

Sleeping takes no core, so more workers than cores keep the times that they would have on devices of their own.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, nn

from kintsugi.runtime.layer import Layer
from kintsugi.runtime.models import Activations, Batch, NamedParameters, TrainingJob


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulatedTimes:
    """What one layer takes per micro-batch, in seconds; sleeping overshoots by a tenth of a millisecond or so."""

    forward_seconds: float
    backward_input_seconds: float
    """Not taken by the first layer, whose input needs no gradient."""
    backward_weight_seconds: float

    @classmethod
    def even(cls, seconds: float) -> Self:
        """Three passes of so many seconds each: the backward pass takes twice as long as the forward pass."""
        return cls(forward_seconds=seconds, backward_input_seconds=seconds, backward_weight_seconds=seconds)


class _Delay(torch.autograd.Function):
    """The identity, late: sleeps in the forward pass, and in the backward pass where its gradient is wanted."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, forward_seconds: float, backward_seconds: float) -> Tensor:
        ctx.backward_seconds = backward_seconds
        if not value.is_meta:
            time.sleep(forward_seconds)
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        time.sleep(ctx.backward_seconds)
        return gradients[0], None, None


class EmulatedLayer(nn.Module):
    """Multiplies by a weight, slowly. [B, width] to the same; the first layer makes that of the field `values`, [B, 1]."""

    def __init__(self, times: EmulatedTimes, width: int) -> None:
        super().__init__()
        self._times = times
        self.weight = nn.Parameter(1.0 + 0.1 * torch.randn(width))

    def forward(self, hidden: Tensor | None = None, *, values: Tensor | None = None) -> Tensor:
        """The input part sleeps on the way of the input's gradient, the weight part on the weight's."""
        entered = hidden if hidden is not None else values
        assert entered is not None
        times = self._times
        late: Tensor = _Delay.apply(entered, times.forward_seconds, times.backward_input_seconds)  # type: ignore[no-untyped-call]
        weight: Tensor = _Delay.apply(self.weight, 0.0, times.backward_weight_seconds)  # type: ignore[no-untyped-call]
        return late * weight


class RandomNumbers:
    """Samples with one field, `values` of [1], that depend on their index alone."""

    def __init__(self, num_samples: int) -> None:
        self._values = torch.randn(num_samples, 1, generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, index: int) -> Mapping[str, Tensor]:
        return {"values": self._values[index]}


def mean_square(outputs: Activations, _: Batch) -> Tensor:
    """Mean square of the last layer's output."""
    return outputs[0].square().mean()


def sgd(parameters: NamedParameters) -> torch.optim.Optimizer:
    """Momentum, so that there is optimizer state to move."""
    return torch.optim.SGD([parameter for _, parameter in parameters], lr=0.01, momentum=0.9)


def emulated_job(
    times: Sequence[EmulatedTimes], *, num_microbatches: int, num_steps: int, width: int = 1024, microbatch_size: int = 1
) -> TrainingJob:
    """A job of layers `layer0`, `layer1`, ... that take `times`; `width` numbers cross every boundary per sample."""
    layers = [
        Layer(name=f"layer{index}", build=partial(EmulatedLayer, own, width), inputs=() if index else ("values",))
        for index, own in enumerate(times)
    ]
    return TrainingJob(
        layers=layers,
        optimizer=sgd,
        loss=mean_square,
        dataset=RandomNumbers(2 * microbatch_size * num_microbatches),
        microbatch_size=microbatch_size,
        num_microbatches=num_microbatches,
        num_steps=num_steps,
    )
