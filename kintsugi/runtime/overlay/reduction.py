"""Weighted mean of all workers' vectors over a tree, cut into chunks that follow each other up and down.

Sums go up, the root divides, and its very bytes come down, so that all replicas get the same bits. The order of the additions
is that of the tree: own values first, then the children's in the order of the policy.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from kintsugi.runtime.overlay.exchange import Exchange, UnfitMessageError
from kintsugi.runtime.overlay.messages import NO_BYTES, Message
from kintsugi.runtime.overlay.pieces import Pieces
from kintsugi.runtime.overlay.tree import Position

Vector = npt.NDArray[Any]
"""One dimension, in the type in which sums are made."""

UP, DOWN = "up", "down"


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What the first chunk carries along, merged on the way up and agreed at the root."""

    weights: Mapping[str, float] = field(default_factory=dict)
    """Of the workers that add something."""
    ready: Mapping[str, Any] | None = None
    """The newest overlay that everybody so far could go over to, as a document; none where somebody has no newer one, or not
    of the same scheduler: generations of two do not compare."""
    is_final: bool = False
    """Whether the vector is a mean already, which is only passed on."""
    attempt: int = 0
    """In which it was summed."""
    states: Mapping[str, tuple[int, int, int, int]] = field(default_factory=dict)
    """What workers say of the state that they add to: `comparing.Said`."""

    def as_fields(self) -> dict[str, Any]:
        """As it travels."""
        return {
            "weights": dict(self.weights),
            "ready": self.ready,
            "is_final": self.is_final,
            "attempt": self.attempt,
            "states": dict(self.states),
        }

    @property
    def total_weight(self) -> float:
        """The same sum in whatever order the weights came together."""
        return math.fsum(self.weights.values())

    @property
    def is_sound(self) -> bool:
        """Whether each field is of its kind: it may be what a neighbour sent."""
        ready = self.ready
        return (
            _are(self.weights, lambda weight: type(weight) in (int, float) and 0.0 < weight < math.inf)
            and (ready is None or (isinstance(ready, dict) and type(ready.get("generation")) is type(ready.get("term", 0)) is int))
            and isinstance(self.is_final, bool)
            and type(self.attempt) is int
            and _are(self.states, lambda said: isinstance(said, list | tuple) and [type(one) for one in said] == [int] * 4)
        )


def _are(told: object, is_sound: Callable[[Any], bool]) -> bool:
    return isinstance(told, dict) and all(is_sound(one) for one in told.values())


def merged(headers: Iterable[Header | None]) -> Header | None:
    """What several headers say together; those that say nothing do not count."""
    present = [header for header in headers if header is not None]
    if not present:
        return None
    documents = [header.ready for header in present]
    known = [document for document in documents if document is not None]
    is_common = len(known) == len(documents) and len({document.get("term") for document in known}) == 1
    oldest = min(known, key=lambda document: int(document["generation"])) if is_common else None
    weights = {worker: weight for header in present for worker, weight in header.weights.items()}
    return Header(
        weights=dict(sorted(weights.items())),
        ready=oldest,
        is_final=any(one.is_final for one in present),
        attempt=max(one.attempt for one in present),
        states={worker: told for header in present for worker, told in header.states.items()},
    )


def header_of(worker: str, message: Message) -> Header | None:
    """The header in a message of a neighbour.

    Raises:
        UnfitMessageError: it is none.
    """
    told = message.fields.get("header")
    if told is None:
        return None
    try:
        header = Header(**told)
    except TypeError:
        header = None
    if header is None or not header.is_sound:
        raise UnfitMessageError(worker, "sent a header that is none")
    return header


def required_header_of(worker: str, message: Message) -> Header:
    """The header in a message that has to have one.

    Raises:
        UnfitMessageError: it has none.
    """
    if (header := header_of(worker, message)) is None:
        raise UnfitMessageError(worker, "sent the beginning of a vector without its header")
    return header


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduced:
    """What a pass came to."""

    header: Header
    vector: Vector | None
    """The weighted mean; none where nobody added anything."""


