"""Memory for vectors, used again once nothing refers to what was in it: what is to be sent over a slow link included."""

import threading
import weakref

import torch
from torch import Tensor

from kintsugi.runtime.overlay.reduction import Vector

_MOST_SPARE = 1
"""Beyond what is lent: with it a worker's gradients and the means take turns without new memory."""


class VectorPool:
    """Lends memory for vectors of one length and type. Any thread may take some; none is given back."""

    def __init__(self, num_elements: int, dtype: torch.dtype) -> None:
        """Lend vectors of so many numbers of that type."""
        self._num_elements, self._dtype = num_elements, dtype
        self._lent: list[tuple[Tensor, weakref.ref[Vector]]] = []
        self._spare: list[Tensor] = []
        self._lock = threading.Lock()

    def take(self) -> Vector:
        """A vector to be written, whose memory nobody else has while there is this array, a part of it, or bytes of a part."""
        with self._lock:
            self._collect()
            memory = self._spare.pop() if self._spare else torch.empty(self._num_elements, dtype=self._dtype)
            del self._spare[_MOST_SPARE:]
            vector: Vector = memory.numpy()
            self._lent.append((memory, weakref.ref(vector)))
            return vector

    def _collect(self) -> None:
        lent, self._lent = self._lent, []
        for memory, vector in lent:
            if vector() is None:
                self._spare.append(memory)
            else:
                self._lent.append((memory, vector))
