"""Overlays: events of agents in, the desired state out, waited for by generation; heartbeats; and the log for who takes over."""

from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response

from api.access.callers import caller
from api.access.listening import while_usable
from api.deps import (
    BODY_PROBLEMS,
    LARGEST_GENERATION,
    READ_PROBLEMS,
    After,
    DeskDep,
    JobPath,
    Limit,
    WaitSeconds,
    reply,
)
from api.http.bodies import decoded, takes, tells
from api.overlay.book import Page
from api.waiting.presence import while_there
from api.waiting.streams import EventStream
from kintsugi.core import codec
from kintsugi.core.overlay import Overlay
from kintsugi.core.overlay_messages import OverlayEvent, OverlayHeartbeat, OverlayHeartbeatAnswer, OverlayLog, OverlaySigns

router = APIRouter(prefix="/v1/jobs/{job}/overlay", tags=["overlays"])

EventBody = Annotated[OverlayEvent, Depends(decoded(lambda data: codec.decode(OverlayEvent, data)))]
HeartbeatBody = Annotated[OverlayHeartbeat, Depends(decoded(lambda data: codec.decode(OverlayHeartbeat, data)))]
STREAM: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Messages of type `overlay`, each with an overlay as its data and its generation as its id",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    },
    **READ_PROBLEMS,
}
AfterGeneration = Annotated[
    int | None, Query(ge=0, le=LARGEST_GENERATION, description="Answer once the generation is above this one.")
]
Term = Annotated[int, Query(ge=0, le=LARGEST_GENERATION, description="Highest scheduler's term that the caller has heard of.")]


@router.get(
    "",
    responses={**tells(Overlay), 204: {"description": "No newer overlay within `wait_seconds`"}, **READ_PROBLEMS},
)
async def get_overlay(
    job: JobPath,
    desk: DeskDep,
    request: Request,
    *,
    after_generation: AfterGeneration = None,
    wait_seconds: WaitSeconds = 0.0,
    term: Term = 0,
) -> Response:
    """What everybody is to bring about; with `after_generation` and `wait_seconds` as soon as it is newer than that.

    Whoever missed generations acts on the newest alone.
    """
    desk.check_wait(wait_seconds)
    page: Page | None = await desk.overlays.page(job, term)
    assert page is not None
    if after_generation is not None and page.overlay.generation <= after_generation:
        page = None
        with desk.access.places.one(), desk.metrics.waiting.track_inprogress(), while_there(request):
            page = await desk.overlays.awaited(job, after_generation, wait_seconds)
    return Response(status_code=HTTPStatus.NO_CONTENT) if page is None else answer(page)


@router.post("/events", responses=tells(Overlay) | BODY_PROBLEMS, openapi_extra=takes(OverlayEvent))
async def post_event(job: JobPath, body: EventBody, desk: DeskDep) -> Response:
    """Tell what happened, and get the overlay after it; an event whose id was seen changes nothing.

    The overlay begins with its first `worker_joined`; no job of that name need be planned here. A worker that was declared failed
    is refused with code `stale_incarnation`, a deposed scheduler refuses with code `stale_term`.
    """
    return answer(await desk.overlays.post(job, body))


@router.post("/heartbeats", responses=tells(OverlayHeartbeatAnswer) | BODY_PROBLEMS, openapi_extra=takes(OverlayHeartbeat))
async def post_heartbeat(job: JobPath, body: HeartbeatBody, desk: DeskDep) -> Response:
    """Tell that a worker lives; kept in memory only. The first one begins the watch over all workers of the overlay.

    Whoever is silent for the answer's `timeout_seconds` is logged as failed.
    """
    return reply(await desk.overlays.monitor.hear(job, body))


@router.get("/heartbeats", responses=tells(OverlaySigns) | READ_PROBLEMS)
async def get_heartbeats(job: JobPath, desk: DeskDep) -> Response:
    """What was heard of each worker last: its step, how long its all-reduces take, how much of the state it fetched."""
    await desk.overlays.page(job)
    return reply(desk.overlays.monitor.signs(job))


@router.get("/log", responses=tells(OverlayLog) | READ_PROBLEMS)
async def get_log(
    job: JobPath, desk: DeskDep, request: Request, *, after: After = None, limit: Limit = 100, wait_seconds: WaitSeconds = 0.0
) -> Response:
    """Lines of the log behind number `after`: whoever holds all of them can go on in the scheduler's place.

    With `wait_seconds` and nothing behind `after`, the answer comes with the next generation.
    """
    desk.check_wait(wait_seconds)
    log = await desk.read(desk.overlays.scheduler.log, job, after or 0, limit)
    if not log.entries and wait_seconds > 0:
        with desk.access.places.one(), desk.metrics.waiting.track_inprogress(), while_there(request):
            page = await desk.overlays.page(job)
            if page.number == log.last_number:
                await desk.overlays.awaited(job, page.overlay.generation, wait_seconds)
        log = await desk.read(desk.overlays.scheduler.log, job, after or 0, limit)
    return reply(log)


@router.get("/stream", response_class=Response, responses=STREAM)
async def stream(job: JobPath, desk: DeskDep) -> EventStream:
    """The overlay, and every newer one as it comes, as server-sent events; some may be overtaken unseen."""
    await desk.overlays.page(job)
    messages = desk.overlays.messages(job, desk.settings.stream_heartbeat_seconds)
    return EventStream(while_usable(messages, caller().token, desk.access), desk.access.places)


def answer(page: Page) -> Response:
    """An overlay as it was put into words when it was made."""
    headers = {"ETag": f'"{page.overlay.term}.{page.overlay.generation}"'}
    return Response(page.body, HTTPStatus.OK, headers, "application/json")
