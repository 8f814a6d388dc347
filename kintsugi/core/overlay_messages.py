"""What agents tell the scheduler of an overlay, what it takes down, and what it heard of everybody."""

from dataclasses import dataclass, field
from enum import StrEnum

from kintsugi.core import checks
from kintsugi.core.errors import InvalidInputError
from kintsugi.core.overlay import UNHEARD_RESTARTS, Overlay
from kintsugi.core.profile import PYDANTIC_CONFIG

MOST_GENERATIONS = 2**30
"""Generations, and terms, that any overlay comes to."""


class OverlayEventKind(StrEnum):
    """What agents tell the scheduler. The first four, and a failure, are the primitives; the rest is what follows from them."""

    WORKER_JOINED = "worker_joined"
    """Scale-out: `worker`, `address`, `neighbors`, `state_bytes`, `shard_bytes`."""
    WORKER_DRAINING = "worker_draining"
    """Scale-in: `worker`."""
    LINK_CONNECTED = "link_connected"
    """Connect-link, asked by one end: `link`. Told by an end of a wanted link: it is connected."""
    LINK_DISCONNECTED = "link_disconnected"
    """Disconnect-link, asked by one end, or the loss of the link, which `detail` explains: `link`, `interrupted`."""
    WORKER_FAILED = "worker_failed"
    """`worker`, and `teller`; the scheduler tells it itself where no heartbeat comes. `disagreeing` ones fail with it."""
    LINK_MEASURED = "link_measured"
    """`link`, `alpha_seconds`, `beta_seconds_per_byte`."""
    STATE_REPLICATED = "state_replicated"
    """The joining `worker` holds the state of `step` and has kept up since; `digest` proves it."""
    WORKER_LEFT = "worker_left"
    """The draining `worker` is not needed any more and has gone."""
    REPLICATION_REQUESTED = "replication_requested"
    """The joining `worker` cannot finish the replication under way and wants another one, of a later step; `detail` says why."""
    SCHEDULER_CHANGED = "scheduler_changed"
    """The scheduler of `term` answers at `address` from now on; `worker` runs it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlayEvent:
    """One word of an agent to the scheduler; the same `id` again changes nothing."""

    __pydantic_config__ = PYDANTIC_CONFIG

    kind: OverlayEventKind
    id: str
    worker: str | None = None
    link: tuple[str, str] | None = None
    address: str | None = None
    incarnation: int = 0
    neighbors: tuple[str, ...] = ()
    state_bytes: int | None = None
    shard_bytes: int | None = None
    """Of a shard, at most: the state is cut into equal ones (the atomic size, first of the divisibility chain of theorem 1)."""
    alpha_seconds: float | None = None
    beta_seconds_per_byte: float | None = None
    step: int | None = None
    digest: str | None = None
    interrupted: bool = False
    """Whether a reduction was under way that has to be run again."""
    detail: str = ""
    generation: int | None = None
    """The newest overlay that whoever tells this had seen: what is known to be over already changes nothing."""
    restarts: int | None = None
    """As in that overlay; an interruption that was answered since by another attempt is not answered twice."""
    term: int | None = None
    """The highest scheduler's term that whoever tells this has heard of; a scheduler of a lower one refuses."""
    gradient_bytes: int | None = None
    """What the joining worker will add to each reduction; by default as much as its state."""
    protocol: int = 1
    """Version of what the joining worker says to its neighbours; it is refused where theirs is another one."""
    synchronization_seconds: dict[str, float] = field(default_factory=dict)
    """What the scheduler had heard of everybody's all-reduces when it took this down; nobody else fills it in."""
    teller: str | None = None
    """Which worker tells of the loss of another one: the word of one that has failed itself is refused."""
    teller_incarnation: int = 0
    """The life in which it tells that."""
    disagreeing: dict[str, int] = field(default_factory=dict)
    """Workers, by incarnation, that fail along with `worker`: they hold different states, and nobody can tell whose is right."""
    overlay: Overlay | None = None
    """The newest one that a new scheduler or its voters had seen: it goes on from there where its log ends earlier."""

    def __post_init__(self) -> None:
        checks.name("id", self.id)
        checks.settle_text(self, "detail")
        subject = "link" if self.kind in _LINK_EVENTS else "worker"
        if getattr(self, subject) is None:
            raise InvalidInputError(f"is needed by an event of kind {self.kind.value}", field=subject)
        if self.link is not None:
            checks.unique("link", self.link)
        if self.kind is OverlayEventKind.WORKER_JOINED:
            self._check_joining()
        if self.kind is OverlayEventKind.LINK_MEASURED:
            self._require("alpha_seconds", "beta_seconds_per_byte")
        if self.kind is OverlayEventKind.SCHEDULER_CHANGED:
            self._require("address", "term")
            checks.service_url("address", self.address or "")
        self._check_numbers()
        for worker, incarnation in self.disagreeing.items():
            checks.name("disagreeing", worker)
            checks.non_negative(f"disagreeing.{worker}", incarnation)
        if self.alpha_seconds is not None:
            checks.seconds("alpha_seconds", self.alpha_seconds, at_most=checks.LONGEST_LATENCY_SECONDS)
        if self.beta_seconds_per_byte is not None:
            checks.beta("beta_seconds_per_byte", self.beta_seconds_per_byte)

    def _check_numbers(self) -> None:
        for counted in ("incarnation", "teller_incarnation", "generation", "restarts", "step"):
            checks.non_negative(counted, getattr(self, counted) or 0)
        _require_room("term", self.term or 0, MOST_GENERATIONS)
        if self.overlay is not None:
            _require_room("overlay.generation", self.overlay.generation, MOST_GENERATIONS)
            _require_room("overlay.term", self.overlay.term, MOST_GENERATIONS)
            _require_room("overlay.restarts", self.overlay.restarts, MOST_GENERATIONS * UNHEARD_RESTARTS)

    def _check_joining(self) -> None:
        self._require("address", "state_bytes", "shard_bytes")
        checks.address("address", self.address or "")
        checks.unique("neighbors", self.neighbors)
        for sized in ("state_bytes", "shard_bytes", "gradient_bytes"):
            if getattr(self, sized) is not None:
                checks.positive(sized, getattr(self, sized))
        checks.positive("protocol", self.protocol)
        checks.name("worker", self.worker or "")

    def _require(self, *fields: str) -> None:
        for needed in fields:
            if getattr(self, needed) is None:
                raise InvalidInputError(f"is needed by an event of kind {self.kind.value}", field=needed)


