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
    disagreed_with: tuple[str, ...] = ()
    """Workers that failed with it, since they held different states and nobody could tell whose was right."""


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
