"""Asking to join: under which incarnation, next to whom, and again while the neighbours are not there yet."""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent import futures
from dataclasses import dataclass, replace
from uuid import uuid4

from kintsugi.core.errors import ConflictError, InvalidInputError, NotFoundError, StaleIncarnationError, UnavailableError
from kintsugi.core.logs import get_logger
from kintsugi.core.overlay import Overlay, OverlayWorker
from kintsugi.core.overlay_messages import OverlayEvent, OverlayEventKind
from kintsugi.core.version import PROTOCOL
from kintsugi.runtime.overlay import exits
from kintsugi.runtime.overlay.deadline import Deadline
from kintsugi.runtime.overlay.greeting import answers
from kintsugi.runtime.overlay.joining import active_workers
from kintsugi.runtime.overlay.links import Links
from kintsugi.runtime.overlay.scheduler import Scheduler
from kintsugi.runtime.overlay.telling import event_id
from kintsugi.runtime.overlay.vigil import TELL_SECONDS, left_early
from planner.overlay.topology import holders, may_hold

_PAUSE_SECONDS = 0.1
_LAST_SECONDS = 0.5
"""For an answer that is on its way when this worker is asked to leave."""
_KNOCK_SECONDS = 3.0
"""For an earlier life of this worker to answer at its door."""


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
        GivenUpError: somebody asked this worker to leave.
        InvalidInputError: an earlier life of it still runs, and nobody else holds the state.
        ReconfigurationError: the others speak another version of the protocol.
        KintsugiError: the scheduler refuses for another reason.
    """
    pause, told_at = threading.Event(), time.monotonic()
    while True:
        if exits.capture_exit_event():
            raise left_early(links.identity.worker)
        try:
            return _unless_asked_to_leave(lambda: _asked(scheduler, links, application), links.identity.worker)
        except StaleIncarnationError as error:
            known = error.incarnations.get(links.identity.worker, links.identity.incarnation)
            links.identity = replace(links.identity, incarnation=known + 1)
        except (NotFoundError, ConflictError, UnavailableError) as error:
            if deadline.is_over:
                raise UnavailableError(f"could not join: {error}", field="worker", value=links.identity.worker) from error
            if time.monotonic() - told_at >= TELL_SECONDS:
                told_at = time.monotonic()
                get_logger("kintsugi.overlay").info("waits to join", worker=links.identity.worker, why=str(error))
            pause.wait(_PAUSE_SECONDS)


def _unless_asked_to_leave(ask: Callable[[], Overlay], worker: str) -> Overlay:
    """What the scheduler answers; asked beside this thread, which is not to sit in a request when somebody wants it to leave.

    Raises:
        GivenUpError: somebody does, and no answer came.
        KintsugiError: the scheduler refuses.
    """
    answer: futures.Future[Overlay] = futures.Future()

    def run() -> None:
        try:
            answer.set_result(ask())
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=run, name="overlay-asks", daemon=True).start()
    while not futures.wait([answer], _PAUSE_SECONDS).done:
        if exits.capture_exit_event() and not futures.wait([answer], _LAST_SECONDS).done:
            raise left_early(worker)
    return answer.result()


def _asked(scheduler: Scheduler, links: Links, application: Application) -> Overlay:
    known = _known(scheduler)
    own = links.identity
    if known is not None:  # an earlier life joined at an earlier generation, and took that as its number
        earlier = next((one for one in known.workers if one.id == own.worker), None)
        if earlier is not None and earlier.address != application.address:
            _require_dispensable(known, earlier, links)
        life = -1 if earlier is None else earlier.incarnation
        own = links.identity = replace(own, incarnation=max(own.incarnation, life + 1, known.generation))
    neighbors = application.neighbors
    if neighbors is None:
        neighbors = [] if known is None else active_workers(known, own.worker)[: application.max_neighbors]
    event = OverlayEvent(
        kind=OverlayEventKind.WORKER_JOINED,
        id=event_id(f"joined-{own.worker}-{own.incarnation}-{uuid4().hex}"),
        worker=own.worker,
        incarnation=own.incarnation,
        address=application.address,
        neighbors=tuple(neighbors),
        state_bytes=application.state_bytes,
        shard_bytes=application.shard_bytes,
        gradient_bytes=application.gradient_bytes,
        protocol=PROTOCOL,
    )
    return scheduler.post(event)


def _require_dispensable(known: Overlay, earlier: OverlayWorker, links: Links) -> None:
    """Require that the state outlives an earlier life of this worker, which is over once a later one joins.

    Raises:
        InvalidInputError: that life alone holds the state, and still answers.
    """
    if earlier.id not in may_hold(known) or set(holders(known)) - {earlier.id}:
        return
    if answers(earlier.address, links.identity, earlier.id, earlier.incarnation, _KNOCK_SECONDS):
        message = (
            f"runs already, at {earlier.address}, and nobody else holds the state of job {known.name}; "
            "give this worker a name of its own, or end that one first"
        )
        raise InvalidInputError(message, field="worker", value=earlier.id)


def _known(scheduler: Scheduler) -> Overlay | None:
    """The overlay as it is; None where the job has none yet."""
    try:
        return scheduler.overlay(None, 0.0, 0)
    except NotFoundError:
        return None