def _require_room(field: str, value: int, most: int) -> None:
    """Require a number from which an overlay can go on, event by event: of 64 bits, and one that can be asked for, ever after.

    Raises:
        InvalidInputError: no overlay came so far.
    """
    checks.non_negative(field, value)
    if value > most:
        raise InvalidInputError(
            f"is not credible (over {most}); tell the one of an overlay that was published", field=field, value=value
        )


_LINK_EVENTS = frozenset({OverlayEventKind.LINK_CONNECTED, OverlayEventKind.LINK_DISCONNECTED, OverlayEventKind.LINK_MEASURED})


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlayHeartbeat:
    """A sign of life of one worker; kept in memory alone."""

    __pydantic_config__ = PYDANTIC_CONFIG

    worker: str
    incarnation: int = 0
    generation: int = 0
    """Of the overlay that it acts on."""
    term: int = 0
    """The highest scheduler's term that it has heard of."""
    step: int | None = None
    """The step that it committed last."""
    synchronization_seconds: float | None = None
    """Median time of its last all-reduces."""
    received_bytes: int | None = None
    """How much of the state it fetched; of a joining worker."""

    def __post_init__(self) -> None:
        checks.name("worker", self.worker)
        for counted in ("incarnation", "generation", "term", "step", "received_bytes"):
            checks.non_negative(counted, getattr(self, counted) or 0)
        if self.synchronization_seconds is not None:
            checks.seconds("synchronization_seconds", self.synchronization_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlayHeartbeatAnswer:
    """How the overlay stands, for those who live."""

    __pydantic_config__ = PYDANTIC_CONFIG

    generation: int
    """A higher one than the agent's own is an overlay to fetch."""
    term: int
    timeout_seconds: float
    """Silence after which a worker counts as failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlaySign:
    """What was heard of one worker last."""

    __pydantic_config__ = PYDANTIC_CONFIG

    heartbeat: OverlayHeartbeat
    heard_at: str
    """RFC 3339, UTC."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlaySigns:
    """What was heard of everybody in the overlay, by this scheduler since it began to listen."""

    __pydantic_config__ = PYDANTIC_CONFIG

    signs: tuple[OverlaySign, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlayEntry:
    """One line of the overlay's log; the lines from the first one on give the overlay."""

    __pydantic_config__ = PYDANTIC_CONFIG

    number: int
    """From 1, without gaps."""
    event: OverlayEvent
    at: str
    """When the scheduler took it down: RFC 3339, UTC."""
    term: int
    """Of the scheduler that took it down."""
    generation: int
    """Of the overlay after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlayLog:
    """Lines of the overlay's log, in order."""

    __pydantic_config__ = PYDANTIC_CONFIG

    entries: tuple[OverlayEntry, ...]
    last_number: int
    """Of the last line that there is, whether it is among these or not."""
