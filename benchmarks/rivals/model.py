"""The model that both train: square matrices, so that state is large where computing and messages are small."""

import math

import torch
from torch import Tensor, nn

NUM_LAYERS = 4
BATCH = 4
"""Samples in a replica's micro-batch."""


def width_for(state_bytes: int) -> int:
    """Width at which parameters and momentum, in float32, take this much."""
    return round(math.sqrt(state_bytes / (NUM_LAYERS * 4 * 2)))


class Square(nn.Module):
    """[B, width] to the same; the first layer takes the batch's field `values`."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width, width) / width**0.5)

    def forward(self, hidden: Tensor | None = None, *, values: Tensor | None = None) -> Tensor:
        """Multiply."""
        entered = hidden if hidden is not None else values
        assert entered is not None
        return torch.tanh(entered @ self.weight)


def whole(width: int) -> nn.Module:
    """All layers."""
    return nn.Sequential(*(Square(width) for _ in range(NUM_LAYERS)))


def optimizer(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """SGD with momentum: as much optimizer state as parameters."""
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)
