"""Gradients of several layers as one message, and back."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn


class Waitable(Protocol):
    """A reduction under way."""

    def wait(self) -> None:
        """Block until it is done. Raises CommunicationError when a member is gone."""

    @property
    def span(self) -> tuple[float, float]:
        """When it was carried out, once it is over, on the monotonic clock in seconds."""


@dataclass(slots=True)
class BucketInFlight:
    """A bucket that is being summed over its holders."""

    reducing: Waitable
    flat: Tensor
    shapes: Mapping[str, tuple[int, ...]]

    def settle(self, parameters: Mapping[str, nn.Parameter]) -> None:
        """Wait for the sum and make it the gradient of those parameters that are held here.

        Raises:
            CommunicationError: a member is gone, or the step was called off.
        """
        self.reducing.wait()
        offset = 0
        for name, shape in self.shapes.items():
            count = math.prod(shape)
            if name in parameters:
                parameters[name].grad = self.flat[offset : offset + count].reshape(shape)
            offset += count


def taken_gradients(
    parameters: Mapping[str, nn.Parameter], shapes: Mapping[str, tuple[int, ...]], *, dtype: torch.dtype, device: str
) -> Tensor:
    """The gradients of some parameters as one flat tensor, taken from them; what has none, or is not held here, counts as zero."""
    parts = [_gradient(parameters.get(name), shape, dtype=dtype, device=device) for name, shape in shapes.items()]
    for name in shapes:
        if name in parameters:
            parameters[name].grad = None
    return torch.cat([part.reshape(-1) for part in parts])


def _gradient(parameter: nn.Parameter | None, shape: tuple[int, ...], *, dtype: torch.dtype, device: str) -> Tensor:
    if parameter is None or parameter.grad is None:
        return torch.zeros(shape, dtype=dtype, device=device)
    return parameter.grad
