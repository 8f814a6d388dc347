"""What an agent and its self-governed workers say to each other besides the words of `messages`."""

from collections.abc import Mapping
from dataclasses import dataclass

from kintsugi.runtime.ring.messages import Agreement, Joiner
from kintsugi.runtime.selfgoverned.course import Course
from kintsugi.runtime.selfgoverned.notes import Reachable

# From the agent to a worker.


@dataclass(frozen=True, slots=True)
class Begin:
    """Take part in a generation: found the ring with the others, or join it."""

    course: Course
    addresses: Mapping[str, Reachable]
    """Of all members."""


@dataclass(frozen=True, slots=True)
class Hold:
    """Plans made ahead for what may happen to a generation: packed decisions by fingerprint."""

    generation: int
    plans: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class Leased:
    """The answer to Asked."""

    number: int
    """That of the question."""
    agreement: Agreement | None
    """What is held for that generation, or, where it was only looked at, the latest from it on; null where there is none."""


@dataclass(frozen=True, slots=True)
class Admit:
    """Have the others agree on a generation with a worker that is ready to take part, if there is a plan for it."""

    generation: int
    """In which it is said; nothing comes of it in another one."""
    joiner: Joiner


@dataclass(frozen=True, slots=True)
class Leave:
    """Leave once others have the worker's state, if there is a plan without it."""


@dataclass(frozen=True, slots=True)
class Renew:
    """Nothing happens any more, and nobody is lost: have the members agree on a generation of the same, who connect anew."""

    generation: int
    """To be succeeded; nothing comes of it in another one."""
    reason: str


ToGovernor = Begin | Hold | Leased | Admit | Leave | Renew

# From a worker to the agent.


@dataclass(frozen=True, slots=True)
class Here:
    """The worker has its sockets."""

    at: Reachable


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopted:
    """A generation was agreed on; its plan is being prepared. Whoever serves the others tells it; all do where one joined."""

    course: Course
    noticed_at: float
    """When this worker heard that the generation before is over, on the monotonic clock."""
    agreed_at: float


@dataclass(frozen=True, slots=True)
class Agreed:
    """This worker goes on in a generation: to be held, whoever else told so and is lost by now."""

    agreement: Agreement


@dataclass(frozen=True, slots=True)
class Asked:
    """Too few are left to decide by themselves: what does the lease hold for a generation?"""

    number: int
    """Of the question, among those of one worker: an answer may come when it is waited for no more."""
    generation: int
    agreement: Agreement | None
    """To be held unless another one is; null only looks."""


@dataclass(frozen=True, slots=True)
class Refused:
    """There is no plan with a worker that asks to be taken in."""

    worker: str
    reason: str


@dataclass(frozen=True, slots=True)
class Stays:
    """A worker was asked to leave, and cannot now."""

    reason: str


FromGovernor = Here | Adopted | Agreed | Asked | Refused | Stays
