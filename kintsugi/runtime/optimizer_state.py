"""Where torch's optimizers keep the state of a parameter; what arrives from elsewhere is put there before they go on from it."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from kintsugi.runtime.values import from_plain, to_plain
from restorer.packing import HOST

_COUNTER = "step"
_NESTED = ":nested"
"""After the name of a value that holds others: its description; with a number behind it, a tensor in it."""


def groups_by_parameter(groups: Iterable[dict[str, Any]]) -> dict[Tensor, dict[str, Any]]:
    """The parameter group that each parameter is in."""
    return {parameter: group for group in groups for parameter in group["params"]}


def kept(key: str, value: Any, parameter: Tensor, group: Mapping[str, Any]) -> Any:
    """A value of a parameter's state on the device where its optimizer keeps it; what is no tensor as it is.

    Moments live where their parameter does. Counters, and other single numbers, do so only where updates are fused or
    capturable, else in host memory: torch's note "special device hosting for step". Nothing else is converted.

    Args:
        key: of the value in the state.
        value: wherever it came to lie.
        parameter: whose state it is.
        group: that the parameter is in.
    """
    if not isinstance(value, Tensor):
        return value
    is_moment = key != _COUNTER and (value.dim() > 0 or value.shape == parameter.shape)
    is_beside = is_moment or group.get("fused") or group.get("capturable")
    dtype = torch.float32 if key == _COUNTER and group.get("fused") else value.dtype  # fused updates count in no other
    return value.to(parameter.device if is_beside else HOST, dtype)


def kind_of(optimizer: torch.optim.Optimizer) -> str:
    """The name of its class, and of those that this is derived from."""
    kinds = type(optimizer).__mro__
    return " ".join(kind.__name__ for kind in kinds[: kinds.index(torch.optim.Optimizer)])


def are_alike(was: str | None, now: str | None) -> bool:
    """Whether an optimizer can go on from the state of another one: one's class is the other's, or derived from it.

    Args:
        was: kind of the one that left the state; null where there was none.
        now: kind of the one that is to go on.
    """
    if was is None or now is None:
        return was == now
    own, other = was.split(), now.split()
    return own[0] in other or other[0] in own


def flat(state: Mapping[str, Any], field: str = "optimizer") -> dict[str, Any]:
    """A parameter's state as it travels: tensors and single plain values; lists and others of them by a text and their tensors.

    Args:
        state: by name.
        field: that an error names, before the name in the state.

    Raises:
        InvalidInputError: with the name of what is neither.
    """
    found: dict[str, Any] = {}
    for name, value in state.items():
        if value is None or isinstance(value, Tensor | bool | int | float | str):
            found[name] = value
        else:
            tensors: list[Tensor] = []
            found[name + _NESTED] = json.dumps(to_plain(value, f"{field}.{name}", tensors))
            found |= {f"{name}{_NESTED}{number}": tensor for number, tensor in enumerate(tensors)}
    return found


def nested(entries: Mapping[str, Any]) -> dict[str, Any]:
    """The state that `flat` was given."""
    found: dict[str, Any] = {}
    for key, value in entries.items():
        name, is_nested, number = key.partition(_NESTED)
        if not is_nested:
            found[name] = value
        elif not number:
            num_tensors = sum(other.startswith(key) for other in entries) - 1
            found[name] = from_plain(json.loads(value), [entries[f"{key}{index}"] for index in range(num_tensors)])
    return found
