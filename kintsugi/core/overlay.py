"""The overlay: workers of several parties, the links between them, and what is carried over these.

An `Overlay` is a desired state. The scheduler publishes one for every event, numbered by its generation; every agent compares
it with what is, and does what is missing: connects links, probes them, sends shards, reduces over another tree. Nothing is
a command that could be lost. (Learning in Chaos, section IV: cluster monitor and peer negotiation.)
"""

from dataclasses import dataclass, field
from enum import StrEnum

from kintsugi.core import checks
from kintsugi.core.errors import InvalidInputError, NotFoundError
from kintsugi.core.profile import PYDANTIC_CONFIG

UNHEARD_RESTARTS = 1_000_000
"""By so much a new scheduler goes on above those that it knows of: the one before may have told a few workers of later ones."""


class WorkerState(StrEnum):
    """How a worker takes part in the overlay."""

    STANDBY = "standby"
    """Known, connected to nobody."""
    JOINING = "joining"
    """Connects, is probed, and fetches the state; it hears every reduction and adds to none."""
    ACTIVE = "active"
    DRAINING = "draining"
    """Asked to leave: takes part until the others reduce without it."""
    FAILED = "failed"


class LinkState(StrEnum):
    """How a link of the overlay stands."""

    CONNECTING = "connecting"
    """Wanted; its ends have not said that they are connected."""
    UP = "up"


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlayWorker:
    """One node of the overlay."""

    __pydantic_config__ = PYDANTIC_CONFIG

    id: str
    address: str
    """`host:port` at which it takes connections of its neighbours."""
    state: WorkerState
    joined_at: str
    """RFC 3339, UTC."""
    incarnation: int = 0
    """Which process life of the worker is meant; words of an earlier one are refused."""
    synchronization_seconds: float | None = None
    """How long its all-reduces take, the median of what it measured around them."""
    detail: str = ""
    """Why it stands so, for people."""
    state_bytes: int | None = None
    """What it holds, or is to fetch."""
    shard_bytes: int | None = None
    """Of a shard in which it fetches, at most."""
    gradient_bytes: int | None = None
    """What it adds to each reduction; null where it did not say: as much as its state."""
    protocol: int = 1
    """Version of what it says to its neighbours; the same for all that take part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlayLink:
    """A link between two workers; both directions alike."""

    __pydantic_config__ = PYDANTIC_CONFIG

    between: tuple[str, str]
    """In ascending order; the first one connects and probes."""
    state: LinkState
    alpha_seconds: float | None = None
    """Measured latency, one way; null before the first probe."""
    beta_seconds_per_byte: float | None = None
    measured_at: str | None = None
    """RFC 3339, UTC."""
    generation: int = 0
    """The overlay's generation in which it came to be wanted; what was said before that is about an earlier link."""

    def __post_init__(self) -> None:
        if not self.between[0] < self.between[1]:
            raise InvalidInputError("must name two workers in ascending order", field="between", value=list(self.between))
        if self.alpha_seconds is not None:
            checks.seconds("alpha_seconds", self.alpha_seconds, at_most=checks.LONGEST_LATENCY_SECONDS)
        if self.beta_seconds_per_byte is not None:
            checks.beta("beta_seconds_per_byte", self.beta_seconds_per_byte)

    @property
    def is_measured(self) -> bool:
        """Whether latency and rate are known."""
        return self.alpha_seconds is not None and self.beta_seconds_per_byte is not None


class Shape(StrEnum):
    """The shape in which gradients are reduced."""

    TREE = "tree"
    RING = "ring"


