"""What an agent says to and hears from the scheduler of an overlay."""

from typing import TypeVar

from kintsugi.client.answers import answer_of, newer_of
from kintsugi.client.connection import Connection, path_of
from kintsugi.core import codec
from kintsugi.core.overlay import Overlay
from kintsugi.core.overlay_messages import OverlayEvent, OverlayHeartbeat, OverlayHeartbeatAnswer, OverlayLog, OverlaySigns

T = TypeVar("T")
OVERLAY = "overlay"


class OverlayCalls:
    """The operations on overlays, of a client with a connection."""

    _connection: Connection

    def post_overlay_event(self, job: str, event: OverlayEvent) -> Overlay:
        """Tell what happened and get the overlay after it; the same id again changes nothing.

        Raises:
            StaleIncarnationError: the worker was declared failed, or joined anew since.
            StaleTermError: another scheduler took over.
            ConflictError: the overlay does not allow it as it stands.
            NotFoundError: a worker that is named is not in the overlay.
            ReconfigurationError: a worker would join others that speak another version of the protocol.
        """
        return self._posted(Overlay, path_of(job, OVERLAY, "events"), event)

    def overlay(self, job: str, *, after_generation: int | None = None, wait_seconds: float = 0.0, term: int = 0) -> Overlay | None:
        """The present overlay; with `after_generation` once it is newer, None where none came within `wait_seconds`.

        Args:
            job: whose.
            after_generation: the one that is known.
            wait_seconds: at most, for a newer one.
            term: the highest scheduler's term that the caller has heard of.
        """
        parameters = {"after_generation": after_generation, "wait_seconds": wait_seconds, "term": term}
        path = path_of(job, OVERLAY)
        return self._connection.send("GET", path, newer_of(Overlay), parameters=parameters, wait_seconds=wait_seconds)

    def overlay_heartbeat(self, job: str, heartbeat: OverlayHeartbeat) -> OverlayHeartbeatAnswer:
        """Tell that a worker lives; the answer tells of newer overlays."""
        return self._posted(OverlayHeartbeatAnswer, path_of(job, OVERLAY, "heartbeats"), heartbeat)

    def overlay_signs(self, job: str) -> OverlaySigns:
        """What was heard of each worker last."""
        return self._connection.send("GET", path_of(job, OVERLAY, "heartbeats"), answer_of(OverlaySigns))

    def overlay_log(self, job: str, *, after: int = 0, wait_seconds: float = 0.0, limit: int = 1_000) -> OverlayLog:
        """Lines of the overlay's log behind number `after`; none where none came within `wait_seconds`."""
        parameters = {"after": after, "wait_seconds": wait_seconds, "limit": limit}
        path = path_of(job, OVERLAY, "log")
        return self._connection.send("GET", path, answer_of(OverlayLog), parameters=parameters, wait_seconds=wait_seconds)

    def _posted(self, kind: type[T], path: str, body: OverlayEvent | OverlayHeartbeat) -> T:
        return self._connection.send("POST", path, answer_of(kind), content=codec.dumps(body))
