"""Digests of states by which replicas are compared: as fast as memory is read, and computed where the state is."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence

import torch
import xxhash
from torch import Tensor

from kintsugi.runtime.machine import device_name
from restorer.packing import StateEntries, contiguous

_BITS = 52
"""Of a digest: whole numbers below 2^53 are exact in 64-bit floating point."""
_WORD_BYTES, _CHUNK_WORDS = 4, 2**21
_SMALL_BYTES = 2**16
_MIXED, _MIXED_AGAIN = 0x1E3779B97F4A7C15, 0x3F58476D1CE4E5B9


def entries_digest(entries: StateEntries) -> int:
    """Of tensors and plain values, whatever order they come in; of these as they travel: numpy's numbers arrive as Python's."""
    places = sorted(entries)
    plain = [[*place, entries[place]] for place in places if not isinstance(entries[place], Tensor)]
    tensors = (entries[place] for place in places if isinstance(entries[place], Tensor))
    return digest_of(tensors, json.dumps(plain).encode())


def digest_of(tensors: Iterable[Tensor], header: bytes = b"") -> int:
    """Of all bits of some tensors in their order, and of a header, below 2^52: for what differs by chance, not on purpose.

    In the host's memory it is XXH3's, at the rate of the memory. On a device, which is waited for once, all words are added up,
    each times a number of its place's own: another digest than that of the same bits in the host's memory.
    """
    found = xxhash.xxh3_64(header)
    there: list[Tensor] = []
    for tensor in tensors:
        row = contiguous(tensor).reshape(-1).view(torch.uint8)
        if row.device.type == "cpu":
            found.update(row.numpy().data)
        else:
            there.append(row)
    if there:
        found.update(torch.stack(list(_device_sums(there))).cpu().numpy().data)
    return found.intdigest() >> 64 - _BITS


def device_kind(device: torch.device) -> int:
    """A number, below 2^52, for devices on which the same arithmetic gives the same bits.

    Products and sums on processors are cut into as many parts as there are threads, and into such as suit the model.
    """
    found = [torch.__version__, device.type, device_name(str(device))]
    if device.type == "cpu":
        found += [torch.backends.cpu.get_cpu_capability(), str(torch.get_num_threads())]
    return int(hashlib.sha256(" ".join(found).encode()).hexdigest()[: _BITS // 4], 16)


def _device_sums(rows: Sequence[Tensor]) -> Iterator[Tensor]:
    """Of rows of bytes on one device; small ones are laid one behind the other: to begin a sum takes longer than to add them up."""
    small = [_filled(row) for row in rows if row.numel() <= _SMALL_BYTES]
    large = [_filled(row) for row in rows if row.numel() > _SMALL_BYTES]
    filled = [torch.cat(small), *large] if small else large
    longest = max(row.numel() for row in filled) // _WORD_BYTES
    weights = _weights(min(longest, _CHUNK_WORDS), rows[0].device)
    for row in filled:
        for words in row.view(torch.int32).split(_CHUNK_WORDS):
            yield words.long().mul_(weights[: len(words)]).sum()


def _filled(row: Tensor) -> Tensor:
    """A row that begins and ends with a word; the same row where it does."""
    if row.storage_offset() % _WORD_BYTES:
        row = row.clone()
    missing = -row.numel() % _WORD_BYTES
    return torch.nn.functional.pad(row, (0, missing)) if missing else row


def _weights(count: int, device: torch.device) -> Tensor:
    """Odd numbers below 2^31: no bit of a word times one is lost in a sum of 64, and what follows a pattern does not cancel."""
    mixed = torch.arange(1, count + 1, device=device) * _MIXED
    mixed ^= mixed >> 32
    mixed *= _MIXED_AGAIN
    return mixed >> 33 & 0x7FFFFFFF | 1
