"""Events: what happened to workers, hosts and links."""

from functools import partial
from http import HTTPStatus
from typing import Annotated

import anyio
from fastapi import APIRouter, Query, Request, Response

from api.access.room import require_room_to_join
from api.deps import (
    BODY_PROBLEMS,
    READ_PROBLEMS,
    After,
    Cursor,
    Desk,
    DeskDep,
    DetailQuery,
    IdempotencyKey,
    JobPath,
    Limit,
    WaitSeconds,
    answer,
    reply,
)
from api.http.bodies import EventBody, takes, tells
from api.jobs.history import Entry, History
from api.pages import event_page, event_record
from api.routes.listing import Listing
from api.schemas import EventBatch
from api.storage.wording import Detail
from api.waiting.presence import while_there
from kintsugi.core.membership import Event
from kintsugi.core.messages import Answer, EventPage, Pending

router = APIRouter(prefix="/v1/jobs/{job}/events", tags=["events"])

GatheringSeconds = Annotated[
    float | None,
    Query(ge=0, allow_inf_nan=False, description="Longest wait for further events of a job that coalesces them; then 202."),
]

LISTING = Listing(
    kind=Event,
    page=event_page,
    last=lambda entries: EventPage(events=tuple(event_record(entry) for entry in entries), next_cursor=None),
)


@router.post(
    "", responses=tells(Answer) | tells(Pending, HTTPStatus.ACCEPTED) | BODY_PROBLEMS, openapi_extra=takes(Event, EventBatch)
)
async def post_events(
    job: JobPath,
    body: EventBody,
    desk: DeskDep,
    request: Request,
    *,
    idempotency_key: IdempotencyKey = None,
    detail: DetailQuery = Detail.FULL,
    wait_seconds: GatheringSeconds = None,
) -> Response:
    """Log one event, or several that happened together, and answer with the one plan to go on with.

    The events are durable before the answer. An event whose id was seen changes nothing and gets the same answer. Where no
    plan is left the events are logged all the same, and the answer is a problem of code `infeasible` or `state_lost`; so they
    are, with `planning_failed`, where the search for one failed again and again.

    In a job that coalesces events the answer comes once its `coalesce_seconds` are over; who waits less gets 202 and is told
    where to look; so is, with `wait_seconds=0`, who is answered with 429 because as many wait as may: the events are logged. In a
    job that requires approval the plan is `proposed`: it is not to be carried out yet.
    """
    events = body.events if isinstance(body, EventBatch) else (body,)
    room = partial(require_room_to_join, desk.settings)
    entry = await desk.write(job, desk.service.post_events, job, events, idempotency_key, room=room)
    if entry.deferred and await _waited(desk, request, job, wait_seconds):
        await desk.expire(job)
    answered = desk.service.kept_answer(job, entry) or await desk.read(desk.service.answered, job, entry)
    if answered is None:
        return _pending(desk, job, entry)
    kept = desk.service.kept(job, answered.generation)  # as a rule it was decided just now: no thread is needed to find it
    found = kept if kept is not None else await desk.read(desk.service.standing_decision, job, answered.generation)
    return answer(job, found.to(answered), detail)


@router.get("", responses=tells(EventPage) | READ_PROBLEMS)
async def list_events(
    job: JobPath,
    desk: DeskDep,
    request: Request,
    *,
    cursor: Cursor = None,
    after: After = None,
    wait_seconds: WaitSeconds = 0.0,
    limit: Limit = 100,
) -> Response:
    """Events of a job in the order of its log; behind `after`, with `wait_seconds`, as soon as there are any."""
    return await LISTING.answer(desk, request, job, cursor=cursor, after=after, wait_seconds=wait_seconds, limit=limit)


async def _waited(desk: Desk, request: Request, job: str, longest: float | None) -> bool:
    """Wait until it is to be decided about the events that wait; whether that moment came within `longest` seconds.

    A service that stops lets nobody wait: it is decided when it is back, or by another one.

    Raises:
        TooManyRequestsError: as many clients wait already as may.
    """
    history = desk.service.kept_history(job)
    if history is None or history.gathering_seconds(desk.service.now()) <= 0:
        return True
    if longest == 0:
        return False
    with desk.access.places.one(), desk.metrics.waiting.track_inprogress(), while_there(request):
        return await _is_over(desk, history, longest)
    return False


async def _is_over(desk: Desk, history: History, longest: float | None) -> bool:
    """Whether the time for which events wait is over within `longest` seconds."""
    with anyio.move_on_after(longest):
        while (seconds := history.gathering_seconds(desk.service.now())) > 0:
            with anyio.move_on_after(seconds):
                await desk.leaving.wait()
                return False
        return True
    return False


def _pending(desk: Desk, job: str, entry: Entry) -> Response:
    history = desk.service.kept_history(job)
    plan = f"/v1/jobs/{job}/plan?after_generation={entry.generation}"
    decides_at = (history and history.decides_at) or entry.received_at
    waiting = Pending(job=job, number=entry.number, generation=entry.generation, decides_at=decides_at, plan=plan)
    return reply(waiting, HTTPStatus.ACCEPTED, {"Location": plan})
