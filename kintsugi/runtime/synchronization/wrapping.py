"""An optimizer that is another optimizer to everything but `step`."""

from typing import Any

import torch

_HOOKS = ("_optimizer_step_", "_optimizer_state_dict_", "_optimizer_load_state_dict_")
"""What torch's names of an optimizer's hooks begin with: dictionaries that its `register_` methods add to."""


class WrappingOptimizer(torch.optim.Optimizer):
    """Shares groups, state and hooks with the optimizer within, so that schedulers, checkpoints and hooks see that one."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        """Not torch's own `__init__`, which would make groups and state of its own."""
        self._inner = optimizer
        self.__dict__ |= {name: hooks for name, hooks in vars(optimizer).items() if name.startswith(_HOOKS)}

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]  # an attribute there
        """The groups of the optimizer within."""
        return self._inner.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]  # an attribute there
        """The state of the optimizer within."""
        return self._inner.state

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]  # an attribute there
        """The defaults of the optimizer within."""
        return self._inner.defaults

    def state_dict(self) -> dict[str, Any]:
        """Of the optimizer within."""
        return self._inner.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Into the optimizer within."""
        self._inner.load_state_dict(state_dict)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Of the optimizer within."""
        self._inner.zero_grad(set_to_none=set_to_none)


def within(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """The optimizer that another one wraps; itself where it wraps none."""
    return optimizer._inner if isinstance(optimizer, WrappingOptimizer) else optimizer
