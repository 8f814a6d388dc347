"""Several optimizers as one, each of some of the parameters: Muon for matrices and AdamW for the rest, say."""

from collections.abc import Callable, Sequence

import torch


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
