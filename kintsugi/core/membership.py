"""Who takes part: the events that change it, and the membership they lead to."""

from dataclasses import dataclass, replace
from enum import StrEnum

from kintsugi.core import checks
from kintsugi.core.cluster import Cluster, HostLink, Worker
from kintsugi.core.errors import InvalidInputError, NotFoundError, some
from kintsugi.core.profile import PYDANTIC_CONFIG


class EventKind(StrEnum):
    """What trainers and sites report."""

    WORKER_FAILED = "worker_failed"
    DEVICE_FAILED = "device_failed"
    HOST_FAILED = "host_failed"
    WORKER_JOINED = "worker_joined"
    HOST_JOINED = "host_joined"
    WORKER_DRAINING = "worker_draining"
    WORKER_STAYING = "worker_staying"
    """A worker that was to leave, and still has its state, stays after all."""
    STRAGGLER = "straggler"
    RECOVERED = "recovered"
    LINK_CONNECTED = "link_connected"
    LINK_DISCONNECTED = "link_disconnected"
    LINK_DEGRADED = "link_degraded"


WORKER_EVENTS = frozenset(
    {
        EventKind.WORKER_FAILED,
        EventKind.DEVICE_FAILED,
        EventKind.WORKER_JOINED,
        EventKind.WORKER_DRAINING,
        EventKind.WORKER_STAYING,
        EventKind.STRAGGLER,
        EventKind.RECOVERED,
    }
)
HOST_EVENTS = frozenset({EventKind.HOST_FAILED, EventKind.HOST_JOINED})
LINK_EVENTS = frozenset({EventKind.LINK_CONNECTED, EventKind.LINK_DISCONNECTED, EventKind.LINK_DEGRADED})
LOSSES = frozenset({EventKind.WORKER_FAILED, EventKind.DEVICE_FAILED, EventKind.HOST_FAILED, EventKind.WORKER_DRAINING})
RETURNS = frozenset({EventKind.WORKER_JOINED, EventKind.HOST_JOINED})
HEEDED = {
    "worker": WORKER_EVENTS,
    "host": WORKER_EVENTS | HOST_EVENTS,
    "link": LINK_EVENTS,
    "incarnation": WORKER_EVENTS,
    "deadline_seconds": frozenset({EventKind.WORKER_DRAINING}),
    "speed_ratio": frozenset({EventKind.STRAGGLER, EventKind.RECOVERED, EventKind.WORKER_JOINED}),
    "alpha_seconds": LINK_EVENTS,
    "beta_seconds_per_byte": LINK_EVENTS,
}
"""The kinds of events that each field says something of; to others it makes no difference."""
MEASUREMENT = ("alpha_seconds", "beta_seconds_per_byte")
"""Of a link: what it costs takes both."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened to a worker, a host or a link of a job."""

    __pydantic_config__ = PYDANTIC_CONFIG

    kind: EventKind
    id: str
    """Chosen by the reporter; an event with an id that was seen changes nothing."""
    generation: int
    """Of the plan that the reporter was told last, carried out or not."""
    worker: str | None = None
    host: str | None = None
    link: tuple[str, str] | None = None
    observed_at: str | None = None
    """RFC 3339, UTC."""
    incarnation: int = 0
    """Which process life of the worker is meant: what is told of an earlier one than is known changes nothing. 0 leaves it open."""
    deadline_seconds: float | None = None
    """worker_draining: how long the worker still serves; null: until it is let go; 0: it is lost at once."""
    speed_ratio: float | None = None
    """straggler, recovered, worker_joined: speed against the profile's.

    Where it may be missing it is 1; who comes back to its host without it is as fast as before.
    """
    alpha_seconds: float | None = None
    """link events: measured latency."""
    beta_seconds_per_byte: float | None = None
    """link events: measured inverse bandwidth."""
    detail: str = ""
    """For people; a long one loses its middle."""

    def __post_init__(self) -> None:
        checks.settle_choice(self, EventKind, "kind")
        checks.name("id", self.id)
        checks.settle_text(self, "detail")
        checks.non_negative("generation", self.generation)
        subject = "worker" if self.kind in WORKER_EVENTS else "host" if self.kind in HOST_EVENTS else "link"
        if getattr(self, subject) is None:
            raise InvalidInputError(f"is needed by an event of kind {self.kind.value}", field=subject)
        if self.kind is EventKind.STRAGGLER and self.speed_ratio is None:
            raise InvalidInputError("is needed by an event of kind straggler", field="speed_ratio")
        self._check_values()

    @property
    def unheeded(self) -> tuple[str, ...]:
        """Fields that say something which makes no difference: to an event of this kind, or without the rest of a measurement."""
        return tuple(field for field in HEEDED if getattr(self, field) not in (None, 0) and not self._heeds(field))

    def _heeds(self, field: str) -> bool:
        is_whole = field not in MEASUREMENT or all(getattr(self, part) is not None for part in MEASUREMENT)
        return is_whole and self.kind in HEEDED[field]

    def _check_values(self) -> None:
        checks.non_negative("incarnation", self.incarnation)
        for field in ("worker", "host"):
            if (name := getattr(self, field)) is not None:
                checks.name(field, name)
        if self.link is not None:
            checks.unique("link", self.link)
        if self.observed_at is not None:
            checks.timestamp("observed_at", self.observed_at)
        if self.deadline_seconds is not None:
            checks.seconds("deadline_seconds", self.deadline_seconds)
        if self.alpha_seconds is not None:
            checks.seconds("alpha_seconds", self.alpha_seconds, at_most=checks.LONGEST_LATENCY_SECONDS)
        if self.beta_seconds_per_byte is not None:
            checks.beta("beta_seconds_per_byte", self.beta_seconds_per_byte)
        if self.speed_ratio is not None:
            checks.speed_ratio("speed_ratio", self.speed_ratio)


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """The cluster as events have changed it, and which of its workers may be used."""

    __pydantic_config__ = PYDANTIC_CONFIG

    cluster: Cluster
    alive: tuple[str, ...]
    """Usable workers, in cluster order."""
    draining: tuple[str, ...] = ()
    """Workers that leave and still serve, in cluster order: they take no part any more, but others can fetch their state."""

    @classmethod
    def of(cls, cluster: Cluster) -> "Membership":
        """All workers of `cluster` alive."""
        return cls(cluster=cluster, alive=tuple(worker.id for worker in cluster.workers))

    def after(self, event: Event) -> "Membership":
        """The membership once `event` happened; unchanged when it says nothing new.

        A link event changes what the link costs where it brings measurements; a link that is connected again without
        any costs what the profile says. Reachability is not modelled: a disconnected link keeps its cost.

        Raises:
            NotFoundError: the event names a worker or host that the cluster does not have.
        """
        if event.kind in LOSSES:
            return self._without(
                set(self._subjects(event)), keeps_serving=event.kind is EventKind.WORKER_DRAINING and event.deadline_seconds != 0
            )
        if event.kind in RETURNS:
            return self._with(self._joining(event))
        if event.kind is EventKind.WORKER_STAYING:
            return self._with(tuple(self.cluster.by_id[worker] for worker in self._subjects(event) if worker in self.draining))
        if event.kind in (EventKind.STRAGGLER, EventKind.RECOVERED):
            return self._at_speed(event, event.speed_ratio or 1.0)
        return self._with_link(event)

    def bereft_by(self, event: Event) -> set[str]:
        """Workers whose state is gone once `event` happened: those that serve no more, and those that left and come anew.

        Raises:
            NotFoundError: the event names a worker or host that the cluster does not have.
        """
        after = self.after(event)
        lost = {*self.alive, *self.draining} - {*after.alive, *after.draining}
        anew = set(self.draining) & set(after.alive) if event.kind in RETURNS else set()
        return lost | anew

    def _without(self, gone: set[str], *, keeps_serving: bool) -> "Membership":
        leaving = set(self.draining) | gone & set(self.alive) if keeps_serving else set(self.draining) - gone
        return replace(
            self,
            alive=tuple(worker for worker in self.alive if worker not in gone),
            draining=tuple(worker.id for worker in self.cluster.workers if worker.id in leaving),
        )

    def _subjects(self, event: Event) -> tuple[str, ...]:
        if event.kind in WORKER_EVENTS:
            assert event.worker is not None
            if event.worker not in self.cluster.by_id:
                message = f"is no worker of the job's cluster; it has {some(self.cluster.by_id)}"
                raise NotFoundError(message, field="worker", value=event.worker)
            return (event.worker,)
        assert event.host is not None
        self._require_host("host", event.host)
        return self.cluster.workers_on(event.host)

    def _require_host(self, field: str, host: str) -> None:
        if host not in self.cluster.hosts:
            message = f"is no host of the job's cluster; it has {some(self.cluster.hosts)}"
            raise NotFoundError(message, field=field, value=host)

    def _joining(self, event: Event) -> tuple[Worker, ...]:
        if event.kind is EventKind.HOST_JOINED:
            return tuple(self.cluster.by_id[worker] for worker in self._subjects(event))
        assert event.worker is not None
        known = self.cluster.by_id.get(event.worker)
        if known is None or event.host not in (None, known.host):
            return (self._newcomer(event, known),)
        return (known if event.speed_ratio is None else replace(known, speed_ratio=event.speed_ratio),)

    def _newcomer(self, event: Event, known: Worker | None) -> Worker:
        """A worker on a host that it was not on before: in the failure domains of those who are there, if any are."""
        assert event.worker is not None
        host = event.host or f"h-{event.worker}"[: checks.LONGEST_NAME]
        neighbours = [self.cluster.by_id[worker] for worker in self.cluster.workers_on(host)]
        return Worker(
            id=event.worker,
            host=host,
            speed_ratio=event.speed_ratio or 1.0,
            memory_bytes=known.memory_bytes if known else None,
            failure_domains=neighbours[0].failure_domains if neighbours else (),
        )

    def _with(self, joining: tuple[Worker, ...]) -> "Membership":
        here = {worker.id: worker for worker in joining}
        new = tuple(worker for worker in joining if worker.id not in self.cluster.by_id)
        workers = (*(here.get(worker.id, worker) for worker in self.cluster.workers), *new)
        cluster = self.cluster if workers == self.cluster.workers else self.cluster.with_workers(workers)
        alive = {*self.alive, *here}
        return Membership(
            cluster=cluster,
            alive=tuple(worker.id for worker in cluster.workers if worker.id in alive),
            draining=tuple(worker for worker in self.draining if worker not in here),
        )

    def _with_link(self, event: Event) -> "Membership":
        assert event.link is not None
        for host in event.link:
            self._require_host("link", host)
        others = tuple(link for link in self.cluster.links if set(link.between) != set(event.link))
        if event.alpha_seconds is not None and event.beta_seconds_per_byte is not None:
            measured = HostLink(
                between=event.link, alpha_seconds=event.alpha_seconds, beta_seconds_per_byte=event.beta_seconds_per_byte
            )
            return replace(self, cluster=replace(self.cluster, links=(*others, measured)))
        if event.kind is EventKind.LINK_CONNECTED and len(others) < len(self.cluster.links):
            return replace(self, cluster=replace(self.cluster, links=others))
        return self

    def _at_speed(self, event: Event, speed_ratio: float) -> "Membership":
        subjects = set(self._subjects(event))
        workers = tuple(replace(w, speed_ratio=speed_ratio) if w.id in subjects else w for w in self.cluster.workers)
        return replace(self, cluster=self.cluster.with_workers(workers))
