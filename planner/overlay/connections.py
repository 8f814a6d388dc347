"""Links come and go: what each such event changes in the overlay, before the rest follows from it."""

from dataclasses import replace

from kintsugi.core.errors import ConflictError, InvalidInputError, NotFoundError
from kintsugi.core.overlay import LinkState, Overlay, OverlayLink, OverlayWorker, WorkerState
from kintsugi.core.overlay_messages import OverlayEvent
from planner.overlay.membership import present, stale, wanted_link
from planner.overlay.topology import ascending, find_link, find_worker, put_link, put_worker, take_link


def connect(overlay: Overlay, event: OverlayEvent, _now: str) -> Overlay:
    """A link is asked for, or a wanted one is connected; a worker that stood by joins with its first one.

    Raises:
        NotFoundError: an end is not in the overlay.
        ConflictError: an end cannot be connected.
    """
    ends = _ends(overlay, event)
    known = find_link(overlay, ends)
    if known is None:
        for end in ends:
            overlay = put_worker(overlay, _joining(_connectable(overlay, end)))
        return put_link(overlay, wanted_link(overlay, *ends))
    if known.state is LinkState.UP or is_overtaken(known, event):
        return overlay
    return put_link(overlay, replace(known, state=LinkState.UP))


def disconnect(overlay: Overlay, event: OverlayEvent, _now: str) -> Overlay:
    """A link is given up or lost; the word about one that is gone, or was connected anew since, changes nothing."""
    ends = _ends(overlay, event)
    known = find_link(overlay, ends)
    if known is None or is_overtaken(known, event):
        return overlay
    return take_link(overlay, ends)


def measure(overlay: Overlay, event: OverlayEvent, now: str) -> Overlay:
    """A link was probed, and is therefore connected; the word about one that is gone changes nothing."""
    ends = _ends(overlay, event)
    known = find_link(overlay, ends)
    if known is None or is_overtaken(known, event):
        return overlay
    measured = replace(
        known,
        state=LinkState.UP,
        alpha_seconds=event.alpha_seconds,
        beta_seconds_per_byte=event.beta_seconds_per_byte,
        measured_at=now,
    )
    return put_link(overlay, measured)


def is_overtaken(link: OverlayLink, event: OverlayEvent) -> bool:
    """Whether whoever tells this cannot mean the present link: it had not seen that it is wanted."""
    return event.generation is not None and event.generation < link.generation


def _ends(overlay: Overlay, event: OverlayEvent) -> tuple[str, str]:
    """The ends of the link that is spoken of, in ascending order.

    Raises:
        InvalidInputError: whoever speaks is none of them.
        StaleIncarnationError: the speaker's life is over.
    """
    assert event.link is not None
    if event.worker is not None:
        if event.worker not in event.link:
            raise InvalidInputError("must be an end of the link that it speaks of", field="worker", value=event.worker)
        if find_worker(overlay, event.worker) is not None:
            present(overlay, event)
    return ascending(*event.link)


def _connectable(overlay: Overlay, end: str) -> OverlayWorker:
    worker = find_worker(overlay, end)
    if worker is None:
        raise NotFoundError("is not in the overlay; join first", field="link", value=end)
    if worker.state is WorkerState.FAILED:
        raise stale(worker)
    if worker.state is WorkerState.DRAINING:
        raise ConflictError("is about to leave; connect another worker", field="link", value=end)
    return worker


def _joining(worker: OverlayWorker) -> OverlayWorker:
    return replace(worker, state=WorkerState.JOINING, detail="") if worker.state is WorkerState.STANDBY else worker
