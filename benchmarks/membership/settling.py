"""Worlds without what can make no difference any more, so that fewer of them have to be visited."""

from dataclasses import dataclass, field

from benchmarks.membership.draft import Draft
from benchmarks.membership.members import Event, Members, Outcome
from benchmarks.membership.world import (
    ANYBODY,
    AWAITED,
    CRASHED,
    PAUSE,
    Pair,
    World,
    link,
    links,
    links_from,
    links_to,
    reversed_links,
)
from kintsugi.runtime.ring.messages import Restart

Numbers = tuple[int, ...]

Pairs = tuple[Pair, ...]

Memory = tuple[Pairs, Numbers, Pairs]
"""Of a world: its `past`, `leased` and `asked`."""


@dataclass(slots=True, kw_only=True)
class Settling(Members):
    """What members do to a world, and what is left of it then."""

    can_crash: bool = True
    reduces: bool = True
    """Whether worlds are one that differ only in what can make no difference, and the lease is served only where that can."""
    _settled: dict[tuple[object, ...], Memory] = field(default_factory=dict)

    def applied(self, draft: Draft, member: int, outcome: Outcome, event: Event) -> tuple[Event, World]:
        """The world in which a member has done what came of a signal."""
        agreement, (draft.states[member], actions) = self.known(draft.states[member]).agreement, outcome
        for kind, number, *arguments in actions:
            if kind == "send":
                if not self._is_idle(arguments[0], draft.states[number]):
                    draft.send(member, number, arguments[0])
            elif kind == "ask":
                draft.ask(member, number)
            else:
                draft.remember(member, agreement)
                draft.install(member, self.agreement_members(number))
                self._forget(draft, member)
                agreement = number
        return event, self.settled(draft)

    def settled(self, draft: Draft) -> World:
        """The world without what can make no difference any more: worlds that differ in nothing else are one."""
        if draft.broken and self.reduces:
            self._settle_broken(draft)
        if draft.past or draft.leased or draft.asked:
            agreements = tuple([self.known(number).agreement if number >= 0 else number for number in draft.states])
            key = agreements, (draft.past, draft.leased, draft.asked), self.can_crash and draft.faults > 0, self.reduces
            if (found := self._settled.get(key)) is None:
                found = self._settled[key] = self._settled_memory(agreements, key[1], may_crash=key[2])
            draft.past, draft.leased, draft.asked = found
        return draft.world()

    def _settle_broken(self, draft: Draft) -> None:
        """Whoever hears of a loss that it knows of, with nothing to read before it and no way to connect again, does nothing."""
        ended = tuple([member for member, number in enumerate(draft.states) if number == CRASHED])
        for_ever = draft.cut | reversed_links(draft.cut) | links_to(ended)
        for member, other in links(draft.broken & for_ever):
            number = draft.states[member]
            if number >= 0 and self.known(number).unmoved & link(member, other) and not draft.queues.get((other, member)):
                draft.broken &= ~link(member, other)
                draft.silent &= ~link(member, other)

    def _settled_memory(self, agreements: Numbers, memory: Memory, *, may_crash: bool) -> Memory:
        """What is still to be remembered of agreements: nothing of a generation that all are in or after, and of one mind about."""
        past, leased, asked = memory
        living = [agreement for agreement in agreements if agreement >= 0]
        least = min((self.generation(agreement) for agreement in living), default=0)
        asked = self._settled_asked(agreements, leased, asked) if self.reduces else asked
        if not self.reduces or AWAITED in agreements:
            return tuple(found for found in past if self.generation(found[1]) >= least), leased, asked
        made = {*living, *leased, *(agreement for _, agreement in (*past, *asked))}
        over = {agreement for agreement in made if self.generation(agreement) <= least}
        if len({self.generation(agreement) for agreement in over}) < len(over):
            return past, leased, asked
        left = {(member if may_crash else ANYBODY, agreement) for member, agreement in past if agreement not in over}
        leased = tuple(agreement for agreement in leased if agreement not in over)
        return tuple(sorted(left)), leased, tuple(found for found in asked if found[1] not in over)

    def _settled_asked(self, agreements: Numbers, leased: Numbers, asked: Pairs) -> Pairs:
        """Whoever knows of a generation already hears nothing from the lease; which learns nothing if it holds it already."""
        held = {self.generation(agreement) for agreement in leased}
        left = set()
        for member, agreement in asked:
            generation = self.generation(agreement)
            if member != ANYBODY and agreements[member] >= 0 and generation > self.generation(agreements[member]):
                left.add((member, agreement))
            elif generation not in held:
                left.add((ANYBODY, agreement))
        return tuple(sorted(left))

    def _is_idle(self, message: int, number: int) -> bool:
        """Whether a message changes nothing whenever it comes: its receiver is further, or left out, for ever."""
        if number < 0:
            return False
        known, said = self.known(number), self.messages[message]
        if isinstance(said, Restart):
            return said.generation <= known.generation
        return known.is_left_out and said.generation >= known.generation

    def _forget(self, draft: Draft, member: int) -> None:
        """Leave out what cannot matter to a member in its new generation any more."""
        known = self.known(draft.states[member])
        members = () if known.is_left_out else self.agreement_members(known.agreement)
        others = links_from(member) & ~links_to(members)
        draft.broken &= ~others
        draft.silent &= ~others
        for sender in range(len(self.names)):
            if queue := draft.queues.get((sender, member)):
                left = [said for said in queue if said == PAUSE or not self._is_idle(said, draft.states[member])]
                draft.queues[sender, member] = tuple(left[1:] if left and left[0] == PAUSE else left)
        draft.answered = tuple(
            found for found in draft.answered if found[0] != member or self.is_news(found[1], draft.states[member])
        )
