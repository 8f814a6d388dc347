"""Events: what happened to workers, hosts and links."""

from fastapi import APIRouter, Response

from api.bodies import EventBody, takes, tells
from api.deps import (
    BODY_PROBLEMS,
    READ_PROBLEMS,
    After,
    Cursor,
    DeskDep,
    DetailQuery,
    IdempotencyKey,
    JobPath,
    Limit,
    WaitSeconds,
    answer,
    reply,
)
from api.pages import event_page, event_record
from api.schemas import EventBatch
from api.wording import Detail
from kintsugi.core.membership import Event
from kintsugi.core.messages import Answer, EventPage

router = APIRouter(prefix="/v1/jobs/{job}/events", tags=["events"])


@router.post("", responses=tells(Answer) | BODY_PROBLEMS, openapi_extra=takes(Event, EventBatch))
async def post_events(
    job: JobPath, body: EventBody, desk: DeskDep, idempotency_key: IdempotencyKey = None, detail: DetailQuery = Detail.FULL
) -> Response:
    """Log one event, or several that happened together, and answer with the one plan to go on with.

    The events are durable before the answer. An event whose id was seen changes nothing and gets the same answer. Where no
    plan is left the events are logged all the same, and the answer is a problem of code `infeasible` or `state_lost`.
    """
    events = body.events if isinstance(body, EventBatch) else (body,)
    return answer(job, await desk.write(job, desk.service.post_events, job, events, idempotency_key), detail)


@router.get("", responses=tells(EventPage) | READ_PROBLEMS)
async def list_events(
    job: JobPath,
    desk: DeskDep,
    *,
    cursor: Cursor = None,
    after: After = None,
    wait_seconds: WaitSeconds = 0.0,
    limit: Limit = 100,
) -> Response:
    """Events of a job in the order of its log; behind `after`, with `wait_seconds`, as soon as there are any."""
    desk.check_wait(wait_seconds)
    page = await desk.read(event_page, desk.service, job, cursor, limit, after)
    if not page.events and after is not None and wait_seconds > 0:
        entries = await desk.streams.awaited(job, Event, after, limit, wait_seconds)
        page = EventPage(events=tuple(event_record(entry) for entry in entries), next_cursor=None)
    return reply(page)
