"""How far a step by one worker's own gradient goes, compared with one by the mean gradient of all workers.

SGD is linear in the gradient: the mean of the workers' own steps is the step with their mean gradient. Adam and those that
descend from it divide by the root of a running mean square, in which one worker's gradient has n times the noise that the
mean of n workers' has. Where noise prevails, lone steps are the root of n shorter, and so is their mean; a learning rate
higher by that root makes up for it (square-root scaling: Malladi et al., On the SDEs and Scaling Rules for Adaptive Gradient
Algorithms, NeurIPS 2022).
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(slots=True)
class NoiseMemory:
    """Noise in the running mean square of an optimizer, in that of one worker's gradient: steps with more workers have less."""

    noise: float = 0.0
    """Running mean of 1 / n over steps with the mean gradient of n workers; not corrected for its beginning at 0."""
    weight: float = 0.0
    """The same mean of 1."""

    def stepped(self, optimizer: torch.optim.Optimizer, num_averaged: int, num_workers: int) -> None:
        """The optimizer is about to step with the mean of `num_averaged` of all workers' gradients.

        A mean square that comes from elsewhere, as from a checkpoint, is taken for one of steps together.
        """
        decay = _decay(optimizer.param_groups[0])
        if decay is None:
            return
        if self.weight == 0.0 and optimizer.state:
            self.noise, self.weight = 1.0 / num_workers, 1.0
        self.noise = decay * self.noise + (1.0 - decay) / num_averaged
        self.weight = decay * self.weight + (1.0 - decay)

    def ratio(self, num_workers: int) -> float:
        """Learning rate of a lone step over that of a step with all workers, for both to go as far where noise prevails.

        From 1, where what is remembered had as little noise, to the root of the number of workers; 1 without a memory.
        """
        return math.sqrt(num_workers * self.noise / self.weight) if self.weight > 0.0 else 1.0


def _decay(group: Mapping[str, Any]) -> float | None:
    """Of the running mean square; None where the optimizer keeps none."""
    betas = group.get("betas")
    return None if betas is None else float(betas[1])


@contextmanager
def lengthened(optimizer: torch.optim.Optimizer, ratio: float) -> Iterator[None]:
    """Learning rates times a ratio for the time being."""
    rates = [group["lr"] for group in optimizer.param_groups]
    try:
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * ratio
        yield
    finally:
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
