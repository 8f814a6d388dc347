"""Several optimizers as one, each of some of the parameters: Muon for matrices and AdamW for the rest, say."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


class Combined(torch.optim.Optimizer):
    """Steps with each of its parts; their groups and their state are its own, and so move with the parameters."""

    def __init__(self, parts: Sequence[torch.optim.Optimizer]) -> None:
        """Of one optimizer at least.

        Raises:
            ValueError: a parameter is in several of them.
        """
        super().__init__([{"params": group["params"]} for part in parts for group in part.param_groups], {})
        self.param_groups = [group for part in parts for group in part.param_groups]
        self._parts = tuple(parts)
        self._part_of = {parameter: part for part in parts for group in part.param_groups for parameter in group["params"]}
        for part in parts:
            self.state.update(part.state)
            part.state = self.state

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient.

        Args:
            closure: not taken; the loss was computed on other workers.
        """
        assert closure is None
        for part in self._parts:
            part.step()

    def part_of(self, parameter: Tensor) -> torch.optim.Optimizer | None:
        """That which updates a parameter; null where none does."""
        return self._part_of.get(parameter)


def updater_of(optimizer: torch.optim.Optimizer, parameter: Tensor) -> torch.optim.Optimizer | None:
    """The one optimizer that a user made for a parameter; of several as one, null where none has it."""
    found: torch.optim.Optimizer | None = optimizer
    while isinstance(found, Combined):
        found = found.part_of(parameter)
    return found
