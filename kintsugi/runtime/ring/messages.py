"""What the members of a ring say to each other. Every message names its generation; who is behind is told the latest agreement."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Ballot:
    """One attempt to agree on the next membership; a higher one supersedes all lower ones."""

    round: int
    worker: str
    """Who began it; breaks ties."""


@dataclass(frozen=True, slots=True)
class Contribution:
    """What a survivor brings into the agreement when it leaves its step."""

    worker: str
    committed_step: int
    """The last step that it committed; it commits no other one in this generation."""
    note: str = ""
    """Opaque: what it said when it committed that step."""


@dataclass(frozen=True, slots=True)
class Joiner:
    """A worker that asks to be taken in; it is told by whoever started it, not by the ring."""

    worker: str
    address: tuple[str, int]
    """Where it listens: host and TCP port."""
    note: str = ""
    """Opaque: what all members have to know of it."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """Who goes on in a generation, and from where: decided once by the members of the one before."""

    generation: int
    members: tuple[str, ...]
    """In ring order."""
    contributions: tuple[Contribution, ...] = ()
    """Of all who took part in the agreement, in ring order of the generation before; empty in the first generation."""
    note: str = ""
    """Opaque: chosen for these members by the worker that closed the reconciliation, such as the digest of a plan."""
    joined: tuple[Joiner, ...] = ()
    """Those of the members that were none in the generation before: they had no voice in this."""
    earlier: tuple[Joiner, ...] = ()
    """Those that agreements before this one took in: who missed one of these has to reach them all the same."""

    @property
    def newcomers(self) -> tuple[Joiner, ...]:
        """All members that have come since the first generation, whose members know each other."""
        return (*self.earlier, *self.joined)

    @property
    def committed_step(self) -> int:
        """The last step that counts as committed: the highest that a contributor committed; -1 before the first."""
        return max((contribution.committed_step for contribution in self.contributions), default=-1)


@dataclass(frozen=True, slots=True)
class Proposal:
    """An agreement to be, under the ballot that brought it up."""

    ballot: Ballot
    agreement: Agreement
    by_lease: bool
    """Whether the lease has to decide: no majority stood behind this ballot, or behind one that it follows."""


@dataclass(frozen=True, slots=True)
class Promise:
    """A worker's part in a reconciliation: it takes part in no lower ballot from now on."""

    contribution: Contribution
    accepted: Proposal | None
    """What it accepted under the highest ballot so far: it may have been decided already. Null where another promise tells it."""


@dataclass(frozen=True, slots=True)
class Hello:
    """Which generation the sender is in: the first message of every connection."""

    generation: int


@dataclass(frozen=True, slots=True)
class Reconcile:
    """A membership that travels round the ring: everybody removes whom it knows to be lost."""

    ballot: Ballot
    base: Agreement
    """The generation that is to be succeeded; tells it to members that have not heard of it."""
    lost: frozenset[str]
    promises: tuple[Promise, ...]
    joining: tuple[Joiner, ...] = ()
    """Who asks to be taken in, as far as those know that it has passed."""

    @property
    def generation(self) -> int:
        """Of the membership that is mended."""
        return self.base.generation


@dataclass(frozen=True, slots=True)
class Accept:
    """All have reconciled; asks them to accept what came of it."""

    generation: int
    proposal: Proposal
    accepted_by: frozenset[str]
    dead: frozenset[str]
    """Of the lost ones those whose processes have ended for certain: what they sent and nobody read counts no more."""


@dataclass(frozen=True, slots=True)
class Restart:
    """An agreement that is decided: go on under it."""

    agreement: Agreement

    @property
    def generation(self) -> int:
        """The one that begins."""
        return self.agreement.generation


Message = Hello | Reconcile | Accept | Restart
