"""Values that a user gives a job or an optimizer, checked before anything starts: torch would train on with most wrong ones."""

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from kintsugi.core.errors import InvalidInputError


def gradient_limit(value: float | None) -> None:
    """Require what the gradient's norm is to be clipped to.

    Raises:
        InvalidInputError: it is no number above 0.
    """
    if value is None:
        return
    try:
        is_limit = not math.isnan(value) and value > 0
    except TypeError:
        is_limit = False
    if not is_limit:
        raise InvalidInputError(
            f"must be a number above 0, not {value!r}; leave it out (None) to clip nothing",
            field="max_grad_norm",
            value=repr(value),
        )


def optimizer_of_model(own: Iterable[Tensor], optimizer: torch.optim.Optimizer) -> None:
    """Require that an optimizer updates nothing but what is a model's own: a loss may have parameters, too.

    Raises:
        InvalidInputError: it updates something else, which neither goes on in a later life nor is compared with the others'.
    """
    known = {id(tensor) for tensor in own}
    for index, group in enumerate(optimizer.param_groups):
        for place, parameter in enumerate(group["params"]):
            if id(parameter) not in known:
                raise InvalidInputError(
                    f"is no parameter of the model, but a tensor of shape {tuple(parameter.shape)} that would stay behind where "
                    "the model goes on: make one module of all that is trained, the loss's parameters for example, and give that",
                    field=f"optimizer.param_groups.{index}.params.{place}",
                )


def real_type(value: torch.dtype) -> None:
    """Require a type of numbers that can be trained.

    Raises:
        InvalidInputError: it is none of torch's, or holds whole or complex numbers.
    """
    if not isinstance(value, torch.dtype) or not value.is_floating_point:
        raise InvalidInputError(
            f"must be one of torch's types of real numbers, such as torch.float32, not {value!r}", field="dtype", value=str(value)
        )


def function(field: str, value: object, *, hint: str = "") -> None:
    """Require something that can be called; `hint` says how it is given where something else is given easily.

    Raises:
        InvalidInputError: it cannot.
    """
    if not callable(value):
        way_out = f": {hint}" if hint else ""
        raise InvalidInputError(f"must be a function, not {repr(value)[:200]}{way_out}", field=field, value=repr(value)[:200])
