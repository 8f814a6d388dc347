"""A line of pieces cut into consecutive bins, without crumbs (McNaughton's wrap-around rule, 1959)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Knife:
    """What a piece costs its bin, and how small a piece may be cut."""

    alpha: float = 0.0
    beta: float = 1.0
    """Per byte."""
    least_bytes: float
    """No cut leaves less on either side; what is smaller than two of that stays whole."""


@dataclass(frozen=True, slots=True)
class Slice(Generic[T]):
    """Some bytes of an item in a bin."""

    bin: int
    item: T
    num_bytes: int


def cut(line: Sequence[tuple[T, int]], capacities: Sequence[float], knife: Knife) -> Iterator[Slice[T]]:
    """Fill bins one after the other; an item that does not fit goes on in the next one.

    Where a cut would leave a crumb the item goes whole to one side, and the next bin makes up for the difference.

    Args:
        line: items with their bytes.
        capacities: of the bins, in what a piece costs; the last bin takes what is left.
        knife: costs, and the least piece.
    """
    place, room = 0, capacities[0]
    for item, num_bytes in line:
        rest = num_bytes
        while rest:
            is_last = place == len(capacities) - 1
            part = rest if is_last else _part(rest, room, knife)
            if part:
                yield Slice(place, item, part)
                room -= knife.alpha + knife.beta * part
                rest -= part
            if rest and not is_last:
                place += 1
                room += capacities[place]


def _part(rest: int, room: float, knife: Knife) -> int:
    """How much of the `rest` bytes of an item goes into a bin with so much room."""
    if knife.beta == 0.0:
        return rest
    fitting = (room - knife.alpha) / knife.beta
    if fitting >= rest:
        return rest
    if rest < 2 * knife.least_bytes:
        return rest if 2 * fitting >= rest else 0
    if fitting > rest - knife.least_bytes / 2:
        return rest
    if fitting < knife.least_bytes / 2:
        return 0
    return round(min(max(fitting, knife.least_bytes), rest - knife.least_bytes))
