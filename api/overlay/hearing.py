"""Signs of life of one overlay's workers in memory: who was heard when, by a monotonic clock, and who fell silent."""

from dataclasses import dataclass, field

from api.texts import as_name
from kintsugi.core.errors import NotFoundError
from kintsugi.core.overlay import LinkState, Overlay, OverlayWorker, WorkerState
from kintsugi.core.overlay_messages import OverlayEvent, OverlayEventKind, OverlayHeartbeat, OverlaySign, OverlaySigns
from planner.overlay.membership import stale
from planner.overlay.topology import PRESENT, find_worker

LINK_PATIENCE_RATIO = 3.0
"""Of the heartbeats' timeout: how long a wanted link may take until it is connected."""


@dataclass(slots=True)
class Hearing:
    """What is heard of one overlay."""

    overlay: Overlay
    heard: dict[str, float] = field(default_factory=dict)
    """When each present worker was heard last, or first listened for, in seconds."""
    heard_here: dict[str, float] = field(default_factory=dict)
    """When each of them gave a sign of life to this process last, in seconds."""
    lives: dict[str, int] = field(default_factory=dict)
    """Incarnation of each of them."""
    signs: dict[str, OverlaySign] = field(default_factory=dict)
    wanted: dict[tuple[str, str], tuple[int, float]] = field(default_factory=dict)
    """Links that are to be connected: in which generation they came to be wanted, and when that was seen, in seconds."""

    @property
    def number(self) -> int:
        """Of the overlay that was looked at last."""
        return self.overlay.generation

    def look(self, overlay: Overlay, now: float) -> None:
        """Take over who is there; whoever is new, or lives anew, has the whole timeout."""
        if overlay.generation < self.overlay.generation and overlay.term <= self.overlay.term:
            return
        self.overlay = overlay
        lives = {worker.id: worker.incarnation for worker in overlay.workers if worker.state in PRESENT}
        known = {worker for worker, life in lives.items() if self.lives.get(worker) == life}
        self.heard = {worker: self.heard[worker] if worker in known else now for worker in lives}
        self.heard_here = {worker: at for worker, at in self.heard_here.items() if worker in known}
        self.signs = {worker: sign for worker, sign in self.signs.items() if worker in known}
        self.lives = lives
        wanted = {link.between: link.generation for link in overlay.links if link.state is LinkState.CONNECTING}
        same = {between for between, since in wanted.items() if self.wanted.get(between, (None, 0.0))[0] == since}
        self.wanted = {b: self.wanted[b] if b in same else (since, now) for b, since in wanted.items()}

    def hear(self, heartbeat: OverlayHeartbeat, now: float, heard_at: str) -> None:
        """Remember that a worker lives.

        Raises:
            NotFoundError: it is not in the overlay.
            StaleIncarnationError: that life of it was declared lost, or it joined anew since.
        """
        worker = find_worker(self.overlay, heartbeat.worker)
        if worker is None:
            raise NotFoundError("is not in the overlay; join first", field="worker", value=heartbeat.worker)
        require_life(worker, heartbeat.incarnation)
        if worker.id in self.heard:
            self.heard[worker.id] = self.heard_here[worker.id] = now
        self.signs[worker.id] = OverlaySign(heartbeat=heartbeat, heard_at=heard_at)

    def lost(self, now: float, timeout_seconds: float) -> list[OverlayEvent]:
        """What is to be logged now: workers that were silent for the timeout, and wanted links that nobody connected."""
        silent = [worker for worker, heard in self.heard.items() if now - heard > timeout_seconds]
        patience = LINK_PATIENCE_RATIO * timeout_seconds
        late = [(between, since) for between, (since, seen) in self.wanted.items() if now - seen > patience]
        return [self._silent(worker, now) for worker in silent] + [_unconnected(*one, patience) for one in late]

    def synchronization_seconds(self) -> dict[str, float]:
        """What was told of the all-reduces, by worker."""
        told = {worker: sign.heartbeat.synchronization_seconds for worker, sign in self.signs.items()}
        return {worker: seconds for worker, seconds in told.items() if seconds is not None}

    def as_signs(self) -> OverlaySigns:
        """What was heard of everybody, in the overlay's order."""
        return OverlaySigns(signs=tuple(self.signs[one.id] for one in self.overlay.workers if one.id in self.signs))

    def forgive(self, seconds: float, now: float) -> None:
        """Time in which the service itself did not listen is nobody's silence; nobody was heard later than now."""
        self.heard = {worker: min(heard + seconds, now) for worker, heard in self.heard.items()}
        self.wanted = {between: (since, min(seen + seconds, now)) for between, (since, seen) in self.wanted.items()}

    def _silent(self, worker: str, now: float) -> OverlayEvent:
        life = self.lives[worker]
        return OverlayEvent(
            kind=OverlayEventKind.WORKER_FAILED,
            id=as_name(f"silent {life} {worker}"),
            worker=worker,
            incarnation=life,
            detail=f"no heartbeat for {now - self.heard[worker]:.1f} s",
        )


def require_life(worker: OverlayWorker, incarnation: int) -> None:
    """Require that a worker speaks in its present life.

    Raises:
        StaleIncarnationError: that life is over.
    """
    if worker.state is WorkerState.FAILED or incarnation < worker.incarnation:
        raise stale(worker)


def _unconnected(between: tuple[str, str], since: int, patience_seconds: float) -> OverlayEvent:
    return OverlayEvent(
        kind=OverlayEventKind.LINK_DISCONNECTED,
        id=as_name(f"unconnected {since} {' '.join(between)}"),
        link=between,
        generation=since,
        detail=f"was not connected within {patience_seconds:g} s",
    )