class TreeReduction:
    """One worker's part in one pass. Runs in the thread that calls `run`."""

    def __init__(
        self,
        exchange: Exchange,
        place: Position,
        *,
        header: Header | None,
        own: Vector | None,
        result: Vector,
        chunk_bytes: int,
    ) -> None:
        """Prepare the pass.

        Args:
            exchange: of the pass.
            place: of this worker in the tree.
            header: what it says; none where it only passes on.
            own: what it adds, weighted already; none where it adds nothing.
            result: takes the mean; as long as `own`.
            chunk_bytes: size of the pieces.
        """
        self._exchange, self._place, self._own, self._result = exchange, place, own, result
        self._own_header = header
        self._header: Header | None = None
        self._slices = slices(len(result), chunk_bytes // result.itemsize)
        self._arrived: dict[int, dict[str, Vector | None]] = {}
        self._empty: set[str] = set()
        self._headers: dict[str, Header | None] = {}
        self._num_summed = self._num_final = 0
        self._is_empty = False
        above = () if place.parent is None else ((place.parent, DOWN),)
        self._pieces = Pieces(dict.fromkeys((*above, *((child, UP) for child in place.children)), len(self._slices)))

    def run(self) -> Reduced:
        """Take part until the whole mean is here and was passed on.

        Raises:
            CalledOffError: the reductions restart.
            LostLinkError: a link that is needed is gone.
            UnavailableError: nothing moved for too long.
            UnfitMessageError: a neighbour sent what does not belong to the pass.
        """
        self._sum_what_is_complete()
        while not self._is_over():
            worker, message = self._exchange.receive()
            if message.kind == DOWN:
                self._take_down(worker, message)
            else:
                self._take_up(worker, message)
                self._sum_what_is_complete()
        assert self._header is not None
        return Reduced(header=self._header, vector=None if self._is_empty else self._result)

    def _is_over(self) -> bool:
        return self._is_empty or self._num_final == len(self._slices)

    def _take_up(self, worker: str, message: Message) -> None:
        (index,) = self._pieces.take(worker, message)
        if index == 0:
            self._headers[worker] = header_of(worker, message)
        if self._pieces.take_empty(worker, message):
            self._empty.add(worker)
        else:
            self._arrived.setdefault(index, {})[worker] = vector_of(message, worker, self._slices[index], self._result.dtype)

    def _sum_what_is_complete(self) -> None:
        """Add chunks of which all children's parts are here, in order, and pass them on."""
        while self._num_summed < len(self._slices) and not self._is_empty and self._is_complete(self._num_summed):
            index = self._num_summed
            self._num_summed += 1
            parts = self._arrived.pop(index, {})
            own = None if self._own is None else self._own[self._slices[index]]
            total = added([own, *(parts.get(child) for child in self._place.children)])
            if index == 0:
                self._header = merged([self._own_header, *(self._headers[child] for child in self._place.children)])
            if self._place.parent is not None:
                self._send_up(index, total)
            else:
                self._finish(index, total)
            if total is None:
                self._num_summed = len(self._slices)

    def _is_complete(self, index: int) -> bool:
        arrived = self._arrived.get(index, {})
        return all(child in arrived or child in self._empty for child in self._place.children)

    def _send_up(self, index: int, total: Vector | None) -> None:
        assert self._place.parent is not None
        fields: dict[str, Any] = {"chunk": index}
        if index == 0:
            fields["header"] = None if self._header is None else self._header.as_fields()
        if total is None:
            fields["is_empty"] = True
        self._exchange.send(self._place.parent, UP, fields, as_bytes(total))

    def _finish(self, index: int, total: Vector | None) -> None:
        """At the root: make the mean of a chunk and send it down."""
        self._header = self._header or Header()
        if total is None:
            self._is_empty = True
        elif self._header.is_final:
            self._result[self._slices[index]] = total
        else:
            np.divide(total, total.dtype.type(self._header.total_weight), out=self._result[self._slices[index]])
        self._send_down(index)

    def _take_down(self, worker: str, message: Message) -> None:
        (index,) = self._pieces.take(worker, message)
        if index == 0:
            self._header = required_header_of(worker, message)
        if self._pieces.take_empty(worker, message):
            self._is_empty = True
        else:
            where = self._slices[index]
            self._result[where] = vector_of(message, worker, where, self._result.dtype)
        self._send_down(index)

    def _send_down(self, index: int) -> None:
        self._num_final += 1
        fields: dict[str, Any] = {"chunk": index}
        if index == 0:
            assert self._header is not None
            fields["header"] = self._header.as_fields()
        if self._is_empty:
            fields["is_empty"] = True
        payload = as_bytes(None if self._is_empty else self._result[self._slices[index]])
        for child in self._place.children:
            self._exchange.send(child, DOWN, fields, payload)


def slices(num_elements: int, chunk_elements: int) -> list[slice]:
    """A vector's pieces; at least one, if an empty one."""
    length = max(1, chunk_elements)
    return [slice(at, min(at + length, num_elements)) for at in range(0, max(num_elements, 1), length)]


def vector_of(message: Message, worker: str, where: slice, dtype: "np.dtype[Any]") -> Vector:
    """The part of a vector in a message.

    Raises:
        UnfitMessageError: it has another length than this worker's.
    """
    expected = (where.stop - where.start) * dtype.itemsize
    if message.num_bytes != expected:
        raise UnfitMessageError(worker, f"sent {message.num_bytes} bytes where {expected} belong; do all train the same model?")
    return np.frombuffer(message.payload, dtype=dtype)


def added(parts: Iterable[Vector | None]) -> Vector | None:
    """The sum in the order given; the part itself where there is one alone."""
    present = [part for part in parts if part is not None]
    if len(present) < 2:
        return present[0] if present else None
    total: Vector = np.add(present[0], present[1])
    for part in present[2:]:
        np.add(total, part, out=total)
    return total


def as_bytes(vector: Vector | None) -> memoryview:
    """As it travels: no copy."""
    return NO_BYTES if vector is None else vector.data.cast("B")
