"""Signs of life in memory: who was heard when, by a monotonic clock, and who has been silent for too long."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from api.jobs.history import History
from api.records import JobState
from api.texts import as_name
from kintsugi.core.errors import NotFoundError, StaleIncarnationError
from kintsugi.core.heartbeats import HeartbeatAnswer, Heartbeats
from kintsugi.core.membership import Event, EventKind, Membership

PATIENCE_RATIO = 1.25
"""Of its timeout: how long a silent worker waits for others that fell silent with it, so that all get one decision."""
MISSED_BEATS = 2.0
"""A host that is late by so many of its own periods may be about to be declared, too."""


@dataclass(slots=True)
class Listened:
    """One job that heartbeats come from: its living workers, and when each was heard last."""

    job: str
    timeout_seconds: float | None
    generation: int = -1
    number: int = 0
    """Of the last log entry that was looked at."""
    host_of: Mapping[str, str] = field(default_factory=dict)
    """Of every worker of the cluster."""
    membership: Membership | None = None
    """As it was looked at last."""
    incarnations: Mapping[str, int] = field(default_factory=dict)
    lost_at: Mapping[str, int] = field(default_factory=dict)
    """Number of the log entry that told of each worker's last loss."""
    heard: dict[str, float] = field(default_factory=dict)
    """When each living worker was heard last, or when it was first listened for, in seconds."""
    heard_here: dict[str, float] = field(default_factory=dict)
    """When each of them gave a sign of life to this process last, in seconds."""
    beats: dict[str, float] = field(default_factory=dict)
    """When each host sent its last heartbeat."""
    periods: dict[str, float] = field(default_factory=dict)
    """Between the last two heartbeats of each host, in seconds."""

    def look(self, state: JobState, now: float) -> None:
        """Take over who lives by the job's log; whoever is new, or on another host, has the whole timeout."""
        history, membership = state.history, state.history.membership
        self.generation, self.number, self.membership = history.generation, history.number, membership
        lives, self.incarnations, self.lost_at = self.incarnations, history.incarnations, history.lost_at
        before, self.host_of = self.host_of, {worker.id: worker.host for worker in membership.cluster.workers}
        moved = {worker for worker, host in before.items() if self.host_of.get(worker) != host}
        self.heard = {worker: now if worker in moved else self.heard.get(worker, now) for worker in membership.alive}
        anew = {worker for worker, life in self.incarnations.items() if lives.get(worker, 0) != life}
        self.heard_here = {worker: at for worker, at in self.heard_here.items() if worker in self.heard.keys() - moved - anew}

    def is_behind(self, history: History) -> bool:
        """Whether something was logged since the last look that may change who is listened to, with or without a new plan."""
        is_of_now = self.membership is history.membership and self.incarnations is history.incarnations
        return not is_of_now or self.generation != history.generation

    def knows(self, heartbeats: Heartbeats) -> bool:
        """Whether these are living workers in lives that are known: nothing need be looked up."""
        if not self.heard.keys() >= set(heartbeats.workers):
            return False
        known = self.incarnations
        return all(number >= known.get(worker, 0) for worker, number in heartbeats.incarnations.items()) and (
            not known or all(heartbeats.incarnations.get(worker, 0) >= known.get(worker, 0) for worker in heartbeats.workers)
        )

    def hear(self, heartbeats: Heartbeats, now: float) -> HeartbeatAnswer:
        """Remember that workers live.

        Raises:
            NotFoundError: one is no worker of that host; none was heard.
            StaleIncarnationError: some were declared lost, or lost and replaced; the others were heard.
        """
        for index, worker in enumerate(heartbeats.workers):
            if self.host_of.get(worker) != heartbeats.host:
                message = f"is no worker of host {heartbeats.host!r} in this job's cluster"
                raise NotFoundError(message, field=f"workers[{index}]", value=worker)
        stale = [worker for worker in heartbeats.workers if self._is_stale(worker, heartbeats.incarnations.get(worker, 0))]
        if living := [worker for worker in heartbeats.workers if worker not in stale]:
            self._heard_of(heartbeats.host, living, now)
        if stale:
            raise StaleIncarnationError(
                "were declared lost; report worker_joined with an incarnation above the last known one, and begin anew",
                incarnations={worker: self.incarnations.get(worker, 0) for worker in stale},
            )
        return HeartbeatAnswer(generation=self.generation, timeout_seconds=self.timeout_seconds)

    def lost(self, now: float) -> list[str]:
        """Workers to be declared lost now: silent for the timeout, and nobody is about to join them."""
        if self.timeout_seconds is None:
            return []
        timeout = self.timeout_seconds
        if now - min(self.heard.values(), default=now) <= timeout:
            return []
        silences = {worker: now - heard for worker, heard in self.heard.items()}
        others_are_late = any(MISSED_BEATS * self._period(worker) < seconds <= timeout for worker, seconds in silences.items())
        if others_are_late and max(silences.values()) < PATIENCE_RATIO * timeout:
            return []
        return [worker for worker, seconds in silences.items() if seconds > timeout]

    def events(self, lost: Sequence[str], now: float, observed_at: str) -> tuple[Event, ...]:
        """The loss of workers as it is logged: by host where nobody of it is left.

        The ids depend on who is lost, on the generation and on their last loss alone, so that what two processes see is logged
        once, and who came back while there was no plan is lost again.
        """
        found: list[Event] = []
        by_host = self.host_of.__getitem__
        living = {host: len(list(workers)) for host, workers in groupby(sorted(self.heard, key=by_host), key=by_host)}
        for host, group in groupby(sorted(lost, key=by_host), key=by_host):
            workers = list(group)
            if len(workers) == living[host] > 1:
                found.append(self._event(EventKind.HOST_FAILED, host, workers, now, observed_at))
            else:
                found += [self._event(EventKind.WORKER_FAILED, w, [w], now, observed_at) for w in workers]
        return tuple(found)

    def forgive(self, seconds: float, now: float) -> None:
        """Time in which the service itself did not listen is nobody's silence; nobody was heard later than now."""
        self.heard = {worker: min(heard + seconds, now) for worker, heard in self.heard.items()}

    def _heard_of(self, host: str, workers: Sequence[str], now: float) -> None:
        self.heard |= dict.fromkeys(workers, now)
        self.heard_here |= dict.fromkeys(workers, now)
        if host in self.beats:
            self.periods[host] = now - self.beats[host]
        self.beats[host] = now

    def _is_stale(self, worker: str, incarnation: int) -> bool:
        return worker not in self.heard or incarnation < self.incarnations.get(worker, 0)

    def _period(self, worker: str) -> float:
        return self.periods.get(self.host_of[worker], float("inf"))

    def _event(self, kind: EventKind, subject: str, workers: Sequence[str], now: float, observed_at: str) -> Event:
        silence = now - max(self.heard[worker] for worker in workers)
        last_loss = max(self.lost_at.get(worker, 0) for worker in workers)
        is_host = kind is EventKind.HOST_FAILED
        return Event(
            kind=kind,
            id=as_name(f"silent {subject} {self.generation}{f' since {last_loss}' if last_loss else ''}"),
            generation=self.generation,
            worker=None if is_host else subject,
            host=subject if is_host else None,
            incarnation=0 if is_host else self.incarnations.get(subject, 0),
            observed_at=observed_at,
            detail=f"no heartbeat for {silence:.1f} s; the job's timeout is {self.timeout_seconds:g} s",
        )
