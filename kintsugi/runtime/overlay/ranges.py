"""Sets of bytes as ascending, disjoint, half-open ranges."""

from collections.abc import Iterable, Mapping
from typing import Any

ByteRange = tuple[int, int]
Ranges = tuple[ByteRange, ...]


def ranges_of(fields: Mapping[str, Any]) -> Ranges:
    """Those in a message's fields."""
    return tuple((begin, end) for begin, end in fields["ranges"])


def united(*sets: Iterable[ByteRange]) -> Ranges:
    """The bytes of any of them."""
    merged: list[ByteRange] = []
    for begin, end in sorted(one for several in sets for one in several if one[0] < one[1]):
        if merged and begin <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        else:
            merged.append((begin, end))
    return tuple(merged)


def without(ranges: Iterable[ByteRange], others: Iterable[ByteRange]) -> Ranges:
    """The bytes of `ranges` that are none of `others`."""
    left = list(united(ranges))
    for low, high in others:
        left = [part for begin, end in left for part in ((begin, min(end, low)), (max(begin, high), end)) if part[0] < part[1]]
    return tuple(left)


def within(ranges: Iterable[ByteRange], others: Iterable[ByteRange]) -> Ranges:
    """The bytes of both."""
    kept = united(others)
    return united((max(begin, low), min(end, high)) for begin, end in united(ranges) for low, high in kept)


def length(ranges: Iterable[ByteRange]) -> int:
    """How many bytes they are."""
    return sum(end - begin for begin, end in united(ranges))


def stretches(ranges: Iterable[ByteRange], num_bytes: int) -> list[ByteRange]:
    """The ranges cut into pieces of at most `num_bytes`."""
    return [(at, min(at + num_bytes, end)) for begin, end in ranges for at in range(begin, end, num_bytes)]


def tail(ranges: Iterable[ByteRange], num_bytes: int) -> Ranges:
    """The last `num_bytes` of them, or all."""
    taken: list[ByteRange] = []
    for begin, end in reversed(united(ranges)):
        start = max(begin, end - num_bytes)
        if start < end:
            taken.append((start, end))
            num_bytes -= end - start
    return united(taken)
