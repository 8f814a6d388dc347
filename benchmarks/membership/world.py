"""One moment of the model, small enough to be remembered, and what changes in it."""

from array import array
from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass, field
from itertools import product
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)

CRASHED = -1
"""In the place of the state of a member whose process has ended."""

AWAITED = -2
"""In the place of the state of a worker that may join, and has not been told yet that it is a member."""

PAUSE = -1
"""Among messages under way: their sender froze after what stands before."""

Pair = tuple[int, int]
"""Two members, or a member and an agreement, by their numbers."""


def pair(one: int, other: int) -> Pair:
    """Two members, the lower number first."""
    return (one, other) if one < other else (other, one)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Everything that can tell two moments apart. Members are numbers, in ring order."""

    states: tuple[int, ...]
    """Of each member and of who may join; `CRASHED` once its process has ended."""
    connected: frozenset[Pair]
    """Members with a connection between them, the lower number first."""
    installed: frozenset[Pair]
    """Which agreements each living member was in."""
    faults: int
    """How many may still happen."""
    silent: frozenset[Pair] = frozenset()
    """Who may still give up whom, who froze and may have come back since."""
    broken: frozenset[Pair] = frozenset()
    """Who is still to hear that the connection to whom is gone."""
    cut: frozenset[Pair] = frozenset()
    """Between whom nothing can pass, the lower number first."""
    queues: tuple[tuple[Pair, tuple[int, ...]], ...] = ()
    """Messages under way from whom to whom, in order; by link."""
    leased: frozenset[int] = frozenset()
    """Agreements that the lease holds, at most one of each generation."""
    asked: frozenset[Pair] = frozenset()
    """Who asked the lease for which agreement, and was not served yet."""
    answered: frozenset[Pair] = frozenset()
    """Who is still to hear which agreement the lease holds."""

    def packed(self) -> bytes:
        """A short text that only equal worlds have."""
        numbers = array("h", [*self.states, self.faults])
        for pairs in (self.connected, self.installed, self.broken, self.cut, self.silent, self.asked, self.answered):
            numbers.append(-2)
            for found in sorted(pairs):
                numbers.extend(found)
        numbers.append(-2)
        numbers.extend(sorted(self.leased))
        for link, queue in self.queues:
            numbers.append(-2)
            numbers.extend((*link, *queue))
        return numbers.tobytes()


class Draft:
    """A world that is being changed."""

    __slots__ = ("answered", "asked", "broken", "connected", "cut", "faults", "installed", "leased", "queues", "silent", "states")

    def __init__(self, world: World) -> None:
        self.states = list(world.states)
        self.faults = world.faults
        self.connected, self.installed = set(world.connected), set(world.installed)
        self.silent, self.broken, self.cut = set(world.silent), set(world.broken), set(world.cut)
        self.leased, self.asked, self.answered = set(world.leased), set(world.asked), set(world.answered)
        self.queues = dict(world.queues)

    def world(self) -> World:
        """As it is now."""
        return World(
            states=tuple(self.states),
            faults=self.faults,
            connected=frozenset(self.connected),
            installed=frozenset(self.installed),
            silent=frozenset(self.silent),
            broken=frozenset(self.broken),
            cut=frozenset(self.cut),
            leased=frozenset(self.leased),
            asked=frozenset(self.asked),
            answered=frozenset(self.answered),
            queues=tuple(sorted((link, queue) for link, queue in self.queues.items() if queue)),
        )

    def send(self, sender: int, receiver: int, message: int) -> None:
        """Put a message on its way, over a new connection where there is none and none is known to be lost."""
        if (sender, receiver) in self.broken:
            return
        if self.connect(sender, receiver):
            self.queues[sender, receiver] = (*self.queues.get((sender, receiver), ()), message)

    def connect(self, member: int, other: int) -> bool:
        """Whether there is a connection now; where there cannot be one the member will hear of it."""
        if self.states[other] == CRASHED or pair(member, other) in self.cut:
            self.broken.add((member, other))
            return False
        if pair(member, other) not in self.connected:
            self.connected.add(pair(member, other))
            self.broken.discard((other, member))  # who has not heard yet that an earlier connection is gone has a new one
        return True

    def disconnect(self, member: int, other: int) -> None:
        """The member closes its connection to another one, who will hear of it."""
        if pair(member, other) in self.connected:
            self.connected.remove(pair(member, other))
            if self.states[other] != CRASHED:
                self.broken.add((other, member))

    def crash(self, member: int) -> None:
        """A process ends; what it sent may still be read."""
        self.faults -= 1
        for other in range(len(self.states)):
            self.disconnect(member, other)
            self.queues.pop((other, member), None)
        self.states[member] = CRASHED
        self.silent = {link for link in self.silent if member not in link}
        self.broken = {(who, of) for who, of in self.broken if who != member}
        self.answered = {(who, what) for who, what in self.answered if who != member}
        self.installed = {(who, what) for who, what in self.installed if who != member}

    def freeze(self, member: int) -> None:
        """A process stands still, and goes on some time; whoever listens to it may give it up, once."""
        self.faults -= 1
        self.silent |= {(other, member) for other, state in enumerate(self.states) if other != member and state != CRASHED}
        for (sender, receiver), queue in self.queues.items():
            if sender == member and queue:
                self.queues[sender, receiver] = (*queue, PAUSE)

    def read(self, sender: int, receiver: int) -> None:
        """The receiver takes the first message out; what was sent after a pause is a sign of life."""
        queue = self.queues[sender, receiver][1:]
        if PAUSE not in queue:
            self.silent.discard((receiver, sender))
        self.queues[sender, receiver] = queue[1:] if queue and queue[0] == PAUSE else queue

    def cut_off(self, one: int, other: int) -> None:
        """Nothing passes between two members any more; both will hear of it if they were connected."""
        self.faults -= 1
        self.cut.add(pair(one, other))
        self.disconnect(one, other)
        self.broken |= {(one, other)} if (other, one) in self.broken else set()

    def split(self, half: Collection[int]) -> None:
        """Nothing passes between some and the others any more; who was connected will hear of it."""
        self.faults -= 1
        others = [member for member in range(len(self.states)) if member not in half]
        for one, other in product(sorted(half), others):
            if pair(one, other) in self.connected:
                self.connected.remove(pair(one, other))
                self.broken |= {(one, other), (other, one)}
            self.cut.add(pair(one, other))

    def serve(self, member: int, agreement: int, generation: Callable[[int], int], *, is_news: bool) -> None:
        """The lease keeps what it was asked for, unless it holds a decision already; that one is the answer, if it is news."""
        self.asked.remove((member, agreement))
        held = [other for other in self.leased if generation(other) == generation(agreement)]
        if not held:
            self.leased.add(agreement)
        if self.states[member] != CRASHED and is_news:
            self.answered.add((member, held[0] if held else agreement))

    def install(self, member: int, agreement: int, members: Collection[int]) -> None:
        """A member goes on in a generation: it is connected to its neighbours there and leaves the others."""
        self.installed.add((member, agreement))
        for other in range(len(self.states)):
            if other not in members:
                self.disconnect(member, other)
        if member in members and len(members) > 1:
            order = sorted(members)
            index = order.index(member)
            for neighbour in (order[index - 1], order[(index + 1) % len(order)]):
                if (member, neighbour) not in self.broken:
                    self.connect(member, neighbour)
