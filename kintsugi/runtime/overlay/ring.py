"""Weighted mean of all workers' vectors over a ring: every segment goes round once to be added up, and once more as the mean.

Segment k starts at worker k; worker k - 1 adds last, divides, and its very bytes go round, so that all replicas get the same bits.
What the header carries goes round with the first chunk of each segment: nobody needs a pass of its own for it.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from kintsugi.runtime.overlay.exchange import Exchange
from kintsugi.runtime.overlay.messages import Message
from kintsugi.runtime.overlay.pieces import Pieces
from kintsugi.runtime.overlay.reduction import (
    Header,
    Reduced,
    Vector,
    added,
    as_bytes,
    merged,
    required_header_of,
    slices,
    vector_of,
)

_SUM, _MEAN = "sum", "mean"


class RingReduction:
    """One worker's part in one pass. Runs in the thread that calls `run`."""

    def __init__(
        self,
        exchange: Exchange,
        worker: str,
        order: Sequence[str],
        *,
        header: Header,
        own: Vector | None,
        result: Vector,
        chunk_bytes: int,
    ) -> None:
        """Prepare the pass.

        Args:
            exchange: of the pass.
            worker: this one.
            order: of the ring.
            header: what it says.
            own: what it adds, weighted already; none where it adds nothing.
            result: takes the mean; as long as `own`.
            chunk_bytes: size of the pieces.
        """
        self._exchange = exchange
        self._size, self._index = len(order), order.index(worker)
        self._next = order[(self._index + 1) % len(order)]
        self._before = order[self._index - 1]
        self._own_header, self._own, self._result = header, own, result
        self._segments = _segments(result, self._size, chunk_bytes)
        self._header: Header | None = None
        self._totals: dict[int, Header | None] = {}
        self._num_left = sum(len(chunks) for chunks in self._segments)
        self._is_empty = False
        self._ended = (self._index + 1) % self._size  # the segment whose sum ends here: its mean does not come by
        self._pieces = Pieces(
            {
                (self._before, kind, segment): len(chunks)
                for segment, chunks in enumerate(self._segments)
                for kind, absent in ((_SUM, self._index), (_MEAN, self._ended))
                if segment != absent
            }
        )

    def run(self) -> Reduced:
        """Take part until the whole mean is here and was passed on.

        Raises:
            CalledOffError: the reductions restart.
            LostLinkError: a link that is needed is gone.
            UnavailableError: nothing moved for too long.
            UnfitMessageError: a neighbour sent what does not belong to the pass.
        """
        for chunk in range(len(self._segments[self._index])):
            self._send(_SUM, self._index, chunk, self._own_part(self._index, chunk), self._own_header)
        while self._num_left:
            worker, message = self._exchange.receive()
            segment, chunk = self._pieces.take(worker, message)
            header = None if chunk else required_header_of(worker, message)
            part = self._part(segment, chunk, message)
            if message.kind == _SUM:
                self._add(segment, chunk, part, header)
            else:
                self._keep(segment, chunk, part, header)
        assert self._header is not None
        return Reduced(header=self._header, vector=None if self._is_empty else self._result)

    def _add(self, segment: int, chunk: int, part: Vector | None, header: Header | None) -> None:
        """Add this worker's part to a sum that comes by; the last one makes the mean of it."""
        total = added([part, self._own_part(segment, chunk)])
        if chunk == 0:
            self._totals[segment] = merged([header, self._own_header])
        header = self._totals[segment]
        if segment != self._ended:
            self._send(_SUM, segment, chunk, total, header)
            return
        assert header is not None
        if total is not None:
            total = np.divide(total, total.dtype.type(header.total_weight))
        self._keep(segment, chunk, total, header)

    def _keep(self, segment: int, chunk: int, mean: Vector | None, header: Header | None) -> None:
        """Take a part of the mean, and pass it on unless the next worker made it."""
        self._num_left -= 1
        self._header = header or self._header
        if mean is None:
            self._is_empty = True
        else:
            self._result[self._segments[segment][chunk]] = mean
        if (self._index + 2) % self._size != segment:
            self._send(_MEAN, segment, chunk, mean, header)

    def _send(self, kind: str, segment: int, chunk: int, part: Vector | None, header: Header | None) -> None:
        fields: dict[str, Any] = {"chunk": (segment, chunk)}
        if chunk == 0 and header is not None:
            fields["header"] = header.as_fields()
        if part is None:
            fields["is_empty"] = True
        self._exchange.send(self._next, kind, fields, as_bytes(part))

    def _own_part(self, segment: int, chunk: int) -> Vector | None:
        return None if self._own is None else self._own[self._segments[segment][chunk]]

    def _part(self, segment: int, chunk: int, message: Message) -> Vector | None:
        if message.fields.get("is_empty"):
            return None
        return vector_of(message, self._before, self._segments[segment][chunk], self._result.dtype)


def _segments(result: Vector, size: int, chunk_bytes: int) -> list[list[slice]]:
    """One segment for each worker, cut into chunks; each has at least one, if an empty one."""
    bounds = [index * len(result) // size for index in range(size + 1)]
    return [
        [slice(low + piece.start, low + piece.stop) for piece in slices(high - low, chunk_bytes // result.itemsize)]
        for low, high in pairwise(bounds)
    ]
