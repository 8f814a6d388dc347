"""Workers come and go: what each such event changes in the overlay, before the rest follows from it."""

from collections.abc import Mapping
from dataclasses import replace

from kintsugi.core.errors import ConflictError, NotFoundError, ReconfigurationError, StaleIncarnationError
from kintsugi.core.overlay import LinkState, Overlay, OverlayLink, OverlayWorker, WorkerState
from kintsugi.core.overlay_messages import OverlayEvent
from planner.overlay.topology import (
    PRESENT,
    ascending,
    components,
    fail_workers,
    find_link,
    find_worker,
    holders,
    in_state,
    links_of,
    may_hold,
    put_link,
    put_worker,
    take_worker,
    up_links,
)

MOST_WORKERS = 1_024
"""In one overlay: the search for its tree grows with workers times links."""


def join(overlay: Overlay, event: OverlayEvent, now: str) -> Overlay:
    """A worker joins: alone where nobody is active, else with links to the neighbours that it names.

    Without neighbours it stands by until somebody connects it. An earlier life of it is over with that; the same one again, at the
    same address, changes nothing.

    Raises:
        StaleIncarnationError: this life of it is known already, or over.
        NotFoundError: there is no neighbour of that name.
        ConflictError: a neighbour is not active, or the overlay is full.
        ReconfigurationError: the others speak another version of the protocol.
    """
    earlier = find_worker(overlay, event.worker)
    if earlier is not None:
        if event.incarnation <= earlier.incarnation:
            present(overlay, event)
            if event.address != earlier.address:  # another process that saw the same overlay, and took the same number
                raise stale(earlier)
            return overlay
        overlay = take_worker(overlay, earlier.id)
    _require_same_protocol(overlay, event)
    _check_newcomer(overlay, event)
    is_alone = not may_hold(overlay)
    newcomer = _newcomer(event, now, _first_state(event, is_alone))
    overlay = put_worker(overlay, newcomer)
    for neighbor in event.neighbors:
        overlay = put_link(overlay, wanted_link(overlay, newcomer.id, neighbor))
    return overlay


def drain(overlay: Overlay, event: OverlayEvent, _now: str) -> Overlay:
    """A worker will leave; where the others are connected through it alone, they are to connect before.

    Raises:
        NotFoundError: it is not in the overlay.
        StaleIncarnationError: that life of it is over.
    """
    worker = present(overlay, event)
    if worker.state is WorkerState.DRAINING:
        return overlay
    overlay = put_worker(overlay, replace(worker, state=WorkerState.DRAINING, detail=event.detail or "asked to leave"))
    for ends in _bridges(overlay, worker.id):
        if find_link(overlay, ascending(*ends)) is None:
            overlay = put_link(overlay, wanted_link(overlay, *ends))
    return overlay


def leave(overlay: Overlay, event: OverlayEvent, _now: str) -> Overlay:
    """A worker has gone; one that is not there has gone before."""
    if find_worker(overlay, event.worker) is None:
        return overlay
    return take_worker(overlay, present(overlay, event).id)


def fail(overlay: Overlay, event: OverlayEvent, _now: str) -> Overlay:
    """A worker is lost; the word about a life that is over changes nothing.

    Who tells it of another is believed while it has not failed itself: where two lose sight of each other, one is left. The only
    worker that holds the state is lost once it is silent, not before: nobody could go on without it. Those that disagree fail
    together: none of them goes on from what may be wrong. Who is still joining has no state that could disagree, and fails alone.

    Raises:
        NotFoundError: who tells it is not in the overlay.
        StaleIncarnationError: the life in which it tells it is over.
        ConflictError: the worker alone holds the state, and another one tells it.
    """
    if event.teller is not None:
        _speaking(overlay, event.teller, event.teller_incarnation)
    worker = find_worker(overlay, event.worker)
    if worker is None or worker.state is WorkerState.FAILED or event.incarnation < worker.incarnation:
        return overlay
    if event.teller is not None and holders(overlay) == (worker.id,):
        raise ConflictError("alone holds the state; it is given up once it is silent", field="worker", value=worker.id)
    detail = event.detail or "reported as failed"
    if event.disagreeing and worker.state is not WorkerState.JOINING:
        return _fail_together(overlay, worker, event.disagreeing, detail)
    return fail_workers(overlay, (worker.id,), detail)


def become_active(overlay: Overlay, event: OverlayEvent, _now: str) -> Overlay:
    """A joining worker holds the state: it counts from now on.

    Raises:
        NotFoundError: it is not in the overlay.
        StaleIncarnationError: that life of it is over.
        ConflictError: no replication to it is under way.
    """
    worker = present(overlay, event)
    if worker.state is WorkerState.ACTIVE:
        return overlay
    if all(one.joiner != worker.id for one in overlay.replications):
        raise ConflictError(f"is {worker.state.value}, and no replication to it is under way", field="worker", value=worker.id)
    detail = f"holds the state of step {event.step}" if event.step is not None else ""
    return put_worker(overlay, replace(worker, state=WorkerState.ACTIVE, detail=detail))


