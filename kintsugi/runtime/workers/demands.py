"""What a step asks of a worker's layers: that their forward passes change no buffer, and how long their gradients are."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from kintsugi.core.errors import InvalidInputError

_PIECE = 2**22
"""Numbers that are squared at once."""


@contextmanager
def unchanged_buffers(name: str, module: nn.Module) -> Iterator[None]:
    """Refuse a layer whose forward pass changes its buffers: a step that is discarded could not be run again exactly.

    Raises:
        InvalidInputError: with the layer and the buffer.
    """
    before = {key: (id(value), value._version) for key, value in module.named_buffers()}
    yield
    for key, value in module.named_buffers():
        if before.get(key) != (id(value), value._version):
            raise InvalidInputError(
                f"layer {name!r} changes its buffer {key!r} in forward (as batch norm does); "
                f"replicas and repeated steps would differ: use a layer without running state",
                field="layers",
                value=key,
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