@dataclass(frozen=True, slots=True, kw_only=True)
class SynchronizationPolicy:
    """Over which links of the overlay gradients are reduced."""

    __pydantic_config__ = PYDANTIC_CONFIG

    shape: Shape
    order: tuple[str, ...]
    """Workers whose gradients count: a ring in its order, or a tree from its root, every worker behind its parent."""
    parents: dict[str, str] = field(default_factory=dict)
    """The parent of every worker but the root, listeners included; in a ring of its listeners alone."""
    listeners: tuple[str, ...] = ()
    """Joining workers: they get each reduced gradient from their parent (a worker that counts) and add nothing."""
    predicted_seconds: float | None = None
    """Of one reduction, by the measured links; null where some are not measured yet, or nobody is left."""
    reason: str = ""
    """Why this one, for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationShare:
    """Consecutive shards of the state that one neighbour sends."""

    __pydantic_config__ = PYDANTIC_CONFIG

    source: str
    first_shard: int
    num_shards: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Replication:
    """How a joining worker gets the state: of one committed step, in disjoint shards from all its neighbours at once."""

    __pydantic_config__ = PYDANTIC_CONFIG

    joiner: str
    generation: int
    """The overlay's generation when it was planned; the sources take their copy at the boundary at which that one takes effect."""
    state_bytes: int
    shard_bytes: int
    """Of the largest shard: they are equal but for a byte."""
    shares: tuple[ReplicationShare, ...]
    makespan_seconds: float
    """Predicted, from the boundary to the last byte (equation 2)."""
    lower_bound_seconds: float
    """No division of the state over these links can be faster."""

    @property
    def num_shards(self) -> int:
        """Into which the state is cut."""
        return -(-self.state_bytes // self.shard_bytes)

    def byte_range(self, share: ReplicationShare, num_bytes: int) -> tuple[int, int]:
        """First byte of a share, and the first one behind it, of a state that has `num_bytes`."""
        firsts = (share.first_shard, share.first_shard + share.num_shards)
        begin, end = (first * num_bytes // self.num_shards for first in firsts)
        return begin, end


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlay:
    """What everybody is to bring about."""

    __pydantic_config__ = PYDANTIC_CONFIG

    name: str
    generation: int
    term: int
    """Of the scheduler: words of one with a lower term are refused (it was thought dead, and another took over)."""
    workers: tuple[OverlayWorker, ...]
    links: tuple[OverlayLink, ...]
    synchronization: SynchronizationPolicy
    replications: tuple[Replication, ...] = ()
    """Those under way."""
    restarts: int = 0
    """The attempt: a higher number than the one an agent knows calls off the reduction under way, which is run again."""
    restarted: SynchronizationPolicy | None = None
    """The policy with which they were run again last, whatever came since: all begin again with the same one."""
    restarted_generation: int = 0
    """The generation that it belongs to; those after it take effect at a boundary."""
    scheduler: str = ""
    """Where the scheduler answers, once another one took over; empty: where it always was."""

    @property
    def num_run_again(self) -> int:
        """Reductions that were run again so far, without those that new schedulers ran again."""
        return self.restarts % UNHEARD_RESTARTS

    def worker(self, worker: str) -> OverlayWorker:
        """The worker of that id.

        Raises:
            NotFoundError: it is not in the overlay.
        """
        found = next((one for one in self.workers if one.id == worker), None)
        if found is None:
            raise NotFoundError("is not in the overlay; join first", field="worker", value=worker)
        return found

    def neighbors(self, worker: str) -> tuple[str, ...]:
        """Who shares a link with `worker`, connected or about to be."""
        ends = (link.between for link in self.links if worker in link.between)
        return tuple(b if a == worker else a for a, b in ends)


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
    """`worker`, and `teller`; the scheduler tells it itself where no heartbeat comes."""
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
    overlay: Overlay | None = None
    """The newest one that a new scheduler or its voters had seen: it goes on from there where its log ends earlier."""

    def __post_init__(self) -> None:
        checks.name("id", self.id)
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
        for counted in ("incarnation", "teller_incarnation", "generation", "restarts", "term", "step"):
            checks.non_negative(counted, getattr(self, counted) or 0)
        if self.alpha_seconds is not None:
            checks.seconds("alpha_seconds", self.alpha_seconds, at_most=checks.LONGEST_LATENCY_SECONDS)
        if self.beta_seconds_per_byte is not None:
            checks.beta("beta_seconds_per_byte", self.beta_seconds_per_byte)

    def _check_joining(self) -> None:
        self._require("address", "state_bytes", "shard_bytes")
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