def ask_again(overlay: Overlay, event: OverlayEvent, _now: str) -> Overlay:
    """A joining worker gives up the replication under way, or the state that came of it; the next one follows from its links.

    Raises:
        NotFoundError: it is not in the overlay.
        StaleIncarnationError: that life of it is over.
        ConflictError: nobody else holds the state.
    """
    worker = present(overlay, event)
    if worker.state is WorkerState.ACTIVE:
        if len(holders(overlay)) < 2:
            raise ConflictError("is the only one that holds the state", field="worker", value=worker.id)
        overlay = put_worker(overlay, replace(worker, state=WorkerState.JOINING, detail=event.detail or "lost track of the others"))
    return replace(overlay, replications=tuple(one for one in overlay.replications if one.joiner != worker.id))


def present(overlay: Overlay, event: OverlayEvent) -> OverlayWorker:
    """The worker that speaks of itself, in the life in which it speaks.

    Raises:
        NotFoundError: it is not in the overlay.
        StaleIncarnationError: that life is over: it failed, or joined again since.
    """
    return _speaking(overlay, event.worker, event.incarnation)


def stale(worker: OverlayWorker) -> StaleIncarnationError:
    """The refusal of words of a life that is over."""
    message = f"is {worker.state.value} ({worker.detail or 'joined again'}); join with an incarnation above the last known one"
    return StaleIncarnationError(message, incarnations={worker.id: worker.incarnation})


def wanted_link(overlay: Overlay, first: str, second: str) -> OverlayLink:
    """A link that is to be connected from the next generation on."""
    return OverlayLink(between=ascending(first, second), state=LinkState.CONNECTING, generation=overlay.generation + 1)


def _speaking(overlay: Overlay, speaker: str | None, incarnation: int) -> OverlayWorker:
    worker = find_worker(overlay, speaker)
    if worker is None:
        raise NotFoundError("is not in the overlay; join first", field="worker", value=speaker)
    if worker.state is WorkerState.FAILED or incarnation < worker.incarnation:
        raise stale(worker)
    return worker


def _fail_together(overlay: Overlay, worker: OverlayWorker, others: Mapping[str, int], detail: str) -> Overlay:
    """With all of them failed that are still in the life in which they disagreed."""
    lives = {**others, worker.id: worker.incarnation}
    there = [one for one in overlay.workers if one.state is not WorkerState.FAILED and lives.get(one.id) == one.incarnation]
    for one in there:
        overlay = put_worker(overlay, replace(one, disagreed_with=tuple(sorted(lives.keys() - {one.id}))))
    return fail_workers(overlay, [one.id for one in there], detail)


def _bridges(overlay: Overlay, leaver: str) -> list[tuple[str, str]]:
    """Links that hold the active workers together without `leaver`: between its neighbours, one of each part."""
    active = in_state(overlay, WorkerState.ACTIVE)
    parts = components(active, up_links(overlay, active))
    neighbors = {other for other, _ in links_of(overlay, leaver)}
    ends = [next((worker for worker in part if worker in neighbors), part[0]) for part in parts]
    return [(ends[0], end) for end in ends[1:]]


def _require_same_protocol(overlay: Overlay, event: OverlayEvent) -> None:
    """Require it before anything else of a newcomer is looked at: the others go on as if it had not asked."""
    for worker in overlay.workers:
        if worker.state is not WorkerState.FAILED and worker.protocol != event.protocol:
            message = f"is version {event.protocol} here and {worker.protocol} with {worker.id}"
            way_out = "run the Kintsugi that the others run, or name another job"
            raise ReconfigurationError(f"{message}; {way_out}", field="protocol", value=event.protocol)


def _check_newcomer(overlay: Overlay, event: OverlayEvent) -> None:
    if sum(1 for worker in overlay.workers if worker.state is not WorkerState.FAILED) >= MOST_WORKERS:
        raise ConflictError(f"the overlay has {MOST_WORKERS} workers already", field="worker", value=event.worker)
    for index, neighbor in enumerate(event.neighbors):
        _check_neighbor(overlay, neighbor, f"neighbors[{index}]")


def _check_neighbor(overlay: Overlay, neighbor: str, field: str) -> None:
    known = find_worker(overlay, neighbor)
    if known is None:
        raise NotFoundError(
            f"names {neighbor!r}, which is not in the overlay; name workers that are active", field=field, value=neighbor
        )
    if known.state not in PRESENT - {WorkerState.DRAINING}:
        raise ConflictError(
            f"names {neighbor!r}, which is {known.state.value}; name workers that are active", field=field, value=neighbor
        )


def _first_state(event: OverlayEvent, is_alone: bool) -> WorkerState:
    if event.neighbors:
        return WorkerState.JOINING
    return WorkerState.ACTIVE if is_alone else WorkerState.STANDBY


def _newcomer(event: OverlayEvent, now: str, state: WorkerState) -> OverlayWorker:
    assert event.worker is not None
    assert event.address is not None
    return OverlayWorker(
        id=event.worker,
        address=event.address,
        state=state,
        joined_at=now,
        incarnation=event.incarnation,
        state_bytes=event.state_bytes,
        shard_bytes=event.shard_bytes,
        gradient_bytes=event.gradient_bytes,
        protocol=event.protocol,
        detail="names no neighbour; connect a link to an active worker" if state is WorkerState.STANDBY else "",
    )
