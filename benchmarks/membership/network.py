"""The world around the members of a ring in a model: links, crashes, freezes, cuts and the lease, and all that can happen next.

The members run `transition` itself; its results are kept, and worlds hold their numbers, so that millions of worlds can be visited.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from benchmarks.membership.world import AWAITED, CRASHED, PAUSE, Draft, Interned, World, pair
from kintsugi.runtime.ring.messages import Agreement, Joiner, Message, Restart
from kintsugi.runtime.ring.signals import (
    Action,
    AskLease,
    Committed,
    Decided,
    Found,
    Install,
    Joining,
    LeaveOut,
    Lost,
    Received,
    Record,
    Send,
    Signal,
)
from kintsugi.runtime.ring.state import State
from kintsugi.runtime.ring.transition import transition

Event = tuple[Any, ...]
"""What happened: its kind and who was concerned."""

Outcome = tuple[int, tuple[Any, ...]]
"""A member's new state and its actions, in numbers."""


def chosen(agreement: Agreement) -> str:
    """The note of an agreement in the model: every membership has its own."""
    return "".join(agreement.members)


@dataclass(slots=True)
class Network:
    """A ring of members and everything that can happen to it."""

    num_members: int
    commits: bool = True
    """Whether members may commit a step before they contribute."""
    can_crash: bool = True
    can_freeze: bool = True
    can_cut: bool = True
    can_split: bool = False
    """Whether the ring may be cut in two parts at once, between each and its other neighbours."""
    hurries: bool = False
    """Whether members take back whom they gave up at any moment, not only where nothing else can happen any more."""
    can_join: bool = False
    """Whether another worker asks to be taken in."""
    names: tuple[str, ...] = field(init=False)
    """Of the members, and of who may join."""
    states: Interned[State] = field(default_factory=Interned)
    messages: Interned[Message] = field(default_factory=Interned)
    agreements: Interned[Agreement] = field(default_factory=Interned)
    is_commit_lost: bool = False
    """Whether a survivor went on from before a step that it had committed itself."""
    _outcomes: dict[tuple[Any, ...], tuple[Outcome, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.names = tuple("abcdefgh"[: self.num_members + self.can_join])

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

    def state(self, world: World, member: int) -> State | None:
        """What a member knows; null once its process has ended, and before it is one."""
        number = world.states[member]
        return None if number in (CRASHED, AWAITED) else self.states[number]

    def living(self, world: World) -> list[State]:
        """What the members know whose processes have not ended."""
        return [state for member in range(len(self.names)) if (state := self.state(world, member)) is not None]

    def _deliveries(self, world: World) -> Iterator[tuple[Event, World]]:
        for (sender, receiver), queue in world.queues:
            if world.states[receiver] == AWAITED:
                continue
            for outcome in self._results(world.states[receiver], ("received", sender, queue[0])):
                draft = Draft(world)
                draft.read(sender, receiver)
                yield self._applied(draft, receiver, outcome, ("deliver", self.names[sender], self.names[receiver], queue[0]))

    def _lost(self, draft: Draft, member: int, other: int, how: str) -> Iterator[tuple[Event, World]]:
        """A member gives up another one; what it had not read is lost."""
        draft.disconnect(member, other)
        draft.broken.discard((member, other))
        draft.silent.discard((member, other))
        draft.queues.pop((other, member), None)
        before = draft.world()
        for outcome in self._results(before.states[member], ("lost", other, False)):
            yield self._applied(Draft(before), member, outcome, (how, self.names[member], self.names[other]))

    def _lease(self, world: World) -> Iterator[tuple[Event, World]]:
        for member, agreement in world.asked:
            state = self.state(world, member)
            is_news = state is not None and self._is_news(agreement, world.states[member])
            draft = Draft(world)
            draft.serve(member, agreement, self._generation, is_news=is_news)
            yield ("serve", self.names[member], agreement), draft.world()
        for member, agreement in world.answered:
            for outcome in self._results(world.states[member], ("decided", agreement)):
                draft = Draft(world)
                draft.answered.remove((member, agreement))
                yield self._applied(draft, member, outcome, ("answer", self.names[member], agreement))

    def _inquiries(self, world: World, asks: Callable[[State], bool]) -> Iterator[tuple[Event, World]]:
        """Members that cannot decide find out who has ended, greet the others, and look at what the lease holds."""
        for member in range(len(self.names)):
            state = self.state(world, member)
            if state is None or state.promised is None or not asks(state):
                continue
            for name in sorted((state.lost | state.excluded) - state.dead):
                yield from self._inquire(world, member, self.names.index(name))
            agreement = max(world.leased, key=self._generation, default=-1)
            if agreement >= 0 and self._is_news(agreement, world.states[member]):
                for outcome in self._results(world.states[member], ("decided", agreement)):
                    yield self._applied(Draft(world), member, outcome, ("look up", self.names[member], agreement))

    def _inquire(self, world: World, member: int, other: int) -> Iterator[tuple[Event, World]]:
        if world.states[other] == CRASHED:
            for outcome in self._results(world.states[member], ("lost", other, True)):
                yield self._applied(Draft(world), member, outcome, ("refused", self.names[member], self.names[other]))
            return
        if pair(member, other) not in world.cut:
            yield from self._greeted(world, member, other)

    def _greeted(self, world: World, member: int, other: int) -> Iterator[tuple[Event, World]]:
        """A member hears of the generation of another one that is further."""
        theirs = self.state(world, other)
        if theirs is not None and self._is_news(known := self.agreements.number(theirs.agreement), world.states[member]):
            for outcome in self._results(world.states[member], ("decided", known)):
                yield self._applied(Draft(world), member, outcome, ("greet", self.names[member], self.names[other]))

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
        for outcome in self._results(world.states[member], ("found", other)):
            draft = Draft(world)
            draft.broken.discard((member, other))
            draft.connect(member, other)
            yield self._applied(draft, member, outcome, ("found", self.names[member], self.names[other]))

    def _reminders(self, world: World) -> Iterator[tuple[Event, World]]:
        """Members that know of a loss which nobody mends begin to mend it."""
        for member in range(len(self.names)):
            state = self.state(world, member)
            if state is None or state.is_stopped or not state.lost:
                continue
            lost = self.names.index(min(state.lost))
            for outcome in self._results(world.states[member], ("reminded", lost)):
                yield self._applied(Draft(world), member, outcome, ("reminded", self.names[member], self.names[lost]))

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
                for outcome in self._results(world.states[member], ("joining", joiner)):
                    yield self._applied(Draft(world), member, outcome, ("joining", self.names[member], self.names[joiner]))

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

    def _applied(self, draft: Draft, member: int, outcome: Outcome, event: Event) -> tuple[Event, World]:
        draft.states[member], actions = outcome
        for kind, *arguments in actions:
            if kind == "send":
                if not self._is_idle(self.messages[arguments[1]], draft.states[arguments[0]]):
                    draft.send(member, *arguments)
            elif kind == "ask":
                if arguments[0] not in draft.leased or self._is_news(arguments[0], draft.states[member]):
                    draft.asked.add((member, arguments[0]))
            else:
                draft.install(member, arguments[0], [self.names.index(name) for name in self.agreements[arguments[0]].members])
        if any(kind == "install" for kind, *_ in actions):
            self._tidy(draft, member)
        return event, draft.world()

    def _is_news(self, agreement: int, number: int) -> bool:
        return self._generation(agreement) > self.states[number].agreement.generation

    def _is_idle(self, message: Message, number: int) -> bool:
        """Whether a message changes nothing whenever it comes: its receiver is further, or left out, for ever."""
        if number in (CRASHED, AWAITED):
            return False
        state = self.states[number]
        own = state.agreement.generation
        if isinstance(message, Restart):
            return message.generation <= own
        return state.is_left_out and message.generation >= own

    def _tidy(self, draft: Draft, member: int) -> None:
        """Forget what cannot matter to a member in its new generation any more."""
        state = self.states[draft.states[member]]
        members = {self.names.index(name) for name in state.agreement.members} if not state.is_left_out else set()
        draft.broken = {(who, of) for who, of in draft.broken if who != member or of in members}
        draft.silent = {(who, of) for who, of in draft.silent if who != member or of in members}
        for sender in range(len(self.names)):
            if queue := draft.queues.get((sender, member)):
                left = [m for m in queue if m == PAUSE or not self._is_idle(self.messages[m], draft.states[member])]
                draft.queues[sender, member] = tuple(left[1:] if left and left[0] == PAUSE else left)
        draft.answered = {(w, a) for w, a in draft.answered if w != member or self._generation(a) > state.agreement.generation}
        least = min(self.states[number].agreement.generation for number in draft.states if number not in (CRASHED, AWAITED))
        draft.installed = {(who, what) for who, what in draft.installed if self._generation(what) >= least}

    def _results(self, number: int, key: tuple[Any, ...]) -> tuple[Outcome, ...]:
        """What may come of a signal: members that contribute may have committed a step just before."""
        if (found := self._outcomes.get((number, *key))) is not None:
            return found
        state, signal = self.states[number], self._signal(key)
        outcomes = [self._outcome(state, signal)]
        if self.commits and not state.is_stopped and state.committed_step == 0 and state.agreement.generation == 0:
            committed, _ = transition(state, Committed(1), chosen)
            outcomes.append(self._outcome(committed, signal))
            if not self.states[outcomes[0][0]].is_stopped and self.states[outcomes[0][0]].agreement.generation == 0:
                del outcomes[1]  # may as well commit later
        result = tuple(dict.fromkeys(outcomes))
        self._outcomes[number, *key] = result
        return result

    def _signal(self, key: tuple[Any, ...]) -> Signal:
        kind, *arguments = key
        if kind == "received":
            return Received(self.names[arguments[0]], self.messages[arguments[1]])
        if kind == "lost":
            return Lost(self.names[arguments[0]], is_certain=arguments[1])
        if kind == "reminded":
            return Lost(self.names[arguments[0]], is_reported=True)
        if kind == "joining":
            return Joining(Joiner(self.names[arguments[0]], ("", 0)))
        if kind == "found":
            return Found(self.names[arguments[0]])
        return Decided(self.agreements[arguments[0]])

    def _outcome(self, state: State, signal: Signal) -> Outcome:
        after, actions = transition(state, signal, chosen)
        is_later = after.agreement.generation > state.agreement.generation
        if is_later and not after.is_left_out and state.committed_step > after.agreement.committed_step:
            self.is_commit_lost = True
        return self.states.number(after), tuple(told for action in actions if (told := self._told(action)))

    def _told(self, action: Action) -> tuple[Any, ...]:
        match action:
            case Send(worker, message):
                return "send", self.names.index(worker), self.messages.number(message)
            case AskLease(agreement) | Record(agreement):
                return "ask", self.agreements.number(agreement)
            case Install(agreement) | LeaveOut(agreement):
                return "install", self.agreements.number(agreement)
        return ()

    def _generation(self, agreement: int) -> int:
        return self.agreements[agreement].generation
