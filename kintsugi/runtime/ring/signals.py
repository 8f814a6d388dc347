"""What the transition function of a ring takes in and gives out: all that its sockets, threads and callers do for it."""

from dataclasses import dataclass

from kintsugi.runtime.ring.messages import Agreement, Joiner, Message


@dataclass(frozen=True, slots=True)
class Lost:
    """A member is gone as far as one can see."""

    worker: str
    is_certain: bool = False
    """Its process has ended: its host refuses connections to its port, or whoever watches processes says so."""
    is_reported: bool = False
    """Somebody outside the ring says so, or it has been known for long and nobody began to reconcile: whoever is told begins,
    whoever its neighbours are."""


@dataclass(frozen=True, slots=True)
class Missed:
    """One of several connections with a member is gone: what was on its way over it, in either direction, may not have come."""

    worker: str


@dataclass(frozen=True, slots=True)
class Received:
    """A message came."""

    sender: str
    message: Message


@dataclass(frozen=True, slots=True)
class Committed:
    """The worker passed the commit point of a step."""

    step: int
    note: str = ""


@dataclass(frozen=True, slots=True)
class Decided:
    """What the lease holds as the agreement that follows this generation: the one that was asked for, or an earlier one."""

    agreement: Agreement


@dataclass(frozen=True, slots=True)
class Found:
    """A member that this worker had given up answers, while nothing has been decided for long."""

    worker: str


@dataclass(frozen=True, slots=True)
class Joining:
    """A worker asks to be taken in; one member that is told is enough, unless that one is lost."""

    joiner: Joiner


@dataclass(frozen=True, slots=True)
class Renewing:
    """The members are to agree anew although nobody is lost: what one of them contributes has changed."""

    generation: int
    """That is to be succeeded."""


Signal = Lost | Missed | Found | Received | Committed | Decided | Joining | Renewing


@dataclass(frozen=True, slots=True)
class Send:
    """Pass a message on, over a connection that is opened where there is none."""

    worker: str
    message: Message


@dataclass(frozen=True, slots=True)
class Install:
    """Go on in this generation."""

    agreement: Agreement


@dataclass(frozen=True, slots=True)
class LeaveOut:
    """The others go on without this worker: it commits nothing any more."""

    agreement: Agreement


@dataclass(frozen=True, slots=True)
class AskLease:
    """No majority is left: have the lease decide; `Decided` is its answer."""

    agreement: Agreement


@dataclass(frozen=True, slots=True)
class Record:
    """Have the lease keep what is decided, so that whoever is cut off from its members finds it there."""

    agreement: Agreement


@dataclass(frozen=True, slots=True)
class Probe:
    """Too few are left to decide anything: find out which of these have ended, and whether the lease holds a decision."""

    workers: frozenset[str]


Action = Send | Install | LeaveOut | AskLease | Record | Probe
