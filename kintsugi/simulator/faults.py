"""What happens to workers, and when: drawn from exponential distributions, deterministic by seed."""

import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from kintsugi.core import checks
from kintsugi.core.cluster import Cluster, Worker
from kintsugi.core.errors import InvalidInputError

HOST_PREFIX = "h-"
"""Of the names of hosts that come with a worker of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """How often workers and hosts fail or slow down; all times between events are exponentially distributed."""

    worker_mtbf_seconds: float | None = None
    """Of each worker while it is there; null: workers do not fail by themselves."""
    host_mtbf_seconds: float | None = None
    """Of each host, with all its workers."""
    repair_seconds: float | None = None
    """Mean time until what failed is back; null: it never is."""
    num_failures: int | None = None
    """Exactly so many failures of hosts, at times that are uniformly distributed, in the place of the two rates."""
    straggler_mtbf_seconds: float | None = None
    """Of each worker until it becomes slow."""
    straggler_seconds: float = 3600.0
    """Mean time for which it stays slow."""
    straggler_speed_ratio: float = 0.7

    def __post_init__(self) -> None:
        for name in ("worker_mtbf_seconds", "host_mtbf_seconds", "repair_seconds", "num_failures", "straggler_mtbf_seconds"):
            if getattr(self, name) is not None:
                checks.positive(name, getattr(self, name))
        checks.positive("straggler_seconds", self.straggler_seconds)
        checks.speed_ratio("straggler_speed_ratio", self.straggler_speed_ratio)
        if self.num_failures is not None and (self.worker_mtbf_seconds or self.host_mtbf_seconds):
            raise InvalidInputError(
                "contradicts worker_mtbf_seconds and host_mtbf_seconds; give one or the other",
                field="num_failures",
                value=self.num_failures,
            )

    @property
    def are_drawn(self) -> bool:
        """Whether anything happens at all, and so whether the seed decides anything."""
        causes = (self.worker_mtbf_seconds, self.host_mtbf_seconds, self.num_failures, self.straggler_mtbf_seconds)
        return any(cause is not None for cause in causes)

    def mtbf_seconds(self, num_workers: int, workers_per_host: int, duration_seconds: float) -> float:
        """Mean time between failures of a job on so many workers; infinite without failures."""
        rate = 0.0
        if self.num_failures is not None:
            return duration_seconds / self.num_failures
        if self.worker_mtbf_seconds is not None:
            rate += num_workers / self.worker_mtbf_seconds
        if self.host_mtbf_seconds is not None:
            rate += num_workers / workers_per_host / self.host_mtbf_seconds
        return 1 / rate if rate else float("inf")

    def expected_incidents(self, num_workers: int, num_hosts: int, duration_seconds: float) -> float:
        """About how many `Incident`s are drawn in the mean, infinite where nothing takes any time."""
        slow = 2 * duration_seconds / (self.straggler_mtbf_seconds + self.straggler_seconds) if self.straggler_mtbf_seconds else 0.0
        alone = self._expected_failures(self.worker_mtbf_seconds, duration_seconds)
        together = self._expected_failures(self.host_mtbf_seconds, duration_seconds)
        return 2 * (num_workers * alone + num_hosts * together + (self.num_failures or 0)) + num_workers * slow

    def _expected_failures(self, mtbf_seconds: float | None, duration_seconds: float) -> float:
        """Of one worker or host; without repair it fails once at the most."""
        if mtbf_seconds is None:
            return 0.0
        if self.repair_seconds is None:
            return min(1.0, duration_seconds / mtbf_seconds)
        return duration_seconds / (mtbf_seconds + self.repair_seconds)

    def workers_per_failure(self, workers_per_host: int) -> float:
        """Workers that a failure takes in the mean."""
        alone = 1 / self.worker_mtbf_seconds if self.worker_mtbf_seconds else 0.0
        together = 1 / self.host_mtbf_seconds if self.host_mtbf_seconds else 0.0
        if not alone + together:
            return float(workers_per_host)
        return (alone + together) / (alone + together / workers_per_host)

    def scaled(self, mtbf_seconds: float, num_workers: int, workers_per_host: int) -> "Faults":
        """The same kinds of failures, so often that a job on so many workers fails every `mtbf_seconds` in the mean."""
        rates = replace(self, num_failures=None)
        if self.worker_mtbf_seconds is None and self.host_mtbf_seconds is None:
            rates = replace(rates, worker_mtbf_seconds=float(num_workers))
        ratio = mtbf_seconds / rates.mtbf_seconds(num_workers, workers_per_host, 1.0)
        return replace(
            rates,
            worker_mtbf_seconds=rates.worker_mtbf_seconds and rates.worker_mtbf_seconds * ratio,
            host_mtbf_seconds=rates.host_mtbf_seconds and rates.host_mtbf_seconds * ratio,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """What happens at one moment."""

    at_seconds: float
    lost: tuple[str, ...] = ()
    joined: tuple[str, ...] = ()
    """Workers that come, or come back, without any state."""
    speeds: tuple[tuple[str, float], ...] = field(default=())
    """New speed ratios."""
    notice_seconds: float = 0.0
    """How long before the loss it was announced."""


def newcomer(name: str) -> Worker:
    """A worker that nobody knew at the beginning, alone on its host."""
    return Worker(id=name, host=f"{HOST_PREFIX}{name}")


def draw(faults: Faults, cluster: Cluster, duration_seconds: float, seed: int) -> tuple[Incident, ...]:
    """Everything that happens to the workers of `cluster`, in order of time.

    Every worker and host has a random stream of its own, named by the seed and its id, so that another number of spares
    changes nothing for the others. What is broken does not fail again before it is repaired.

    Raises:
        InvalidInputError: more hosts would fail than are there.
    """
    events: list[Incident] = []
    if faults.num_failures is not None:
        events += _exactly(faults, cluster, duration_seconds, seed)
    for host in cluster.hosts if faults.host_mtbf_seconds else ():
        events += _failing(
            cluster.workers_on(host), faults.host_mtbf_seconds, faults.repair_seconds, duration_seconds, f"{seed}/{host}"
        )
    for worker in cluster.workers:
        events += _failing((worker.id,), faults.worker_mtbf_seconds, faults.repair_seconds, duration_seconds, f"{seed}/{worker.id}")
        events += _slowing(worker.id, faults, duration_seconds, f"{seed}/slow {worker.id}")
    return settled(events)


def _failing(
    workers: tuple[str, ...], mtbf_seconds: float | None, repair_seconds: float | None, duration_seconds: float, stream: str
) -> Iterator[Incident]:
    """Failures and repairs of workers that fail together."""
    if mtbf_seconds is None:
        return
    chance, now = random.Random(stream), 0.0
    while (now := now + chance.expovariate(1 / mtbf_seconds)) < duration_seconds:
        yield Incident(at_seconds=now, lost=workers)
        if repair_seconds is None or (now := now + chance.expovariate(1 / repair_seconds)) >= duration_seconds:
            return
        yield Incident(at_seconds=now, joined=workers)


def _slowing(worker: str, faults: Faults, duration_seconds: float, stream: str) -> Iterator[Incident]:
    if faults.straggler_mtbf_seconds is None:
        return
    chance, now = random.Random(stream), 0.0
    while (now := now + chance.expovariate(1 / faults.straggler_mtbf_seconds)) < duration_seconds:
        yield Incident(at_seconds=now, speeds=((worker, faults.straggler_speed_ratio),))
        now += chance.expovariate(1 / faults.straggler_seconds)
        yield Incident(at_seconds=now, speeds=((worker, 1.0),))


def _exactly(faults: Faults, cluster: Cluster, duration_seconds: float, seed: int) -> Iterator[Incident]:
    """So many failures of hosts that are there at the time: a Poisson process, given its number of events."""
    assert faults.num_failures is not None
    chance = random.Random(f"{seed}/exactly")
    back: dict[str, float] = {}
    for now in sorted(chance.uniform(0, duration_seconds) for _ in range(faults.num_failures)):
        there = [host for host in cluster.hosts if back.get(host, 0.0) <= now]
        if not there:
            raise InvalidInputError(
                f"leaves no host to fail: all {len(cluster.hosts)} are broken at {now:g} s; "
                "ask for fewer failures, for more hosts, or for a faults.repair_seconds that brings them back in time",
                field="faults.num_failures",
                value=faults.num_failures,
            )
        host = chance.choice(there)
        workers = cluster.workers_on(host)
        yield Incident(at_seconds=now, lost=workers)
        back[host] = float("inf")
        if faults.repair_seconds is not None:
            back[host] = now + chance.expovariate(1 / faults.repair_seconds)
            yield Incident(at_seconds=back[host], joined=workers)


def settled(events: Iterable[Incident]) -> tuple[Incident, ...]:
    """Incidents in order of time, those of one moment as one; a worker is lost or joins only where that changes something.

    A worker that several causes took away is back when the last of them is mended.
    """
    by_time: dict[float, list[Incident]] = defaultdict(list)
    for event in events:
        by_time[event.at_seconds].append(event)
    missing: dict[str, int] = defaultdict(int)
    result = []
    for now in sorted(by_time):
        merged = _merged(by_time[now], missing)
        if merged.lost or merged.joined or merged.speeds:
            result.append(merged)
    return tuple(result)


def _merged(events: Sequence[Incident], missing: dict[str, int]) -> Incident:
    """One moment's events as one; `missing` counts the causes that keep each worker away."""
    before = {worker: missing[worker] for event in events for worker in (*event.lost, *event.joined)}
    for event in events:
        for worker in event.lost:
            missing[worker] += 1
        for worker in event.joined:
            missing[worker] = max(0, missing[worker] - 1)
    return Incident(
        at_seconds=events[0].at_seconds,
        lost=tuple(sorted(worker for worker, count in before.items() if not count and missing[worker])),
        joined=tuple(sorted(worker for worker, count in before.items() if count and not missing[worker])),
        speeds=tuple(sorted(pair for event in events for pair in event.speeds)),
        notice_seconds=min(event.notice_seconds for event in events if event.lost) if any(e.lost for e in events) else 0.0,
    )
