"""An overlay as it is drawn: workers on a circle, links between them, what goes over which, and how everybody is."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from api.dashboard.formats import ABSENT, count, seconds, size
from kintsugi.core.overlay import (
    LinkState,
    Overlay,
    OverlayLink,
    OverlayWorker,
    Replication,
    Shape,
    SynchronizationPolicy,
    WorkerState,
)
from kintsugi.core.overlay_messages import OverlaySign, OverlaySigns

WIDTH, HEIGHT = 720.0, 480.0
NODE_RADIUS = 17.0
MARGIN_X, MARGIN_Y = 92.0, 58.0
MOST_LABELS = 8
"""Links above which the picture says latency and rate only of those that are used; the table says it of all."""
MANY_WORKERS = 28
"""Above this, workers are drawn smaller."""
LONGEST_NAME = 14
MARKS = {
    WorkerState.ACTIVE: "",
    WorkerState.JOINING: "+",
    WorkerState.DRAINING: "→",
    WorkerState.STANDBY: "S",
    WorkerState.FAILED: "✕",
}
"""One character that says the state without colour."""
MEANINGS = {
    WorkerState.ACTIVE: "active",
    WorkerState.JOINING: "joining",
    WorkerState.DRAINING: "draining",
    WorkerState.STANDBY: "stands by",
    WorkerState.FAILED: "failed",
}
ROOT_MARK = "R"


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A worker in the picture and in the table."""

    worker: OverlayWorker
    x: float
    y: float
    label: str
    mark: str
    role: str
    """What it does in the reduction, in words."""
    neighbors: str
    sign: OverlaySign | None
    can_leave: bool

    @property
    def words(self) -> str:
        """All about it in one sentence."""
        detail = f": {self.worker.detail}" if self.worker.detail else ""
        return f"{self.worker.id} is {MEANINGS[self.worker.state]}{detail}. {self.role}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """A link in the picture and in the table."""

    link: OverlayLink
    x1: float
    y1: float
    x2: float
    y2: float
    kind: str
    """`idle`, `wanted`, `used` by the reduction, or `heard` by a joining worker."""
    carries: bool
    """Whether shards of the state go over it."""
    use: str
    label: str
    """Latency and rate; empty where the picture has no room for it, or they are not measured."""

    @property
    def label_x(self) -> float:
        """Nearer to one end than to the other, so that the labels of links that cross lie apart."""
        return self.x1 + 0.42 * (self.x2 - self.x1)

    @property
    def label_y(self) -> float:
        """As `label_x`."""
        return self.y1 + 0.42 * (self.y2 - self.y1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetching:
    """A replication under way."""

    replication: Replication
    sources: str
    received_bytes: int | None
    """None where the joining worker did not say."""

    @property
    def received_ratio(self) -> float | None:
        """Share of the state that has arrived, 0..1."""
        return None if self.received_bytes is None else min(1.0, self.received_bytes / self.replication.state_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """Everything that the page shows."""

    overlay: Overlay
    width: float
    height: float
    radius: float
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    fetching: tuple[Fetching, ...]
    measured_seconds: float | None
    """Median of what the workers tell of their all-reduces."""

    def num(self, *states: str) -> int:
        """How many workers are in one of `states`."""
        return sum(1 for worker in self.overlay.workers if worker.state.value in states)

    @property
    def num_up(self) -> int:
        """Connected links."""
        return sum(1 for link in self.overlay.links if link.state is LinkState.UP)

    @property
    def states(self) -> tuple[tuple[str, str, str], ...]:
        """States in the picture, with their marks and meanings."""
        seen = {worker.state for worker in self.overlay.workers}
        return tuple((state.value, MARKS[state] or " ", MEANINGS[state]) for state in WorkerState if state in seen)

    @property
    def kinds(self) -> frozenset[str]:
        """Kinds of links in the picture."""
        return frozenset(edge.kind for edge in self.edges) | ({"carries"} if any(e.carries for e in self.edges) else set())

    @property
    def title(self) -> str:
        """The picture in a sentence, for those who do not see it."""
        policy = self.overlay.synchronization
        return (
            f"{count(len(self.nodes), 'worker')} and {count(len(self.edges), 'link')}; "
            f"{count(len(policy.order), 'worker')} reduce over a {policy.shape.value}."
        )


def picture_of(overlay: Overlay, signs: OverlaySigns, *, may_leave: bool) -> Picture:
    """The picture of an overlay. O(workers + links).

    Args:
        overlay: the present one.
        signs: what was heard of its workers.
        may_leave: whether the caller may ask workers to leave.
    """
    told = {sign.heartbeat.worker: sign for sign in signs.signs}
    places = _places(_around(overlay))
    links = used_links(overlay.synchronization)
    sending = {frozenset((r.joiner, share.source)) for r in overlay.replications for share in r.shares}
    has_labels = len(overlay.links) <= MOST_LABELS
    times = [sign.heartbeat.synchronization_seconds for sign in told.values()]
    return Picture(
        overlay=overlay,
        width=WIDTH,
        height=HEIGHT,
        radius=NODE_RADIUS if len(overlay.workers) <= MANY_WORKERS else NODE_RADIUS / 2,
        nodes=tuple(_node(overlay, worker, places, told, may_leave) for worker in overlay.workers),
        edges=tuple(_edge(link, places, links, sending, has_labels) for link in overlay.links),
        fetching=tuple(_fetching(replication, told) for replication in overlay.replications),
        measured_seconds=median(found) if (found := [time for time in times if time is not None]) else None,
    )


def used_links(policy: SynchronizationPolicy) -> dict[frozenset[str], str]:
    """What the policy does with a link, by its ends: `used` or `heard`."""
    ring = policy.shape is Shape.RING and len(policy.order) > 1
    links = {frozenset((policy.order[i - 1], worker)): "used" for i, worker in enumerate(policy.order)} if ring else {}
    for worker, parent in policy.parents.items():
        links[frozenset((worker, parent))] = "heard" if worker in policy.listeners else "used"
    return links


def _around(overlay: Overlay) -> list[str]:
    """Workers in the order in which they stand on the circle: those who reduce first, as they do."""
    order = list(overlay.synchronization.order)
    return order + [worker.id for worker in overlay.workers if worker.id not in order]


def _places(workers: Sequence[str]) -> dict[str, tuple[float, float]]:
    """Points on an ellipse, the first one above, clockwise."""
    middle_x, middle_y = WIDTH / 2, HEIGHT / 2
    if len(workers) == 1:
        return {workers[0]: (middle_x, middle_y)}
    angles = [2 * math.pi * index / len(workers) - math.pi / 2 for index in range(len(workers))]
    return {
        worker: (middle_x + (middle_x - MARGIN_X) * math.cos(angle), middle_y + (middle_y - MARGIN_Y) * math.sin(angle))
        for worker, angle in zip(workers, angles, strict=True)
    }


def _node(
    overlay: Overlay,
    worker: OverlayWorker,
    places: Mapping[str, tuple[float, float]],
    told: Mapping[str, OverlaySign],
    may_leave: bool,
) -> Node:
    x, y = places[worker.id]
    is_root = overlay.synchronization.shape is Shape.TREE and overlay.synchronization.order[:1] == (worker.id,)
    return Node(
        worker=worker,
        x=x,
        y=y,
        label=worker.id if len(worker.id) <= LONGEST_NAME else f"…{worker.id[1 - LONGEST_NAME :]}",
        mark=MARKS[worker.state] or (ROOT_MARK if is_root else ""),
        role=_role(overlay.synchronization, worker.id),
        neighbors=", ".join(overlay.neighbors(worker.id)) or ABSENT,
        sign=told.get(worker.id),
        can_leave=may_leave and worker.state in (WorkerState.ACTIVE, WorkerState.JOINING, WorkerState.STANDBY),
    )


def _role(policy: SynchronizationPolicy, worker: str) -> str:
    if worker in policy.listeners:
        return f"Listens to {policy.parents[worker]}."
    if worker not in policy.order:
        return "Takes no part in the reduction."
    if policy.shape is Shape.RING:
        following = policy.order[(policy.order.index(worker) + 1) % len(policy.order)]
        return f"Sends to {following} in the ring."
    parent = policy.parents.get(worker)
    return "Root of the tree." if parent is None else f"Reduces to {parent}."


def _edge(
    link: OverlayLink,
    places: Mapping[str, tuple[float, float]],
    links: Mapping[frozenset[str], str],
    sending: set[frozenset[str]],
    has_label: bool,
) -> Edge:
    ends = frozenset(link.between)
    (x1, y1), (x2, y2) = (places[end] for end in link.between)
    kind = "wanted" if link.state is LinkState.CONNECTING else links.get(ends, "idle")
    carries = ends in sending
    uses = {"wanted": "connecting", "used": "reduction", "heard": "reduced gradients to a joining worker"}
    use = [uses[kind]] if kind in uses else []
    use += ["shards of the state"] if carries else []
    return Edge(
        link=link,
        x1=x1,
        y1=y1,
        x2=x2,
        y2=y2,
        kind=kind,
        carries=carries,
        use=", ".join(use) or ABSENT,
        label=f"{seconds(link.alpha_seconds)} · {rate_words(link)}" if link.is_measured and (use or has_label) else "",
    )


def rate_words(link: OverlayLink) -> str:
    """What a link carries in a second."""
    if link.beta_seconds_per_byte is None:
        return ABSENT
    return "no limit" if link.beta_seconds_per_byte == 0 else f"{size(1 / link.beta_seconds_per_byte)}/s"


def _fetching(replication: Replication, told: Mapping[str, OverlaySign]) -> Fetching:
    shards: dict[str, int] = {}
    for share in replication.shares:
        shards[share.source] = shards.get(share.source, 0) + share.num_shards
    sign = told.get(replication.joiner)
    return Fetching(
        replication=replication,
        sources=", ".join(f"{source} ({count(shards[source], 'shard')})" for source in shards),
        received_bytes=None if sign is None else sign.heartbeat.received_bytes,
    )
