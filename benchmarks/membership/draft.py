"""What changes in a world: messages, connections, faults and the lease."""

from collections.abc import Callable, Collection, Iterable
from itertools import product

from benchmarks.membership.world import CRASHED, PAUSE, Pair, World, link, links_from, links_of, pair


def _sorted(things: Iterable[Pair]) -> tuple[Pair, ...]:
    return tuple(sorted(set(things)))


class Draft:
    """A world that is being changed."""

    __slots__ = ("answered", "asked", "broken", "connected", "cut", "faults", "leased", "past", "queues", "silent", "states")

    def __init__(self, world: World) -> None:
        states, self.faults, self.connected, self.silent, self.broken, self.cut, queues = world[:7]
        self.past, self.leased, self.asked, self.answered = world[7:]
        self.states, self.queues = list(states), dict(queues)

    def world(self) -> World:
        """As it is now."""
        return World(
            tuple(self.states),
            self.faults,
            self.connected,
            self.silent,
            self.broken,
            self.cut,
            tuple(sorted([item for item in self.queues.items() if item[1]])),
            self.past,
            self.leased,
            self.asked,
            self.answered,
        )

    def send(self, sender: int, receiver: int, message: int) -> None:
        """Put a message on its way, over a new connection where there is none and none is known to be lost."""
        if not self.broken & link(sender, receiver) and self.connect(sender, receiver):
            self.queues[sender, receiver] = (*self.queues.get((sender, receiver), ()), message)

    def connect(self, member: int, other: int) -> bool:
        """Whether there is a connection now; where there cannot be one the member will hear of it."""
        between = pair(member, other)
        if self.states[other] == CRASHED or self.cut & between:
            self.broken |= link(member, other)
            return False
        self.connected |= between  # the other one may still be to hear that an earlier connection is gone
        return True

    def disconnect(self, member: int, other: int) -> None:
        """The member closes its connection to another one, who will hear of it."""
        between = pair(member, other)
        if self.connected & between:
            self.connected &= ~between
            if self.states[other] != CRASHED:
                self.broken |= link(other, member)

    def crash(self, member: int) -> None:
        """A process ends; what it sent may still be read."""
        self.faults -= 1
        for other in range(len(self.states)):
            self.disconnect(member, other)
            self.queues.pop((other, member), None)
        self.states[member] = CRASHED
        self.silent &= ~links_of(member)
        self.broken &= ~links_from(member)
        self.answered = tuple(found for found in self.answered if found[0] != member)
        self.past = tuple(found for found in self.past if found[0] != member)

    def freeze(self, member: int) -> None:
        """A process stands still, and goes on some time; whoever listens to it may give it up, once."""
        self.faults -= 1
        for other, state in enumerate(self.states):
            if other != member and state != CRASHED:
                self.silent |= link(other, member)
        for (sender, receiver), queue in self.queues.items():
            if sender == member and queue:
                self.queues[sender, receiver] = (*queue, PAUSE)

    def read(self, sender: int, receiver: int) -> None:
        """The receiver takes the first message out; what was sent after a pause is a sign of life."""
        queue = self.queues[sender, receiver][1:]
        if PAUSE not in queue:
            self.silent &= ~link(receiver, sender)
        self.queues[sender, receiver] = queue[1:] if queue and queue[0] == PAUSE else queue

    def cut_off(self, one: int, other: int) -> None:
        """Nothing passes between two members any more; both will hear of it if they were connected."""
        self.faults -= 1
        self.cut |= pair(one, other)
        self.disconnect(one, other)

    def split(self, half: Collection[int]) -> None:
        """Nothing passes between some and the others any more; who was connected will hear of it."""
        self.faults -= 1
        others = [member for member in range(len(self.states)) if member not in half]
        for one, other in product(sorted(half), others):
            if self.connected & pair(one, other):
                self.connected &= ~pair(one, other)
                self.broken |= link(one, other) | link(other, one)
            self.cut |= pair(one, other)

    def ask(self, member: int, agreement: int) -> None:
        """A member asks the lease for an agreement."""
        self.asked = _sorted((*self.asked, (member, agreement)))

    def serve(self, member: int, agreement: int, generation: Callable[[int], int], *, is_news: bool) -> None:
        """The lease keeps what it was asked for, unless it holds a decision already; that one is the answer, if it is news."""
        self.asked = tuple(found for found in self.asked if found != (member, agreement))
        held = [other for other in self.leased if generation(other) == generation(agreement)]
        if not held:
            self.leased = tuple(sorted((*self.leased, agreement)))
        if is_news:
            self.answered = _sorted((*self.answered, (member, held[0] if held else agreement)))

    def remember(self, member: int, agreement: int) -> None:
        """A member goes on from an agreement."""
        self.past = _sorted((*self.past, (member, agreement)))

    def install(self, member: int, members: Collection[int]) -> None:
        """A member goes on in a generation: it is connected to its neighbours there and leaves the others."""
        for other in range(len(self.states)):
            if other not in members:
                self.disconnect(member, other)
        if member in members and len(members) > 1:
            order = sorted(members)
            index = order.index(member)
            for neighbour in (order[index - 1], order[(index + 1) % len(order)]):
                if not self.broken & link(member, neighbour):
                    self.connect(member, neighbour)
