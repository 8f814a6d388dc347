"""State of one kind of one layer as a range of bytes: read and written piece by piece, bit for bit, without a copy of the whole."""

import json
from collections.abc import Iterator, Sequence
from itertools import accumulate
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

HOST = torch.device("cpu")
HUGE_BYTES = 4 * 2**20
"""From here on numpy asks the system for huge pages; torch never does."""

StateEntries = dict[tuple[str, str], Any]
"""State of one kind of one layer: (owner, key) -> tensor or plain number. The owner is a parameter or buffer name."""


class PackedState:
    """Entries seen as a header and one range of bytes: their tensors, one after the other."""

    def __init__(self, entries: StateEntries) -> None:
        """Tensors stay where they are; those that do not lie there as they are, one number after the other, are copied."""
        self.entries = entries
        self.header = json.dumps([_described(owner, key, value) for (owner, key), value in entries.items()]).encode()
        self._flats = [_flat(value) for value in entries.values() if isinstance(value, Tensor)]
        self._ends = list(accumulate(len(flat) for flat in self._flats))
        self.num_bytes = self._ends[-1] if self._ends else 0

    @classmethod
    def blank(cls, header: bytes, device: torch.device = HOST) -> "PackedState":
        """Entries as a header describes them, to be written.

        Args:
            header: of the state.
            device: for its tensors; single numbers stay in host memory, from where those who take them put them where they belong.
        """
        entries: StateEntries = {}
        for owner, key, dtype_name, content in json.loads(header):
            is_tensor = dtype_name is not None
            entries[owner, key] = _memory(content, getattr(torch, dtype_name), device) if is_tensor else content
        return cls(entries)

    def read(self, begin: int, into: Tensor, *, is_awaited: bool = True) -> None:
        """Copy the bytes from `begin` on into a flat byte tensor in host memory.

        Args:
            begin: first byte.
            into: takes them.
            is_awaited: whether they are there on return; else pinned memory has them once the current CUDA stream has come here.
        """
        for flat, piece in self._pieces(begin, into):
            piece.copy_(flat, non_blocking=not is_awaited)

    def in_place(self, begin: int, end: int) -> Tensor | None:
        """A range as it lies in host memory, where one tensor holds all of it there."""
        for flat, stop in zip(self._flats, self._ends, strict=True):
            start = stop - len(flat)
            if start <= begin and end <= stop and flat.device.type == "cpu":
                return flat[begin - start : end - start]
        return None

    def write(self, begin: int, chunk: Tensor) -> None:
        """Overwrite the bytes from `begin` on."""
        for flat, piece in self._pieces(begin, chunk):
            flat.copy_(piece)

    def _pieces(self, begin: int, chunk: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """The parts of the tensors that a chunk covers, each with its part of the chunk."""
        end = begin + len(chunk)
        for flat, stop in zip(self._flats, self._ends, strict=True):
            start = stop - len(flat)
            low, high = max(begin, start), min(end, stop)
            if low < high:
                yield flat[low - start : high - start], chunk[low - begin : high - begin]


def pack(entries: StateEntries) -> tuple[bytes, Tensor]:
    """Entries as a header and one flat byte tensor of its own; bit for bit, in their own types."""
    packed = PackedState(entries)
    payload = torch.empty(packed.num_bytes, dtype=torch.uint8)
    packed.read(0, payload)
    return packed.header, payload


def unpack(header: bytes, payload: Tensor) -> StateEntries:
    """Entries from header and payload; tensors are copies, free of the payload's alignment."""
    packed = PackedState.blank(header)
    packed.write(0, payload)
    return packed.entries


def contiguous(tensor: Tensor) -> Tensor:
    """The tensor, or a copy, whose numbers lie in memory one after the other, as they are.

    Of some views torch only notes that they are the conjugate, or the negative, of what lies there.
    """
    return tensor.detach().contiguous().resolve_conj().resolve_neg()


def type_name(dtype: torch.dtype) -> str:
    """As torch has it, without the module: `float32`."""
    return str(dtype).removeprefix("torch.")


def _described(owner: str, key: str, value: Any) -> Sequence[Any]:
    if isinstance(value, Tensor):
        return owner, key, type_name(value.dtype), list(value.shape)
    return owner, key, None, value


def _flat(value: Tensor) -> Tensor:
    return contiguous(value).reshape(-1).view(torch.uint8)


def _memory(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A tensor to be written; a large one in huge pages, which are there several times sooner than single ones."""
    num_bytes = prod(shape) * dtype.itemsize
    if device.type == "cpu" and num_bytes >= HUGE_BYTES:
        return torch.from_numpy(np.empty(num_bytes, dtype=np.uint8)).view(dtype).view(tuple(shape))
    return torch.empty(tuple(shape), dtype=dtype, device=device if shape else HOST)
