"""A worker's model as its peers see it: a copy that is averaged with theirs while the worker computes on its own.

The pairwise primitives of Spotnik's section 3.3. The gradient that is being computed belongs to an older model than the one
it is applied to, as in AD-PSGD (Lian et al., Asynchronous Decentralized Parallel SGD, algorithm 1): never to one that
changed in the middle of a pass.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from kintsugi.runtime.synchronization.exchange import Kind
from kintsugi.runtime.synchronization.transport import Transport, bytes_of


class ModelCache:
    """A flat copy of a model, shared by threads."""

    def __init__(self, model: Tensor) -> None:
        """`model`: flat, in host memory; becomes the cache's own."""
        self._model = model
        self._lock = threading.Lock()
        self.num_averaged = 0
        """Averages with other workers that this model took part in."""

    @contextmanager
    def held(self) -> Iterator[Tensor]:
        """The model itself, which nobody else touches in the meantime."""
        with self._lock:
            yield self._model

    def answer(self, kind: Kind, content: memoryview) -> memoryview | None:
        """Answer a peer's question: its model for this one, averaged; or this one alone."""
        if kind is Kind.READ:
            with self._lock:
                return bytes_of(self._model.clone())
        if kind is not Kind.AVERAGE or len(content) != self._model.nbytes:
            return None
        theirs = torch.frombuffer(content, dtype=self._model.dtype)
        with self._lock:
            before = self._model.clone()
            self._model.lerp_(theirs, 0.5)
            self.num_averaged += 1
        return bytes_of(before)

    def average_with(self, transport: Transport, rank: int) -> bool:
        """Both models become their mean; what either side adds in the meantime is kept. Waits for the peer, bounded.

        Nobody holds a lock while waiting, so there is no deadlock: the peer takes the mean at once, and this side adds half
        of the difference to what its model is by then. The sum of both models stays what it was.

        Returns:
            Whether the peer took part.

        Raises:
            CommunicationError: the peer is gone or too slow. It may have taken the mean; then the sum has changed, by less
                than one exchange moves.
        """
        with self._lock:
            before = self._model.clone()
        theirs = torch.empty_like(before)
        if not transport.ask(rank, Kind.AVERAGE, before, theirs):
            return False
        with self._lock:
            self._model.add_(theirs.sub_(before), alpha=0.5)
            self.num_averaged += 1
        return True


def cached_model(transport: Transport, rank: int, like: Tensor) -> Tensor | None:
    """Another worker's cached model, flat as `like`; None where it caches none.

    Raises:
        CommunicationError: the peer is gone or too slow.
    """
    theirs = torch.empty_like(like)
    return theirs if transport.ask(rank, Kind.READ, like[:0], theirs) else None
