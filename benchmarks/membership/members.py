"""What the members of a model may come to know and do: `transition` itself, its results kept by number.

Worlds hold the numbers, so that millions of them can be visited.
"""

from dataclasses import dataclass, field
from typing import Any

from benchmarks.membership.world import Interned, World, link
from kintsugi.runtime.ring.messages import Agreement, Joiner, Message
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
    Missed,
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What the world around a member has to know of its state."""

    generation: int
    agreement: int
    is_left_out: bool
    has_committed: bool
    """Whether it, or somebody before the generation that it is in, has committed a step."""
    is_holding: bool
    """Whether it has a proposal that too few stand behind."""
    unmoved: int
    """Links from it to those whose loss is no news to it."""


def chosen(agreement: Agreement) -> str:
    """The note of an agreement in the model: every membership has its own."""
    return "".join(agreement.members)


@dataclass(slots=True)
class Members:
    """All members of a model: what each may come to know and do, by numbers."""

    num_members: int
    commits: bool = True
    """Whether a member may commit a step before it contributes."""
    can_join: bool = False
    """Whether another worker asks to be taken in."""
    names: tuple[str, ...] = field(init=False)
    """Of the members, and of who may join."""
    states: Interned[State] = field(default_factory=Interned)
    messages: Interned[Message] = field(default_factory=Interned)
    agreements: Interned[Agreement] = field(default_factory=Interned)
    is_commit_lost: bool = False
    """Whether a survivor went on from before a step that it had committed itself."""
    _known: dict[int, Known] = field(default_factory=dict)
    _outcomes: dict[tuple[Any, ...], tuple[Outcome, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.names = tuple("abcdefgh"[: self.num_members + self.can_join])

    def state(self, world: World, member: int) -> State | None:
        """What a member knows; null once its process has ended, and before it is one."""
        number = world.states[member]
        return self.states[number] if number >= 0 else None

    def living(self, world: World) -> list[State]:
        """What the members know whose processes have not ended."""
        return [state for member in range(len(self.names)) if (state := self.state(world, member)) is not None]

    def known(self, number: int) -> Known:
        """What the world has to know of a state."""
        if (found := self._known.get(number)) is None:
            state = self.states[number]
            member, everybody = self.names.index(state.member), range(len(self.names))
            others = {other for other in everybody if self.names[other] in set(state.agreement.members) - state.lost}
            hears = () if state.is_left_out else others
            unmoved = sum(link(member, other) for other in everybody if other not in hears)
            found = Known(
                generation=state.agreement.generation,
                agreement=self.agreements.number(state.agreement),
                is_left_out=state.is_left_out,
                has_committed=state.committed_step > 0,
                is_holding=state.promised is not None and state.held is not None,
                unmoved=unmoved,
            )
            self._known[number] = found
        return found

    def agreed(self, world: World) -> list[int]:
        """The agreements that living members are in, or were in as far as that may matter."""
        return [*(self.known(number).agreement for number in world.states if number >= 0), *(found[1] for found in world.past)]

    def agreement_members(self, agreement: int) -> tuple[int, ...]:
        """Who goes on in an agreement."""
        return tuple(self.names.index(name) for name in self.agreements[agreement].members)

    def is_news(self, agreement: int, number: int) -> bool:
        """Whether an agreement is of a later generation than a member's state."""
        return number >= 0 and self.generation(agreement) > self.known(number).generation

    def reactions(self, world: World, member: int, key: tuple[Any, ...]) -> tuple[Outcome, ...]:
        """What may come of a signal to a member: if it contributes, it may have committed a step just before, if nobody else has.

        One is enough. No member does anything else because of the steps that are committed, so if one loses its own in a world in
        which several have committed, it does so as well where it alone has; and two agreements that differ in what several
        contribute differ in what one of them does.
        """
        number = world.states[member]
        may_commit = self.commits and not any(self.known(other).has_committed for other in world.states if other >= 0)
        if (found := self._outcomes.get((number, may_commit, *key))) is None:
            found = self._outcomes[number, may_commit, *key] = self._reactions(number, self._signal(key), may_commit=may_commit)
        return found

    def _reactions(self, number: int, signal: Signal, *, may_commit: bool) -> tuple[Outcome, ...]:
        state = self.states[number]
        outcome = self._outcome(state, signal)
        if not may_commit or state.is_stopped or state.agreement.generation > 0:
            return (outcome,)
        after = self.states[outcome[0]]
        if not after.is_stopped and after.agreement.generation == 0:
            return (outcome,)  # may as well commit later
        committed, _ = transition(state, Committed(1), chosen)
        return tuple(dict.fromkeys((outcome, self._outcome(committed, signal))))

    def _signal(self, key: tuple[Any, ...]) -> Signal:
        kind, *arguments = key
        if kind == "received":
            return Received(self.names[arguments[0]], self.messages[arguments[1]])
        if kind == "lost":
            return Lost(self.names[arguments[0]], is_certain=arguments[1])
        if kind == "missed":
            return Missed(self.names[arguments[0]])
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
