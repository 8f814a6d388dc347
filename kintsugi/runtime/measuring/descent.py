"""Which layer a backward pass is in, and when it comes to the one before."""

from collections.abc import Callable

from torch import Tensor
from torch.utils.hooks import RemovableHandle

from kintsugi.runtime.measuring.marks import Marks
from kintsugi.runtime.models import Activations

Span = tuple[int, int]
"""A first and a last mark."""


class Descent:
    """One backward pass through layers, from the last one down, all in one call of autograd as in a stage of a pipeline.

    Autograd passes what was computed last first, and so through one layer after the other: the first gradient of what a layer
    returns is there once those behind it are through.
    """

    def __init__(self, marks: Marks, num_layers: int) -> None:
        """Nothing has passed.

        Args:
            marks: are set where the pass enters a layer, and where it leaves it.
            num_layers: that it passes.
        """
        self._marks = marks
        self._spans: list[Span | None] = [None] * num_layers
        self._layer, self._entered = num_layers - 1, -1
        self._handles: list[RemovableHandle] = []

    def watch(self, index: int, outputs: Activations) -> None:
        """Notice when gradients of what a layer returned are there."""
        self._handles += [tensor.register_hook(self._noticing(index)) for tensor in outputs if tensor.requires_grad]

    def _noticing(self, index: int) -> Callable[[Tensor], None]:
        return lambda _: self._arrive(index)

    def run(self, passing: Callable[[], object]) -> list[Span | None]:
        """Do it. Where it was in each layer; None for those that it does not come to. Shape [layers]."""
        try:
            self._entered = self._marks.add()
            passing()
            self._spans[self._layer] = self._entered, self._marks.add()
        finally:
            for handle in self._handles:
                handle.remove()
        return self._spans

    def _arrive(self, index: int) -> None:
        if index < self._layer:  # it may return what it was given, or several tensors
            self._spans[self._layer] = self._entered, self._marks.add()
            self._layer, self._entered = index, self._marks.add()
