"""What one member of a ring knows."""

from collections.abc import Collection
from dataclasses import dataclass

from kintsugi.runtime.ring.messages import Agreement, Ballot, Contribution, Joiner, Proposal


@dataclass(frozen=True, slots=True)
class State:
    """One member in one generation; only `transition` makes the next one."""

    member: str
    agreement: Agreement
    """The generation that it is in, or that it knows to go on without it."""
    committed_step: int
    note: str = ""
    """What it said when it committed that step."""
    is_left_out: bool = False
    lost: frozenset[str] = frozenset()
    """Members that it found to be gone itself."""
    dead: frozenset[str] = frozenset()
    """Of the lost ones those that ended for certain."""
    promised: Ballot | None = None
    """The highest ballot that it took part in; null while it trains."""
    excluded: frozenset[str] = frozenset()
    """Who was lost according to the membership that it last passed on."""
    accepted: Proposal | None = None
    held: Proposal | None = None
    """A proposal of its own that too few stand behind."""
    joining: tuple[Joiner, ...] = ()
    """Who has asked this member to be taken in, and is not yet."""

    @property
    def is_stopped(self) -> bool:
        """Whether it may commit nothing: its contribution is made, or others go on without it."""
        return self.promised is not None or self.is_left_out

    @property
    def contribution(self) -> Contribution:
        """What it brings into the next agreement."""
        return Contribution(self.member, self.committed_step, self.note)

    @property
    def ring(self) -> frozenset[str]:
        """Who is left by the membership that it last passed on."""
        return frozenset(self.agreement.members) - self.excluded

    @property
    def missing(self) -> frozenset[str]:
        """Whom it takes back where they answer: whom it gave up, and while it holds a proposal of its own, whom anybody did."""
        others = frozenset[str]() if self.held is None else self.excluded
        return (self.lost | others) - self.dead

    @property
    def neighbours(self) -> frozenset[str]:
        """Whom it watches: the next and the previous member that it does not know to be lost."""
        if self.is_left_out:
            return frozenset()
        order = following(self.agreement.members, self.member, self.lost)
        return frozenset((order[0], order[-1])) if order else frozenset()


def united(joiners: tuple[Joiner, ...], others: tuple[Joiner, ...]) -> tuple[Joiner, ...]:
    """All of them by name, each once."""
    by_name = {joiner.worker: joiner for joiner in (*others, *joiners)}
    return tuple(by_name[worker] for worker in sorted(by_name))


def following(order: tuple[str, ...], worker: str, without: Collection[str]) -> list[str]:
    """The others of a ring in the order in which a message passes them after `worker`."""
    begin = order.index(worker)
    return [other for other in (*order[begin + 1 :], *order[:begin]) if other not in without]
