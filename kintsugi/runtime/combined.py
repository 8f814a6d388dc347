"""Several optimizers as one, each of some of the parameters: Muon for matrices and AdamW for the rest, say."""

from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import torch
from torch import Tensor


class Combined(torch.optim.Optimizer):
    """Steps with each of its parts; their groups are its own, and it tells their state, and so both move with the parameters.

    A part may be of several itself.
    """

    def __init__(self, parts: Sequence[torch.optim.Optimizer]) -> None:
        """Of one optimizer at least.

        Raises:
            ValueError: a parameter is in several of them.
        """
        super().__init__([{"params": group["params"]} for part in parts for group in part.param_groups], {})
        self.param_groups = [group for part in parts for group in part.param_groups]
        self._parts = tuple(parts)
        self._part_of = {parameter: part for part in parts for group in part.param_groups for parameter in group["params"]}
        self.state: Any = _States(self._parts, self._part_of)

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient.

        Args:
            closure: not taken; the loss was computed on other workers.
        """
        assert closure is None
        for part in self._parts:
            part.step()

    @property
    def parts(self) -> tuple[torch.optim.Optimizer, ...]:
        """As they were given."""
        return self._parts

    def part_of(self, parameter: Tensor) -> torch.optim.Optimizer | None:
        """That which updates a parameter; null where none does."""
        return self._part_of.get(parameter)


class _States(MutableMapping[Any, Any]):
    """The state of all parts, each of which keeps its own: others may hold on to that, too, as optimizers within a part do."""

    def __init__(self, parts: Sequence[torch.optim.Optimizer], part_of: Mapping[Tensor, torch.optim.Optimizer]) -> None:
        self._parts, self._part_of = parts, part_of

    def __getitem__(self, key: Any) -> Any:
        return self._where(key)[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._where(key)[key] = value

    def __delitem__(self, key: Any) -> None:
        del self._where(key)[key]

    def __contains__(self, key: object) -> bool:
        return any(key in part.state for part in self._parts)

    def get(self, key: Any, default: Any = None) -> Any:
        """As of any mapping: nothing is there afterwards that was not before."""
        if key not in self:
            return default
        return self[key]

    def __iter__(self) -> Iterator[Any]:
        return (key for part in self._parts for key in part.state)

    def __len__(self) -> int:
        return sum(len(part.state) for part in self._parts)

    def _where(self, key: Any) -> MutableMapping[Any, Any]:
        found = self._part_of.get(key) or next((part for part in self._parts if key in part.state), None)
        if found is None:
            raise KeyError(key)
        state: MutableMapping[Any, Any] = found.state
        return state


def single_ones(optimizer: torch.optim.Optimizer) -> Iterator[torch.optim.Optimizer]:
    """The optimizers that a user made, of which this one is or consists."""
    if not isinstance(optimizer, Combined):
        yield optimizer
        return
    for part in optimizer.parts:
        yield from single_ones(part)


def updater_of(optimizer: torch.optim.Optimizer, parameter: Tensor) -> torch.optim.Optimizer | None:
    """The one optimizer that a user made for a parameter; of several as one, null where none has it."""
    found: torch.optim.Optimizer | None = optimizer
    while isinstance(found, Combined):
        found = found.part_of(parameter)
    return found
