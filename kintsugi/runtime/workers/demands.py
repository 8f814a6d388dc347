"""What a step asks of layers: that forward passes change neither parameters nor buffers; how long gradients are, and are to be."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from kintsugi.core.errors import InvalidInputError

_PIECE = 2**22
"""Numbers that the norm of is taken at once."""
_CAUSES = {
    "parameter": ("an embedding with max_norm does", "a layer that leaves its parameters to the optimizer"),
    "buffer": ("batch norm does", "a layer without running state"),
}
"""By what a layer changes: what usually does so, and what does not."""


class Watch:
    """Over one layer's parameters and buffers, which its forward pass may not change.

    Its modules are found once: to walk through them takes as long as to start some of the layer's operations.
    """

    def __init__(self, name: str, module: nn.Module) -> None:
        self._name = name
        self.module = module
        parts = list(module.named_modules())
        self._homes = [part._parameters for _, part in parts] + [part._buffers for _, part in parts]
        self._places = [("parameter", path) for path, _ in parts] + [("buffer", path) for path, _ in parts]
        self._was_compared = False
        """Whether the numbers in the buffers were, once: torch counts no writes through `.data`."""

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Refuse a forward pass that changes them: replicas would differ, and repeated steps as well.

        Raises:
            InvalidInputError: with the layer and the parameter or buffer.
        """
        before, contents = self._versions(), [] if self._was_compared else self._contents()
        self._was_compared = True
        yield
        if (after := self._versions()) != before:
            index, key, *_ = min(set(before) ^ set(after))
            raise self._refused(*self._places[index], key)
        for index, key, content in contents:
            if not torch.equal(_bits(self._homes[index][key]), content):
                raise self._refused(*self._places[index], key)

    def _contents(self) -> list[tuple[int, str, Tensor]]:
        """Where each buffer is, and a copy of its bits."""
        homes = zip(self._places, enumerate(self._homes), strict=True)
        buffers = [(place, key, it) for (what, _), (place, home) in homes if what == "buffer" for key, it in home.items()]
        return [(place, key, _bits(it).clone()) for place, key, it in buffers if it is not None]

    def _versions(self) -> list[tuple[int, str, int, int]]:
        """Where each tensor is, and what changes whenever it is written or replaced."""
        homes = enumerate(self._homes)
        return [(place, key, id(it), it._version) for place, home in homes for key, it in home.items() if it is not None]

    def _refused(self, what: str, path: str, key: str) -> InvalidInputError:
        name, (cause, instead) = f"{path}.{key}" if path else key, _CAUSES[what]
        message = (
            f"layer {self._name!r} changes its {what} {name!r} in forward (as {cause}); replicas and repeated steps would differ"
        )
        return InvalidInputError(f"{message}: use {instead}", field="layers", value=name)


def _bits(tensor: Tensor | None) -> Tensor:
    """All bytes of a tensor: equal where it is, also where that is no number. Shape [bytes]."""
    assert tensor is not None
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def squared_norm(gradients: Iterable[Tensor | None]) -> Tensor:
    """Sum of squares in 64 bits, where the gradients are; zero in host memory where there are none."""
    found = norms([gradient for gradient in gradients if gradient is not None])
    return torch.stack(found).square().sum() if found else torch.zeros((), dtype=torch.float64)


def norms(gradients: Iterable[Tensor]) -> list[Tensor]:
    """2-norms in 64 bits, where the gradients are, of all that hold a number: many at once, and several of a wide layer's.

    For 64 bits of each number of such a one a processor would take several times its memory, so they are taken piece by piece.
    """
    present = [gradient for gradient in gradients if gradient.numel()]
    found = _norms_at_once([gradient for gradient in present if gradient.numel() <= _PIECE])
    for wide in (gradient for gradient in present if gradient.numel() > _PIECE):
        found += _norms_at_once(list(wide.reshape(-1).split(_PIECE)))
    return found


def _norms_at_once(tensors: list[Tensor]) -> list[Tensor]:
    return list(torch._foreach_norm(tensors, dtype=torch.float64)) if tensors else []


def scale(gradients: list[Tensor], factor: float) -> None:
    """Multiply all of them in place, at once."""
    if gradients:
        torch._foreach_mul_(gradients, factor)
