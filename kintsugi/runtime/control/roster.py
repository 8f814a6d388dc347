"""The workers of a job by name: their process lives, and the events that tell of them."""

from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from uuid import uuid4

from kintsugi.core import checks
from kintsugi.core.cluster import Cluster
from kintsugi.core.membership import Event, EventKind, Membership
from kintsugi.runtime.control.decisions import JobRequest


class Roster:
    """Writes every event of one run; knows the cluster as joining workers have widened it."""

    def __init__(self, request: JobRequest) -> None:
        self._request = request
        self._membership = Membership.of(request.cluster)
        self._run_id = uuid4().hex[:12]
        self._incarnations: Counter[str] = Counter()
        self._hosts: dict[str, str | None] = {}
        self._num_events = 0
        self._num_restarts = 0

    @property
    def cluster(self) -> Cluster:
        """All workers that were ever part of the job."""
        return self._membership.cluster

    def failed(self, worker: str, detail: str = "") -> Event:
        """The event of a loss; its generation is filled in when it is told."""
        return self._event(EventKind.WORKER_FAILED, worker, detail=detail)

    def draining(self, worker: str) -> Event:
        """The event of a worker that leaves once others have its state."""
        return self._event(EventKind.WORKER_DRAINING, worker, detail="asked to leave")

    def staying(self, worker: str) -> Event:
        """The event of a worker that was asked to leave and cannot be done without."""
        return self._event(EventKind.WORKER_STAYING, worker, detail="no plan without it")

    def live(self, worker: str, host: str | None) -> None:
        """Say where a worker lives that is new to the job; with null it has a host of its own."""
        self._hosts[worker] = host

    def joined(self, worker: str) -> Event:
        """The event of a new process life."""
        self._incarnations[worker] += 1
        event = self._event(EventKind.WORKER_JOINED, worker, host=self._hosts.get(worker))
        self._membership = self._membership.after(event)
        return event

    def _event(self, kind: EventKind, worker: str, *, host: str | None = None, detail: str = "") -> Event:
        self._num_events += 1
        return Event(
            kind=kind,
            id=f"{self._run_id}-{self._num_events}-{worker}"[: checks.LONGEST_NAME],  # its beginning alone tells it apart
            generation=0,
            worker=worker,
            host=host,
            incarnation=self._incarnations[worker],
            detail=detail,
        )

    def restart(self, alive: Collection[str]) -> JobRequest:
        """The request of a job in which nothing was trained yet, for the workers that are left."""
        self._num_restarts += 1
        workers = tuple(worker for worker in self.cluster.workers if worker.id in alive)
        name = f"{self._request.name}.restart{self._num_restarts}"
        return replace(self._request, name=name, cluster=self.cluster.with_workers(workers), plan=None)
