"""What comes out of a layer, told by shapes alone: from tensors without values, or with values where its forward needs them."""

import re
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from kintsugi.core.errors import InvalidInputError, KintsugiError
from kintsugi.runtime.brought import built

Tensors = tuple[Tensor, ...]
Fields = Mapping[str, Tensor]
Forward = Callable[[nn.Module, Tensors, Fields], Tensors]
"""A module's outputs from activations and fields of the micro-batch."""

_META = torch.device("meta")
_OF_META = re.compile(r"(?<![a-z])meta(?![a-z])", re.IGNORECASE)
"""In what torch says about an operation that needs values where there are shapes alone."""


def followed(
    name: str,
    build: Callable[[], object],
    forward: Forward,
    activations: Tensors,
    fields: Fields,
    *,
    dtype: torch.dtype,
    device: torch.device,
) -> tuple[nn.Module, Tensors]:
    """A layer's module and what its forward pass returns, both on the meta device.

    Nothing is computed, and no memory taken, but for a layer that is made of values, or whose forward looks at them
    (`.item()`, boolean masks as indices), fails without, or computes under autocast, which goes by devices: such a one is
    computed once, and its memory given back. It takes random numbers for activations (ones where these are no real numbers).

    Args:
        name: of the layer.
        build: makes its module.
        forward: its pass.
        activations: that it takes, on the meta device.
        fields: of the micro-batch that it takes, in host memory.
        dtype: of its parameters.
        device: that it is to compute on.

    Raises:
        InvalidInputError: it is no layer to be trained, or changes what it takes in place.
    """
    module = built_without_values(name, build).to(device=_META, dtype=dtype)
    shapes = {field: value.to(_META) for field, value in fields.items()}
    seen, needs_values = _Autocast(device.type), False
    try:
        with _META, seen:
            outputs = _passed(name, forward, module, activations, shapes)
    except KintsugiError:
        raise
    except Exception:  # it may come of the values that are missing; what does not comes again
        needs_values = True
    if not needs_values and not seen.is_on:
        return module, outputs
    module = built(name, build).to(device=device, dtype=dtype)
    taken = tuple(_made_up(tensor, device) for tensor in activations)
    values = {field: value.to(device) for field, value in fields.items()}
    try:
        outputs = _passed(name, forward, module, taken, values)
    except KintsugiError:
        raise
    except Exception as error:
        told = ", ".join(str(tuple(tensor.shape)) for tensor in (*taken, *values.values()))
        error.add_note(f"in the forward pass of layer {name!r}, which takes {told or 'nothing'}")
        raise
    return module.to(_META), tuple(one.detach().to(_META).requires_grad_(one.requires_grad).clone() for one in outputs)


def _passed(name: str, forward: Forward, module: nn.Module, activations: Tensors, fields: Fields) -> Tensors:
    """What a module returns.

    Raises:
        InvalidInputError: it changes what it takes in place.
    """
    taken = (*activations, *fields.values())
    versions = [tensor._version for tensor in taken]
    with _uncompiled():
        outputs = forward(module, activations, fields)
    if [tensor._version for tensor in taken] != versions:
        raise InvalidInputError(
            f"layer {name!r} changes what it takes in place, which other layers or its stage's backward pass still need: "
            f"say inplace=False (of nn.ReLU and the like), or compute on a copy",
            field="layers",
            value=name,
        )
    return outputs


def built_without_values(name: str, build: Callable[[], object]) -> nn.Module:
    """The module of a layer on the meta device; in host memory where making it asks for values, as some parametrizations do.

    Raises:
        InvalidInputError: as `built`.
    """
    try:
        with _META:
            return built(name, build)
    except (RuntimeError, TypeError) as error:
        if _OF_META.search(str(error)) is None:
            raise
    return built(name, build)


class _Autocast(TorchFunctionMode):
    """Sees whether anything is computed under autocast, which tensors of the meta device are not subject to."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self._device = device
        self.is_on = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Do what was to be done."""
        self.is_on |= torch.is_autocast_enabled(self._device)
        return func(*args, **(kwargs or {}))


def _made_up(tensor: Tensor, device: torch.device) -> Tensor:
    """Values of a tensor's shape and type, which are the result of something, as activations are."""
    real = tensor.dtype.is_floating_point or tensor.dtype.is_complex
    make = torch.randn if real else torch.ones
    return make(tensor.shape, dtype=tensor.dtype, device=device).requires_grad_(tensor.requires_grad).clone()


def _uncompiled() -> AbstractContextManager[object]:
    """What is compiled runs as it was written, for compilers want values; where the compiler was not loaded nothing is compiled."""
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()
