"""One stream of state from a source to a target: chunks with checksums, a few in flight, asked for by the target.

source                                      target
headers of all parts ------------------->   what is it?
<------------------- an order: the chunks that are missing
the chunks ----------------------------->   verified, taken in
<------------------- an order: those that arrived damaged
...
<------------------- an empty order: done
"""

import json
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from kintsugi.core.errors import CommunicationError
from restorer.buffers import BufferRing
from restorer.packing import PackedState
from restorer.parts import Part
from restorer.sealing import Sealed, Sealer, checksum
from restorer.staging import ByteRange, Staging, StateKey
from restorer.transport import HostTransport, Receiving, Sending

CHUNK_BYTES = 4 * 2**20
"""Small enough to be read and sealed, or verified and taken in, before it has left a processor's cache.

A power of two, for torch rounds pinned memory up to the next one.
"""
MOST_IN_FLIGHT = 4
"""Chunks under way in a stream. Each end holds their memory, and a source that of two more."""
MOST_REPEATS = 3
"""Orders of damaged chunks before the target gives up."""

Order = list[tuple[int, int, int]]
"""Chunks: part of the stream, first byte and the one after the last."""


@dataclass(slots=True)
class _Conversation:
    """Messages between two workers, in order; those of a stream and of the one in the other direction have tags of their own."""

    transport: HostTransport
    peer: str
    is_source: bool
    _num_sent: int = field(default=0, init=False)
    _num_received: int = field(default=0, init=False)

    def send(self, tensor: Tensor) -> Sending:
        """Start to send the next message."""
        self._num_sent += 1
        return self.transport.send(tensor, self.peer, 2 * self._num_sent + self.is_source)

    def receive(self, buffer: Tensor) -> Receiving:
        """Start to receive the next message."""
        self._num_received += 1
        return self.transport.receive_into(buffer, self.peer, 2 * self._num_received + (not self.is_source))

    def tell(self, content: Any) -> None:
        """Send something short."""
        text = torch.frombuffer(bytearray(json.dumps(content).encode()), dtype=torch.uint8)
        for sending in (self.send(torch.tensor([len(text), checksum(text)])), self.send(text)):
            sending.wait()

    def hear(self) -> Any:
        """Receive something short.

        Raises:
            CommunicationError: it arrived damaged.
        """
        size, told = self.receive(torch.empty(2, dtype=torch.int64)).wait().tolist()
        text = self.receive(torch.empty(size, dtype=torch.uint8)).wait()
        if checksum(text) != told:
            raise CommunicationError(f"a message from {self.peer} arrived damaged")
        return json.loads(text.numpy().tobytes())


def send_parts(parts: Sequence[Part], state: Sequence[PackedState], device: torch.device, transport: HostTransport) -> None:
    """Send what the target of these parts orders, until it has all.

    Args:
        parts: all from this worker to one target.
        state: of each part's layer and kind.
        device: that the state lies on.
        transport: whose waits nobody else's wait for.

    Raises:
        CommunicationError: the target is gone, or the transfer was called off.
    """
    target = _Conversation(transport, parts[0].transfer.target, is_source=True)
    target.tell([own.header.decode() for own in state])
    sealer = Sealer(device, MOST_IN_FLIGHT)
    while order := target.hear():
        in_flight: deque[Sending] = deque()
        for chunk in sealer.sealed((state[index], begin, end) for index, begin, end in order):
            while len(in_flight) >= 2 * MOST_IN_FLIGHT:
                in_flight.popleft().wait()
            in_flight += target.send(chunk.content), target.send(chunk.seal)
        for sending in in_flight:
            sending.wait()


def receive_parts(parts: Sequence[Part], staging: Staging, turn: int, transport: HostTransport) -> None:
    """Order what is missing of these parts and take it in.

    Args:
        parts: all from one source to this worker.
        staging: what arrived before, and takes in what arrives.
        turn: of the attempt.
        transport: whose waits nobody else's wait for.

    Raises:
        CommunicationError: the source is gone, the transfer was called off, or chunks keep arriving damaged.
        ReconfigurationError: the source disagrees with another one.
    """
    name = parts[0].transfer.source
    source = _Conversation(transport, name, is_source=False)
    buffers = BufferRing(MOST_IN_FLIGHT, is_pinned=staging.device.type == "cuda")
    shares: list[tuple[StateKey, slice]] = []
    for part, header in zip(parts, source.hear(), strict=True):
        key = part.transfer.layer, part.transfer.kind
        shares.append((key, part.slice_of(staging.describe(turn, key, header.encode(), name))))

    def take(index: int, begin: int, content: Tensor) -> None:
        staging.take(turn, shares[index][0], begin, content)

    for _ in range(1 + MOST_REPEATS):
        order = _missing(shares, staging)
        source.tell(order)
        if not order:
            return
        _receive(order, source, buffers, take)
    damaged = _missing(shares, staging)
    if damaged:
        layer, kind = shares[damaged[0][0]][0]
        raise CommunicationError(f"{kind.value} state of layer {layer} from {name} arrived damaged", field="transfer")
    source.tell([])


def _missing(shares: Sequence[tuple[StateKey, slice]], staging: Staging) -> Order:
    return [
        (index, *chunk)
        for index, (key, share) in enumerate(shares)
        for gap in staging.missing(key, share.start, share.stop)
        for chunk in chunks(*gap)
    ]


def chunks(begin: int, end: int) -> list[ByteRange]:
    """A range cut at multiples of the chunk size."""
    cuts = [begin, *range((begin // CHUNK_BYTES + 1) * CHUNK_BYTES, end, CHUNK_BYTES), end]
    return list(pairwise(cuts))


def _receive(order: Order, source: _Conversation, buffers: BufferRing, take: Callable[[int, int, Tensor], None]) -> None:
    """Receive the chunks of an order; those that are not damaged are taken, by part, first byte and content."""
    following = iter(order)
    in_flight: deque[tuple[tuple[int, int, int], Receiving, Receiving]] = deque()
    while True:
        while len(in_flight) < MOST_IN_FLIGHT and (chunk := next(following, None)) is not None:
            content = source.receive(buffers.next(chunk[2] - chunk[1]))
            in_flight.append((chunk, content, source.receive(torch.empty(1, dtype=torch.int64))))
        if not in_flight:
            return
        (index, begin, _), content, seal = in_flight.popleft()
        arrived = Sealed(content.wait(), seal.wait())
        if arrived.is_whole():
            take(index, begin, arrived.content)
