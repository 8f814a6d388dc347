"""What a step asks of a worker's layers: that forward passes change neither parameters nor buffers; how long gradients are."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from kintsugi.core.errors import InvalidInputError

_PIECE = 2**22
"""Numbers that are squared at once."""


@contextmanager
def unchanged_state(name: str, module: nn.Module) -> Iterator[None]:
    """Refuse a layer whose forward pass changes its parameters or buffers: replicas would differ, and repeated steps as well.

    Raises:
        InvalidInputError: with the layer and the parameter or buffer.
    """
    parameters, buffers = _versions(module.named_parameters()), _versions(module.named_buffers())
    yield
    if key := _changed(buffers, module.named_buffers()):
        raise _refused(name, key, f"its buffer {key!r} in forward (as batch norm does)", "a layer without running state")
    if key := _changed(parameters, module.named_parameters()):
        what = f"its parameter {key!r} in forward (as an embedding with max_norm does)"
        raise _refused(name, key, what, "a layer that leaves its parameters to the optimizer")


def _versions(named: Iterable[tuple[str, Tensor]]) -> dict[str, tuple[int, int]]:
    """What changes whenever a tensor is written or replaced."""
    return {key: (id(value), value._version) for key, value in named}


def _changed(before: Mapping[str, tuple[int, int]], named: Iterable[tuple[str, Tensor]]) -> str | None:
    """The first one that is not as before."""
    return next((key for key, version in _versions(named).items() if before.get(key) != version), None)


def _refused(name: str, key: str, what: str, instead: str) -> InvalidInputError:
    return InvalidInputError(
        f"layer {name!r} changes {what}; replicas and repeated steps would differ: use {instead}", field="layers", value=key
    )


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
