"""One moment of the model, small enough to be remembered, and what changes in it."""

import marshal
from collections.abc import Collection, Hashable
from dataclasses import dataclass, field
from functools import cache
from hashlib import blake2b
from itertools import product
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T", bound=Hashable)

CRASHED = -1
"""In the place of the state of a member whose process has ended."""

AWAITED = -2
"""In the place of the state of a worker that may join, and has not been told yet that it is a member."""

PAUSE = -1
"""Among messages under way: their sender froze after what stands before."""

ANYBODY = -1
"""In the place of a member where it makes no difference which one it is."""

_MOST = 8
"""Members of a model."""

_DIGEST_BYTES = 16

Pair = tuple[int, int]
"""Two members, or a member and an agreement, by their numbers."""

Queues = tuple[tuple[Pair, tuple[int, ...]], ...]
"""Messages under way from whom to whom, in order; by link."""


def link(one: int, other: int) -> int:
    """From one member to another one, as the bit of a set of links."""
    return 1 << (one * _MOST + other)


def pair(one: int, other: int) -> int:
    """Between two members, in whatever order they are named: the link from the lower number."""
    return link(one, other) if one < other else link(other, one)


@cache
def links(bits: int) -> tuple[Pair, ...]:
    """Whom the links of a set join, in order."""
    return tuple((one, other) for one, other in product(range(_MOST), repeat=2) if bits & link(one, other))


@cache
def reversed_links(bits: int) -> int:
    """The other direction of each."""
    return sum(link(other, one) for one, other in links(bits))


@cache
def links_from(member: int) -> int:
    """All that begin at a member."""
    return sum(link(member, other) for other in range(_MOST))


@cache
def links_of(member: int) -> int:
    """All that begin or end at a member."""
    return links_from(member) | sum(link(other, member) for other in range(_MOST) if other != member)


@cache
def links_to(members: Collection[int]) -> int:
    """All that end at one of some members."""
    return sum(link(one, other) for one, other in product(range(_MOST), members))


@dataclass(slots=True)
class Interned(Generic[T]):
    """Things by number, each kept once."""

    _numbers: dict[T, int] = field(default_factory=dict)
    _things: list[T] = field(default_factory=list)

    def number(self, thing: T) -> int:
        """Its number, a new one if it was not seen before."""
        if thing not in self._numbers:
            self._numbers[thing] = len(self._things)
            self._things.append(thing)
        return self._numbers[thing]

    def __getitem__(self, number: int) -> T:
        return self._things[number]

    def __len__(self) -> int:
        return len(self._things)


class World(NamedTuple):
    """Everything that can tell two moments apart. Members are numbers, in ring order; sets of links are bits."""

    states: tuple[int, ...]
    """Of each member and of who may join; `CRASHED` once its process has ended."""
    faults: int
    """How many may still happen."""
    connected: int
    """Members with a connection between them, as pairs."""
    silent: int = 0
    """Who may still give up whom, who froze and may have come back since."""
    broken: int = 0
    """Who is still to hear that the connection to whom is gone."""
    cut: int = 0
    """Between whom nothing can pass, as pairs."""
    queues: Queues = ()
    past: tuple[Pair, ...] = ()
    """Which agreements living members went on from, as far as another one may still be made for the same generation."""
    leased: tuple[int, ...] = ()
    """Agreements that the lease holds, at most one of each generation."""
    asked: tuple[Pair, ...] = ()
    """Who asked the lease for which agreement, and was not served yet."""
    answered: tuple[Pair, ...] = ()
    """Who is still to hear which agreement the lease holds."""

    def digest(self) -> bytes:
        """What stands for it among those visited: that any two of ten millions share one has a probability below 1e-24."""
        return blake2b(marshal.dumps(tuple(self), 2), digest_size=_DIGEST_BYTES).digest()
