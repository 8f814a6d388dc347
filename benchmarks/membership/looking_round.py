"""What members of a model do while nothing is decided, or nobody mends a loss: they see who of the others lives or is further."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from benchmarks.membership.draft import Draft
from benchmarks.membership.members import Event
from benchmarks.membership.settling import Settling
from benchmarks.membership.world import CRASHED, World, links, pair
from kintsugi.runtime.ring.state import State


@dataclass(slots=True, kw_only=True)
class LookingRound(Settling):
    """The questions of members that wait, and what comes of them."""

    def inquiries(self, world: World, asks: Callable[[State], bool]) -> Iterator[tuple[Event, World]]:
        """Members that cannot decide find out who has ended, greet the others, and look at what the lease holds."""
        for member in range(len(self.names)):
            state = self.state(world, member)
            if state is None or state.promised is None or not asks(state):
                continue
            for name in sorted((state.lost | state.excluded) - state.dead):
                yield from self._inquire(world, member, self.names.index(name))
            agreement = max(world.leased, key=self.generation, default=-1)
            if agreement >= 0 and self.is_news(agreement, world.states[member]):
                for outcome in self.reactions(world, member, ("decided", agreement)):
                    yield self.applied(Draft(world), member, outcome, ("look up", self.names[member], agreement))

    def _inquire(self, world: World, member: int, other: int) -> Iterator[tuple[Event, World]]:
        if world.states[other] == CRASHED:
            for outcome in self.reactions(world, member, ("lost", other, True)):
                yield self.applied(Draft(world), member, outcome, ("refused", self.names[member], self.names[other]))
            return
        if not world.cut & pair(member, other):
            yield from self._greeted(world, member, other)

    def _greeted(self, world: World, member: int, other: int) -> Iterator[tuple[Event, World]]:
        """A member hears of the generation of another one that is further."""
        theirs = self.state(world, other)
        if theirs is not None and self.is_news(known := self.agreements.number(theirs.agreement), world.states[member]):
            for outcome in self.reactions(world, member, ("decided", known)):
                yield self.applied(Draft(world), member, outcome, ("greet", self.names[member], self.names[other]))

    def takings_back(self, world: World) -> Iterator[tuple[Event, World]]:
        """Members that wait for a decision find out who of those whom they gave up lives."""
        for member in range(len(self.names)):
            state = self.state(world, member)
            if state is None or state.promised is None:
                continue
            for name in sorted(state.missing):
                if name not in state.lost and self._is_given_up(world, name):
                    continue  # with whoever gave it up all would come to the same again, under a higher ballot
                other = self.names.index(name)
                theirs = self.state(world, other)
                if theirs is not None and theirs.agreement == state.agreement and not world.cut & pair(member, other):
                    yield from self._found(world, member, other)

    def _is_given_up(self, world: World, name: str) -> bool:
        """Whether a member that lives has lost sight of another one, and leaves it out of any membership that comes by."""
        return any(name in state.lost for state in self.living(world) if not state.is_left_out)

    def greetings(self, world: World) -> Iterator[tuple[Event, World]]:
        """Members with a connection to one that left them behind: it is a new connection, on which both say where they are."""
        for one, two in links(world.connected):
            for member, other in ((one, two), (two, one)):
                state, theirs = self.state(world, member), self.state(world, other)
                if state is not None and theirs is not None and state.member not in theirs.agreement.members:
                    yield from self._greeted(world, member, other)

    def _found(self, world: World, member: int, other: int) -> Iterator[tuple[Event, World]]:
        """A member that was given up answers over a new connection."""
        for outcome in self.reactions(world, member, ("found", other)):
            draft = Draft(world)
            draft.connect(member, other)
            yield self.applied(draft, member, outcome, ("found", self.names[member], self.names[other]))

    def reminders(self, world: World) -> Iterator[tuple[Event, World]]:
        """Members that know of a loss which nobody mends begin to mend it."""
        for member in range(len(self.names)):
            state = self.state(world, member)
            if state is None or state.is_stopped or not state.lost:
                continue
            lost = self.names.index(min(state.lost))
            for outcome in self.reactions(world, member, ("reminded", lost)):
                yield self.applied(Draft(world), member, outcome, ("reminded", self.names[member], self.names[lost]))
