"""The one entry point: an overlay and an event give the next overlay (Learning in Chaos, section IV-B).

A pure function: the same log gives the same overlay, bit for bit. Each event changes workers or links; the rest follows from how
these stand then, in the same way whatever the event was: who is cut off, who fetches the state from whom, and over which links
is reduced.
"""

from collections.abc import Callable
from dataclasses import replace

from kintsugi.core.errors import ConflictError, InvalidInputError, NotFoundError
from kintsugi.core.overlay import UNHEARD_RESTARTS, Overlay, WorkerState
from kintsugi.core.overlay_messages import OverlayEvent, OverlayEventKind
from planner.overlay import connections, membership
from planner.overlay.replication import replicated
from planner.overlay.standing import settled
from planner.overlay.succession import is_newer
from planner.overlay.synchronization import SynchronizationPlanner, fastest, synchronized
from planner.overlay.topology import PRESENT, find_worker, put_worker

Change = Callable[[Overlay, OverlayEvent, str], Overlay]


def negotiate(overlay: Overlay, event: OverlayEvent, now: str, planner: SynchronizationPlanner = fastest) -> Overlay:
    """The overlay after `event`: of the next generation, or `overlay` itself where the event changes nothing.

    Args:
        overlay: before it; `empty_overlay` before the first event.
        event: what is told.
        now: when it was taken down, RFC 3339, UTC; no other clock is looked at.
        planner: chooses the tree or ring.

    Raises:
        NotFoundError: the event is about a worker that is not in the overlay.
        ConflictError: the overlay, as it stands, does not allow it.
        InvalidInputError: the event makes no sense, or tells of another overlay; or the planner's answer.
        ReconfigurationError: a worker would join others that speak another version of the protocol.
    """
    if event.overlay is not None and event.kind is OverlayEventKind.SCHEDULER_CHANGED:
        overlay = _newest(overlay, event.overlay)
    if not overlay.workers and event.kind is not OverlayEventKind.WORKER_JOINED:
        raise NotFoundError("nobody is in the overlay; it begins with worker_joined", field="kind", value=event.kind.value)
    told = CHANGES[event.kind](overlay, event, now)
    if told == overlay and not _is_interruption(overlay, event):
        return overlay
    draft = settled(_heard(told, event))
    draft = replicated(draft, overlay.generation + 1)
    draft = _planned(draft, planner)
    draft = replace(draft, generation=overlay.generation + 1)
    if told.term > overlay.term:
        return _restarted(draft, overlay.restarts + UNHEARD_RESTARTS)
    if not (_is_interruption(overlay, event) or _lost_some(overlay, draft)):
        return draft
    return _restarted(draft, overlay.restarts + 1)


def _newest(known: Overlay, seen: Overlay) -> Overlay:
    """From which a new scheduler goes on: what it knows, or what was seen of the same overlay.

    Raises:
        InvalidInputError: what was seen is another job's.
    """
    if seen.name != known.name:
        message = f"is not {known.name!r}, whose scheduler changes; tell an overlay of this job"
        raise InvalidInputError(message, field="overlay.name", value=seen.name[:200])
    return seen if is_newer(seen, known) else known


def _restarted(draft: Overlay, restarts: int) -> Overlay:
    return replace(draft, restarts=restarts, restarted=draft.synchronization, restarted_generation=draft.generation)


def _change_scheduler(overlay: Overlay, event: OverlayEvent, _now: str) -> Overlay:
    assert event.address is not None
    assert event.term is not None
    if event.term <= overlay.term:
        message = f"must be above the present one, {overlay.term}"
        raise ConflictError(message, field="term", value=event.term)
    return replace(overlay, term=event.term, scheduler=event.address)


CHANGES: dict[OverlayEventKind, Change] = {
    OverlayEventKind.WORKER_JOINED: membership.join,
    OverlayEventKind.WORKER_DRAINING: membership.drain,
    OverlayEventKind.WORKER_LEFT: membership.leave,
    OverlayEventKind.WORKER_FAILED: membership.fail,
    OverlayEventKind.STATE_REPLICATED: membership.become_active,
    OverlayEventKind.REPLICATION_REQUESTED: membership.ask_again,
    OverlayEventKind.LINK_CONNECTED: connections.connect,
    OverlayEventKind.LINK_DISCONNECTED: connections.disconnect,
    OverlayEventKind.LINK_MEASURED: connections.measure,
    OverlayEventKind.SCHEDULER_CHANGED: _change_scheduler,
}


def _planned(draft: Overlay, planner: SynchronizationPlanner) -> Overlay:
    """With the planner's policy; where a replaced planner fails, with the project's own and the reason: training goes on."""
    if planner is fastest:
        return synchronized(draft)
    try:
        return synchronized(draft, planner)
    except Exception as error:
        own = synchronized(draft)
        reason = f"{own.synchronization.reason} (the planner that was put in its place failed: {error})"
        return replace(own, synchronization=replace(own.synchronization, reason=reason[:500]))


def _heard(overlay: Overlay, event: OverlayEvent) -> Overlay:
    """With what the scheduler had heard of everybody's all-reduces."""
    for worker, seconds in sorted(event.synchronization_seconds.items()):
        known = find_worker(overlay, worker)
        if known is not None and known.state is not WorkerState.FAILED:
            overlay = put_worker(overlay, replace(known, synchronization_seconds=seconds))
    return overlay


def _is_interruption(overlay: Overlay, event: OverlayEvent) -> bool:
    """Whether the event tells of a reduction that broke, and no other attempt was ordered since."""
    return event.interrupted and (event.restarts is None or event.restarts >= overlay.restarts)


def _lost_some(before: Overlay, after: Overlay) -> bool:
    """Whether somebody whose gradients counted has gone in the middle."""
    lives = {worker.id: worker.incarnation for worker in after.workers if worker.state in PRESENT}
    return any(lives.get(worker) != before.worker(worker).incarnation for worker in before.synchronization.order)
