"""Chunks of state, each with its checksum.

What one tensor in host memory holds is sealed where it lies; other chunks are made in a few buffers. From CUDA devices one is read
ahead, on a stream of its own, while the one before it is sealed and sent.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
import xxhash
from torch import Tensor

from restorer.buffers import BufferRing
from restorer.packing import PackedState

Chunk = tuple[PackedState, int, int]
"""State, first byte and the one after the last."""


def checksum(content: Tensor) -> int:
    """63 bits of XXH3 over bytes in host memory: it finds damage at several times the rate of a CRC-32, and no malice either."""
    return xxhash.xxh3_64_intdigest(content.numpy().data) >> 1


@dataclass(frozen=True, slots=True)
class Sealed:
    """A chunk in host memory and its seal."""

    content: Tensor
    """Shape [bytes], uint8."""
    seal: Tensor
    """Shape [1], int64: the content's checksum."""

    def is_whole(self) -> bool:
        """Whether the content is what was sealed."""
        return checksum(self.content) == self.seal.item()


@dataclass(frozen=True, slots=True)
class _Reading:
    """A chunk that is being copied to host memory."""

    content: Tensor
    is_read: torch.cuda.Event | None
    """Null where it is there already."""

    def sealed(self) -> Sealed:
        if self.is_read is not None:
            self.is_read.synchronize()
        return Sealed(self.content, torch.tensor([checksum(self.content)]))


class Sealer:
    """Reads chunks and seals them. One thread's."""

    def __init__(self, device: torch.device, num_held: int) -> None:
        """Buffers come with the first chunks.

        Args:
            device: that the state lies on; chunks from a CUDA device pass through pinned memory.
            num_held: chunks that the caller may still use when it asks for the next one.
        """
        self._device = device
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)
            self._stream.wait_stream(torch.cuda.current_stream(device))
        self._num_ahead = 0 if self._stream is None else 1
        self._buffers = BufferRing(num_held + self._num_ahead + 1, is_pinned=device.type == "cuda")

    def sealed(self, chunks: Iterable[Chunk]) -> Iterator[Sealed]:
        """The chunks, in order. Each may be overwritten once `num_held` later ones were asked for."""
        readings: deque[_Reading] = deque()
        for chunk in chunks:
            readings.append(self._read(*chunk))
            if len(readings) > self._num_ahead:
                yield readings.popleft().sealed()
        for reading in readings:
            yield reading.sealed()

    def _read(self, state: PackedState, begin: int, end: int) -> _Reading:
        if (content := state.in_place(begin, end)) is not None:
            return _Reading(content, None)
        content = self._buffers.next(end - begin)
        if self._stream is None:
            state.read(begin, content)
            return _Reading(content, None)
        with torch.cuda.stream(self._stream):
            state.read(begin, content, is_awaited=False)
        return _Reading(content, self._stream.record_event())
