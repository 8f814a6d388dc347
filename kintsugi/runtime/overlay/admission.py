"""Asking to join: under which incarnation, next to whom, and again while the neighbours are not there yet."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from uuid import uuid4

from kintsugi.core.errors import ConflictError, NotFoundError, StaleIncarnationError, UnavailableError
from kintsugi.core.overlay import Overlay, OverlayEvent, OverlayEventKind
from kintsugi.runtime.overlay.deadline import Deadline
from kintsugi.runtime.overlay.joining import active_workers
from kintsugi.runtime.overlay.links import Links
from kintsugi.runtime.overlay.scheduler import Scheduler

_PAUSE_SECONDS = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Application:
    """What a worker says of itself when it joins."""

    address: str
    """`host:port` at which neighbours call."""
    neighbors: Sequence[str] | None
    """Next to whom; None takes active workers as they come."""
    max_neighbors: int
    state_bytes: int
    shard_bytes: int
    gradient_bytes: int


def admit(scheduler: Scheduler, links: Links, application: Application, deadline: Deadline) -> Overlay:
    """Join, in a life above all earlier ones of this worker, also of those that have left; the overlay with it.

    Raises:
        UnavailableError: the scheduler or the neighbours were not there in time.
        KintsugiError: the scheduler refuses for another reason.
    """
    pause = threading.Event()
    while True:
        try:
            return _asked(scheduler, links, application)
        except StaleIncarnationError as error:
            known = error.incarnations.get(links.identity.worker, links.identity.incarnation)
            links.identity = replace(links.identity, incarnation=known + 1)
        except (NotFoundError, ConflictError, UnavailableError) as error:
            if deadline.is_over:
                raise UnavailableError(f"could not join: {error}", field="worker", value=links.identity.worker) from error
            pause.wait(_PAUSE_SECONDS)


def _asked(scheduler: Scheduler, links: Links, application: Application) -> Overlay:
    known = _known(scheduler)
    own = links.identity
    if known is not None:  # an earlier life joined at an earlier generation, and took that as its number
        life = next((one.incarnation for one in known.workers if one.id == own.worker), -1)
        own = links.identity = replace(own, incarnation=max(own.incarnation, life + 1, known.generation))
    neighbors = application.neighbors
    if neighbors is None:
        neighbors = [] if known is None else active_workers(known, own.worker)[: application.max_neighbors]
    event = OverlayEvent(
        kind=OverlayEventKind.WORKER_JOINED,
        id=f"joined-{own.worker}-{own.incarnation}-{uuid4().hex}",
        worker=own.worker,
        incarnation=own.incarnation,
        address=application.address,
        neighbors=tuple(neighbors),
        state_bytes=application.state_bytes,
        shard_bytes=application.shard_bytes,
        gradient_bytes=application.gradient_bytes,
    )
    return scheduler.post(event)


def _known(scheduler: Scheduler) -> Overlay | None:
    """The overlay as it is; None where the job has none yet."""
    try:
        return scheduler.overlay(None, 0.0, 0)
    except NotFoundError:
        return None
