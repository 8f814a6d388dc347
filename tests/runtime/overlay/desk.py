"""A scheduler in this process: the service's own negotiation, without HTTP and without a database."""

import threading
from dataclasses import replace
from datetime import UTC, datetime

from kintsugi.core.errors import NotFoundError
from kintsugi.core.overlay import Overlay
from kintsugi.core.overlay_messages import OverlayEvent, OverlayEventKind, OverlayHeartbeat, OverlayHeartbeatAnswer
from planner.overlay.negotiation import negotiate
from planner.overlay.topology import empty_overlay


class Desk:
    """Keeps the overlay of one job and all events that changed it."""

    def __init__(self, job: str = "job", *, all_links_alike: bool = False) -> None:
        """With `all_links_alike` measured speeds are passed over: every neighbour of a worker that joins is a source."""
        self.now = empty_overlay(job)
        self._all_links_alike = all_links_alike
        self.events: list[OverlayEvent] = []
        self._seen: set[str] = set()
        self._changed = threading.Condition()

    def post(self, event: OverlayEvent) -> Overlay:
        if self._all_links_alike and event.kind is OverlayEventKind.LINK_MEASURED:
            event = replace(event, alpha_seconds=1e-4, beta_seconds_per_byte=1e-9)
        with self._changed:
            if event.id not in self._seen:
                self.now = negotiate(self.now, event, datetime.now(UTC).isoformat())
                self._seen.add(event.id)
                self.events.append(event)
                self._changed.notify_all()
            return self.now

    def overlay(self, after_generation: int | None, wait_seconds: float, term: int) -> Overlay | None:
        with self._changed:
            if not self.now.generation:
                raise NotFoundError("has no overlay", field="job")
            if after_generation is None:
                return self.now
            told = self._changed.wait_for(lambda: self.now.generation > after_generation, wait_seconds)
            return self.now if told else None

    def beat(self, heartbeat: OverlayHeartbeat) -> OverlayHeartbeatAnswer:
        return OverlayHeartbeatAnswer(generation=self.now.generation, term=self.now.term, timeout_seconds=10.0)

    def moved(self, url: str) -> None:
        pass

    def close(self) -> None:
        pass

    def until(self, is_awaited, timeout_seconds: float = 30.0) -> Overlay:
        """The first overlay that is as awaited."""
        with self._changed:
            assert self._changed.wait_for(lambda: is_awaited(self.now), timeout_seconds), self.now
            return self.now

    def num(self, kind: OverlayEventKind) -> int:
        return sum(event.kind is kind for event in self.events)
