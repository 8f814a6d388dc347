"""What the members of a model may come to know and do: `transition` itself, its results kept by number.

Worlds hold the numbers, so that millions of them can be visited.
"""

from dataclasses import dataclass, field
from typing import Any

from benchmarks.membership.world import AWAITED, CRASHED, PAUSE, Draft, Interned, World
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
class Members:
    """All members of a model: what each may come to know and do, by numbers."""

    num_members: int
    commits: bool = True
    """Whether members may commit a step before they contribute."""
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

    def state(self, world: World, member: int) -> State | None:
        """What a member knows; null once its process has ended, and before it is one."""
        number = world.states[member]
        return None if number in (CRASHED, AWAITED) else self.states[number]

    def living(self, world: World) -> list[State]:
        """What the members know whose processes have not ended."""
        return [state for member in range(len(self.names)) if (state := self.state(world, member)) is not None]

    def applied(self, draft: Draft, member: int, outcome: Outcome, event: Event) -> tuple[Event, World]:
        """The world in which a member has done what came of a signal."""
        draft.states[member], actions = outcome
        for kind, *arguments in actions:
            if kind == "send":
                if not self._is_idle(self.messages[arguments[1]], draft.states[arguments[0]]):
                    draft.send(member, *arguments)
            elif kind == "ask":
                if arguments[0] not in draft.leased or self.is_news(arguments[0], draft.states[member]):
                    draft.asked.add((member, arguments[0]))
            else:
                draft.install(member, arguments[0], [self.names.index(name) for name in self.agreements[arguments[0]].members])
        if any(kind == "install" for kind, *_ in actions):
            self._tidy(draft, member)
        return event, draft.world()

    def is_news(self, agreement: int, number: int) -> bool:
        """Whether an agreement is of a later generation than a member's state."""
        return self.generation(agreement) > self.states[number].agreement.generation

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
        draft.answered = {(w, a) for w, a in draft.answered if w != member or self.generation(a) > state.agreement.generation}
        least = min(self.states[number].agreement.generation for number in draft.states if number not in (CRASHED, AWAITED))
        draft.installed = {(who, what) for who, what in draft.installed if self.generation(what) >= least}

    def results(self, number: int, key: tuple[Any, ...]) -> tuple[Outcome, ...]:
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

    def generation(self, agreement: int) -> int:
        """Of an agreement."""
        return self.agreements[agreement].generation
