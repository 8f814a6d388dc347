"""The world around the members of a ring in a model: links, crashes, freezes, cuts and the lease, and all that can happen next."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations

from benchmarks.membership.members import Event, Members
from benchmarks.membership.world import AWAITED, CRASHED, Draft, World, pair
from kintsugi.runtime.ring.messages import Agreement
from kintsugi.runtime.ring.state import State


@dataclass(slots=True, kw_only=True)
class Network(Members):
    """A ring of members and everything that can happen to it."""

    can_crash: bool = True
    can_freeze: bool = True
    can_cut: bool = True
    can_split: bool = False
    """Whether the ring may be cut in two parts at once, between each and its other neighbours."""
    hurries: bool = False
    """Whether members look round and take back whom they gave up at any moment, not only where nothing else can happen any more."""

    def initial(self, faults: int) -> World:
        """All train in generation 0; neighbours are connected."""
        agreement = Agreement(0, self.names[: self.num_members])
        states = tuple(self.states.number(State(name, agreement, 0)) for name in agreement.members)
        states += (AWAITED,) * self.can_join
        others = range(self.num_members if self.num_members > 1 else 0)
        ring = frozenset(pair(member, (member + 1) % self.num_members) for member in others)
        installed = frozenset((member, self.agreements.number(agreement)) for member in range(self.num_members))
        return World(states=states, connected=ring, installed=installed, faults=faults)

    def next(self, world: World) -> Iterator[tuple[Event, World]]:
        """Everything that can happen, with the worlds that it leads to."""
        is_quiet = True
        for step in self._progress(world):
            is_quiet = False
            yield step
        if is_quiet or self.hurries:
            yield from self._inquiries(world, lambda state: state.held is None)
            yield from self._takings_back(world)
            yield from self._greetings(world)
            yield from self._reminders(world)
        yield from self._faults(world)

    def _progress(self, world: World) -> Iterator[tuple[Event, World]]:
        yield from self._deliveries(world)
        yield from self._beginnings(world)
        yield from self._joinings(world)
        for member, other in sorted(world.broken):
            if world.states[member] == AWAITED:
                continue
            yield from self._lost(Draft(world), member, other, "lost")
        yield from self._lease(world)
        yield from self._inquiries(world, lambda state: state.held is not None)

    def _deliveries(self, world: World) -> Iterator[tuple[Event, World]]:
        for (sender, receiver), queue in world.queues:
            if world.states[receiver] == AWAITED:
                continue
            for outcome in self.results(world.states[receiver], ("received", sender, queue[0])):
                draft = Draft(world)
                draft.read(sender, receiver)
                yield self.applied(draft, receiver, outcome, ("deliver", self.names[sender], self.names[receiver], queue[0]))

    def _lost(self, draft: Draft, member: int, other: int, how: str) -> Iterator[tuple[Event, World]]:
        """A member gives up another one; what it had not read is lost."""
        draft.disconnect(member, other)
        draft.broken.discard((member, other))
        draft.silent.discard((member, other))
        draft.queues.pop((other, member), None)
        before = draft.world()
        for outcome in self.results(before.states[member], ("lost", other, False)):
            yield self.applied(Draft(before), member, outcome, (how, self.names[member], self.names[other]))

    def _lease(self, world: World) -> Iterator[tuple[Event, World]]:
        for member, agreement in world.asked:
            state = self.state(world, member)
            is_news = state is not None and self.is_news(agreement, world.states[member])
            draft = Draft(world)
            draft.serve(member, agreement, self.generation, is_news=is_news)
            yield ("serve", self.names[member], agreement), draft.world()
        for member, agreement in world.answered:
            for outcome in self.results(world.states[member], ("decided", agreement)):
                draft = Draft(world)
                draft.answered.remove((member, agreement))
                yield self.applied(draft, member, outcome, ("answer", self.names[member], agreement))

    def _inquiries(self, world: World, asks: Callable[[State], bool]) -> Iterator[tuple[Event, World]]:
        """Members that cannot decide find out who has ended, greet the others, and look at what the lease holds."""
        for member in range(len(self.names)):
            state = self.state(world, member)
            if state is None or state.promised is None or not asks(state):
                continue
            for name in sorted((state.lost | state.excluded) - state.dead):
                yield from self._inquire(world, member, self.names.index(name))
            agreement = max(world.leased, key=self.generation, default=-1)
            if agreement >= 0 and self.is_news(agreement, world.states[member]):
                for outcome in self.results(world.states[member], ("decided", agreement)):
                    yield self.applied(Draft(world), member, outcome, ("look up", self.names[member], agreement))

    def _inquire(self, world: World, member: int, other: int) -> Iterator[tuple[Event, World]]:
        if world.states[other] == CRASHED:
            for outcome in self.results(world.states[member], ("lost", other, True)):
                yield self.applied(Draft(world), member, outcome, ("refused", self.names[member], self.names[other]))
            return
        if pair(member, other) not in world.cut:
            yield from self._greeted(world, member, other)

    def _greeted(self, world: World, member: int, other: int) -> Iterator[tuple[Event, World]]:
        """A member hears of the generation of another one that is further."""
        theirs = self.state(world, other)
        if theirs is not None and self.is_news(known := self.agreements.number(theirs.agreement), world.states[member]):
            for outcome in self.results(world.states[member], ("decided", known)):
                yield self.applied(Draft(world), member, outcome, ("greet", self.names[member], self.names[other]))

    def _takings_back(self, world: World) -> Iterator[tuple[Event, World]]:
        """Members that wait for a decision find out who of those whom they gave up lives."""
        for member in range(len(self.names)):
            state = self.state(world, member)
            if state is None or state.promised is None:
                continue
            for name in sorted(state.lost - state.dead):
                other = self.names.index(name)
                theirs = self.state(world, other)
                if theirs is not None and theirs.agreement == state.agreement and pair(member, other) not in world.cut:
                    yield from self._found(world, member, other)

    def _greetings(self, world: World) -> Iterator[tuple[Event, World]]:
        """Members with a connection to one that left them behind: it is a new connection, on which both say where they are."""
        for one, two in sorted(world.connected):
            for member, other in ((one, two), (two, one)):
                state, theirs = self.state(world, member), self.state(world, other)
                if state is not None and theirs is not None and state.member not in theirs.agreement.members:
                    yield from self._greeted(world, member, other)

    def _found(self, world: World, member: int, other: int) -> Iterator[tuple[Event, World]]:
        """A member that was given up answers over a new connection."""
        for outcome in self.results(world.states[member], ("found", other)):
            draft = Draft(world)
            draft.broken.discard((member, other))
            draft.connect(member, other)
            yield self.applied(draft, member, outcome, ("found", self.names[member], self.names[other]))

    def _reminders(self, world: World) -> Iterator[tuple[Event, World]]:
        """Members that know of a loss which nobody mends begin to mend it."""
        for member in range(len(self.names)):
            state = self.state(world, member)
            if state is None or state.is_stopped or not state.lost:
                continue
            lost = self.names.index(min(state.lost))
            for outcome in self.results(world.states[member], ("reminded", lost)):
                yield self.applied(Draft(world), member, outcome, ("reminded", self.names[member], self.names[lost]))

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
                for outcome in self.results(world.states[member], ("joining", joiner)):
                    yield self.applied(Draft(world), member, outcome, ("joining", self.names[member], self.names[joiner]))

    def _beginnings(self, world: World) -> Iterator[tuple[Event, World]]:
        """A worker is told of a generation that it is a member of, perhaps when that is over."""
        joiner = self.num_members
        if not self.can_join or world.states[joiner] != AWAITED:
            return
        for number in sorted({number for _, number in world.installed}):
            agreement = self.agreements[number]
            if self.names[joiner] in agreement.members:
                draft = Draft(world)
                draft.states[joiner] = self.states.number(State(self.names[joiner], agreement, agreement.committed_step))
                draft.install(joiner, number, [self.names.index(name) for name in agreement.members])
                yield ("begin", self.names[joiner]), draft.world()

    def _splits(self, world: World) -> Iterator[tuple[Event, World]]:
        """Nothing passes any more between the members from one on and before another one, and the rest."""
        for begin, end in combinations(range(len(self.names)), 2):
            draft = Draft(world)
            draft.split(range(begin, end))
            yield ("split", *self.names[begin:end]), draft.world()

    def _faults(self, world: World) -> Iterator[tuple[Event, World]]:
        """Crashes, cuts and silences, each together with the first member that notices: nothing can differ before."""
        if self.can_split and world.faults:
            yield from self._splits(world)
        for member, other in sorted({*world.connected, *((other, member) for member, other in world.connected)}):
            if world.states[member] == AWAITED:
                continue
            if (member, other) in world.silent:
                yield from self._lost(Draft(world), member, other, "silent")
            if not world.faults:
                continue
            if self.can_crash:
                draft = Draft(world)
                draft.crash(other)
                yield from self._lost(draft, member, other, "crash")
            if any((state := self.state(world, end)) is not None and state.is_left_out for end in (member, other)):
                continue  # nobody listens to a member that is left out
            if self.can_freeze and not any(frozen == other for _, frozen in world.silent):
                draft = Draft(world)
                draft.freeze(other)
                yield from self._lost(draft, member, other, "freeze")
            if self.can_cut:
                draft = Draft(world)
                draft.cut_off(member, other)
                yield from self._lost(draft, member, other, "cut")
