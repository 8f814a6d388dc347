"""What a step asks of a worker's layers: that forward passes change neither parameters nor buffers; how long gradients are."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from kintsugi.core.errors import InvalidInputError

_PIECE = 2**22
"""Numbers that are squared at once."""


class Watch:
    """Over one layer's parameters and buffers, which its forward pass may not change.

    Parameters are found once: to walk through a layer's modules takes as long as to start some of its operations.
    """

    def __init__(self, name: str, module: nn.Module) -> None:
        self._name = name
        self.module = module
        self._places = [
            (f"{path}.{key}" if path else key, part._parameters, key)
            for path, part in module.named_modules()
            for key, parameter in part._parameters.items()
            if parameter is not None
        ]

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Refuse a forward pass that changes them: replicas would differ, and repeated steps as well.

        Raises:
            InvalidInputError: with the layer and the parameter or buffer.
        """
        parameters, buffers = self._parameter_versions(), _buffer_versions(self.module)
        yield
        if (after := _buffer_versions(self.module)) != buffers:
            key = next(key for key in after if after[key] != buffers.get(key))
            raise self._refused(f"buffer {key!r} in forward (as batch norm does)", key, "a layer without running state")
        if (now := self._parameter_versions()) != parameters:
            key = next(name for (name, _, _), old, new in zip(self._places, parameters, now, strict=True) if old != new)
            what = f"parameter {key!r} in forward (as an embedding with max_norm does)"
            raise self._refused(what, key, "a layer that leaves its parameters to the optimizer")

    def _parameter_versions(self) -> list[tuple[int, int]]:
        return [_version(home[key]) for _, home, key in self._places]

    def _refused(self, what: str, key: str, instead: str) -> InvalidInputError:
        message = f"layer {self._name!r} changes its {what}; replicas and repeated steps would differ: use {instead}"
        return InvalidInputError(message, field="layers", value=key)


def _version(tensor: Tensor | None) -> tuple[int, int]:
    """What changes whenever a tensor is written or replaced."""
    return id(tensor), -1 if tensor is None else tensor._version


def _buffer_versions(module: nn.Module) -> dict[str, tuple[int, int]]:
    return {key: _version(value) for key, value in module.named_buffers()}


def squared_norm(gradients: Iterable[Tensor | None]) -> Tensor:
    """Sum of squares in 64 bits, where the gradients are; zero in host memory where there are none.

    Piece by piece: all numbers of a wide layer in 64 bits would take several times its memory.
    """
    squares = [
        piece.double().square().sum()
        for gradient in gradients
        if gradient is not None
        for piece in gradient.reshape(-1).split(_PIECE)
    ]
    return torch.stack(squares).sum() if squares else torch.zeros((), dtype=torch.float64)
