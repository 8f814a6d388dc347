"""Digests of states by which replicas are compared: as fast as memory is read, and computed where the state is."""

import hashlib
import zlib
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from kintsugi.runtime.machine import device_name
from restorer.packing import StateEntries

_MODULUS = 2**53 - 111
"""The largest prime up to which whole numbers are exact in 64-bit floating point."""
_FACTOR = 6364136223846793005 % _MODULUS
_WORD_BYTES, _HALF_BITS = 8, 32
_SMALL_BYTES = 2**16


def entries_digest(entries: StateEntries) -> int:
    """Of tensors and plain values, whatever order they come in."""
    values = [entries[place] for place in sorted(entries)]
    plain = [zlib.crc32(repr(value).encode()) for value in values if not isinstance(value, Tensor)]
    return _folded([digest_of(value for value in values if isinstance(value, Tensor)), *plain])


def digest_of(tensors: Iterable[Tensor]) -> int:
    """Of all bits of some tensors, below 2^53: for what differs by chance, not on purpose. Computed where they are.

    One bit that is another always changes it. Words of eight bytes are added up, at the rate of the memory; small tensors are laid
    one behind the other for that, since to begin a sum takes longer than to add them up.
    """
    rows = [tensor.detach().reshape(-1).view(torch.uint8) for tensor in tensors]
    where = next((row.device for row in rows if row.device.type != "cpu"), torch.device("cpu"))
    small = [row.to(where) for row in rows if row.numel() <= _SMALL_BYTES]
    sums = [total for row in rows if row.numel() > _SMALL_BYTES for total in _sums(row)]
    if small:
        sums.append(_ordered_sum(torch.cat(small)))
    return _folded(half for total in _on_host(sums, where) for half in _halves(total))


def device_kind(device: torch.device) -> int:
    """A number, below 2^53, for devices on which the same arithmetic gives the same bits.

    Products and sums on processors are cut into as many parts as there are threads, and into such as suit the model.
    """
    found = [torch.__version__, device.type, device_name(str(device))]
    if device.type == "cpu":
        found += [torch.backends.cpu.get_cpu_capability(), str(torch.get_num_threads())]
    return int(hashlib.sha256(" ".join(found).encode()).hexdigest(), 16) % _MODULUS


def _folded(numbers: Iterable[int]) -> int:
    digest = 0
    for number in numbers:
        digest = (digest * _FACTOR + number) % _MODULUS
    return digest


def _halves(total: int) -> tuple[int, int]:
    return (total >> _HALF_BITS) % (1 << _HALF_BITS), total % (1 << _HALF_BITS)


def _sums(row: Tensor) -> tuple[Tensor, Tensor]:
    """Of the words that a row of bytes consists of, and of the bytes behind the last whole one."""
    if row.storage_offset() % _WORD_BYTES:
        row = row.clone()
    whole = row.numel() // _WORD_BYTES * _WORD_BYTES
    return row[:whole].view(torch.int64).sum(), row[whole:].sum(dtype=torch.int64)


def _ordered_sum(row: Tensor) -> Tensor:
    """Of the words that a row of bytes fills, each times an odd number of its own: their order counts."""
    words = torch.nn.functional.pad(row, (0, -row.numel() % _WORD_BYTES)).view(torch.int64)
    return (words * torch.arange(1, 2 * words.numel() + 1, 2, device=row.device)).sum()


def _on_host(sums: Sequence[Tensor], device: torch.device) -> list[int]:
    """Whole numbers; the device is waited for once, whatever it has of them."""
    return torch.stack([total.to(device) for total in sums]).tolist() if sums else []
