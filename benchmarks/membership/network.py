"""The world around the members of a ring in a model: links, crashes, freezes, cuts and the lease, and all that can happen next."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

from benchmarks.membership.draft import Draft
from benchmarks.membership.looking_round import LookingRound
from benchmarks.membership.members import Event
from benchmarks.membership.world import ANYBODY, AWAITED, World, link, links, links_to, pair, reversed_links
from kintsugi.runtime.ring.messages import Agreement
from kintsugi.runtime.ring.state import State


@dataclass(slots=True, kw_only=True)
class Network(LookingRound):
    """A ring of members and everything that can happen to it."""

    can_freeze: bool = True
    can_cut: bool = True
    can_break: bool = False
    """Whether a connection may be lost, and what is under way on it, between members that could connect again."""
    can_miss: bool = False
    """Whether what is under way between members may be lost with a connection while they have another one, as both notice."""
    can_split: bool = False
    """Whether the ring may be cut in two parts at once, between each and its other neighbours."""
    hurries: bool = False
    """Whether members look round and take back whom they gave up at any moment, not only where nothing else can happen any more."""

    def initial(self, faults: int) -> World:
        """All train in generation 0; neighbours are connected."""
        agreement = Agreement(0, self.names[: self.num_members])
        states = tuple(self.states.number(State(name, agreement, 0)) for name in agreement.members)
        states += (AWAITED,) * self.can_join
        ring = {pair(member, (member + 1) % self.num_members) for member in range(self.num_members)} if self.num_members > 1 else ()
        return World(states=states, connected=sum(ring), faults=faults)

    def next(self, world: World) -> Iterator[tuple[Event, World]]:
        """Everything that can happen, with the worlds that it leads to."""
        is_quiet = True
        for step in self._progress(world):
            is_quiet = False
            yield step
        if is_quiet:
            for step in self._services(world, are_contested=False):
                is_quiet = False
                yield step
        if is_quiet or self.hurries:
            yield from self.inquiries(world, lambda state: state.held is None)
            yield from self.takings_back(world)
            yield from self.greetings(world)
            yield from self.reminders(world)
        yield from self._faults(world)

    def _progress(self, world: World) -> Iterator[tuple[Event, World]]:
        yield from self._deliveries(world)
        yield from self._beginnings(world)
        yield from self._joinings(world)
        for member, other in links(world.broken):
            if world.states[member] == AWAITED:
                continue
            if world.connected & pair(member, other):
                yield from self._replaced(world, member, other)
            else:
                yield from self._lost(Draft(world), member, other, "lost")
        yield from self._services(world, are_contested=True)
        yield from self._answers(world)
        if any(number >= 0 and self.known(number).is_holding for number in world.states):
            yield from self.inquiries(world, lambda state: state.held is not None)

    def _deliveries(self, world: World) -> Iterator[tuple[Event, World]]:
        for (sender, receiver), queue in world.queues:
            if world.states[receiver] == AWAITED:
                continue
            for outcome in self.reactions(world, receiver, ("received", sender, queue[0])):
                draft = Draft(world)
                draft.read(sender, receiver)
                yield self.applied(draft, receiver, outcome, ("deliver", self.names[sender], self.names[receiver], queue[0]))

    def _lost(self, draft: Draft, member: int, other: int, how: str) -> Iterator[tuple[Event, World]]:
        """A member gives up another one; what it had not read is lost."""
        draft.disconnect(member, other)
        draft.broken &= ~link(member, other)
        draft.silent &= ~link(member, other)
        draft.queues.pop((other, member), None)
        before = draft.world()
        for outcome in self.reactions(before, member, ("lost", other, False)):
            yield self.applied(Draft(before), member, outcome, (how, self.names[member], self.names[other]))

    def _replaced(self, world: World, member: int, other: int) -> Iterator[tuple[Event, World]]:
        """A member hears that a connection is gone to one that it has another one with by now."""
        for outcome in self.reactions(world, member, ("missed", other)):
            draft = Draft(world)
            draft.broken &= ~link(member, other)
            yield self.applied(draft, member, outcome, ("replaced", self.names[member], self.names[other]))

    def _missed(self, draft: Draft, member: int, other: int) -> Iterator[tuple[Event, World]]:
        """What was under way between two members is lost, and they stay connected."""
        for way in ((member, other), (other, member)):
            draft.queues.pop(way, None)
        before, event = draft.world(), ("miss", self.names[member], self.names[other])
        for outcome in self.reactions(before, member, ("missed", other)):
            _, noticed = self.applied(Draft(before), member, outcome, event)
            for answer in self.reactions(noticed, other, ("missed", member)):
                yield self.applied(Draft(noticed), other, answer, event)

    def _services(self, world: World, *, are_contested: bool) -> Iterator[tuple[Event, World]]:
        """The lease serves who waits for it, and hears of what it is only to keep, where that may make a difference or late.

        Nothing else depends on when that happens, so whatever can happen after it can happen before it, and come to the same.
        """
        for member, agreement in world.asked:
            if are_contested == (member != ANYBODY or self._is_contested(world, agreement)):
                is_news = member != ANYBODY and self.is_news(agreement, world.states[member])
                draft = Draft(world)
                draft.serve(member, agreement, self.generation, is_news=is_news)
                yield ("serve", "anybody" if member == ANYBODY else self.names[member], agreement), self.settled(draft)

    def _answers(self, world: World) -> Iterator[tuple[Event, World]]:
        for member, agreement in world.answered:
            for outcome in self.reactions(world, member, ("decided", agreement)):
                draft = Draft(world)
                draft.answered = tuple(found for found in draft.answered if found != (member, agreement))
                yield self.applied(draft, member, outcome, ("answer", self.names[member], agreement))

    def _is_contested(self, world: World, agreement: int) -> bool:
        """Whether it makes a difference when the lease hears of an agreement: to who asks for another one, or may look it up."""
        generation = self.generation(agreement)
        if (
            self.hurries
            or not self.reduces
            or any(other != agreement and self.generation(other) == generation for _, other in world.asked)
        ):
            return True
        return any(number >= 0 and self.known(number).is_holding and self.is_news(agreement, number) for number in world.states)

    def _joinings(self, world: World) -> Iterator[tuple[Event, World]]:
        """A worker that no member knows of asks one of them to be taken in; not again and again, or generations never end."""
        joiner = self.num_members
        if not self.can_join or world.states[joiner] != AWAITED:
            return
        living = self.living(world)
        if any(state.agreement.generation > 1 for state in living):
            return
        if any(self.names[joiner] in (*state.agreement.members, *(known.worker for known in state.joining)) for state in living):
            return
        for member in range(self.num_members):
            if (state := self.state(world, member)) is not None and not state.is_left_out:
                for outcome in self.reactions(world, member, ("joining", joiner)):
                    yield self.applied(Draft(world), member, outcome, ("joining", self.names[member], self.names[joiner]))

    def _beginnings(self, world: World) -> Iterator[tuple[Event, World]]:
        """A worker is told of a generation that it is a member of, perhaps when that is over."""
        joiner = self.num_members
        if not self.can_join or world.states[joiner] != AWAITED:
            return
        for number in sorted({*self.agreed(world)}):
            agreement = self.agreements[number]
            if self.names[joiner] in agreement.members:
                draft = Draft(world)
                draft.states[joiner] = self.states.number(State(self.names[joiner], agreement, agreement.committed_step))
                draft.install(joiner, self.agreement_members(number))
                yield ("begin", self.names[joiner]), self.settled(draft)

    def _splits(self, world: World) -> Iterator[tuple[Event, World]]:
        """Nothing passes any more between the members from one on and before another one, and the rest."""
        for begin, end in combinations(range(len(self.names)), 2):
            draft = Draft(world)
            draft.split(range(begin, end))
            yield ("split", *self.names[begin:end]), self.settled(draft)

    def _faults(self, world: World) -> Iterator[tuple[Event, World]]:
        """Crashes, cuts and silences, each together with the first member that notices: nothing can differ before."""
        if self.can_split and world.faults:
            yield from self._splits(world)
        if not world.faults and not world.silent:
            return
        for member, other in links(world.connected | reversed_links(world.connected)):
            if world.states[member] == AWAITED:
                continue
            if world.silent & link(member, other):
                yield from self._lost(Draft(world), member, other, "silent")
            if world.faults:
                yield from self._noticed(world, member, other)

    def _noticed(self, world: World, member: int, other: int) -> Iterator[tuple[Event, World]]:
        """Whatever may happen to a member or to the connection to it, noticed at the connection's other end."""
        if self.can_crash:
            draft = Draft(world)
            draft.crash(other)
            yield from self._lost(draft, member, other, "crash")
        if any((state := self.state(world, end)) is not None and state.is_left_out for end in (member, other)):
            return  # nobody listens to a member that is left out
        if self.can_freeze and not world.silent & links_to((other,)):
            draft = Draft(world)
            draft.freeze(other)
            yield from self._lost(draft, member, other, "freeze")
        if self.can_break:
            draft = Draft(world)
            draft.faults -= 1
            yield from self._lost(draft, member, other, "break")
        if self.can_miss and self.state(world, other) is not None and world.states[other] != AWAITED:
            draft = Draft(world)
            draft.faults -= 1
            yield from self._missed(draft, member, other)
        if self.can_cut:
            draft = Draft(world)
            draft.cut_off(member, other)
            yield from self._lost(draft, member, other, "cut")
