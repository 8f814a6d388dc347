"""Where torch's optimizers keep the state of a parameter; what arrives from elsewhere is put there before they go on from it."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from restorer.packing import HOST

_COUNTER = "step"


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
