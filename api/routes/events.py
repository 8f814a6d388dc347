"""Events: what happened to workers, hosts and links."""

from fastapi import APIRouter, Response

from api.bodies import EventBody, takes, tells
from api.deps import BODY_PROBLEMS, READ_PROBLEMS, Cursor, DeskDep, DetailQuery, IdempotencyKey, JobPath, Limit, answer, reply
from api.pages import event_page
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
async def list_events(job: JobPath, desk: DeskDep, cursor: Cursor = None, limit: Limit = 100) -> Response:
    """Events of a job in the order of its log."""
    return reply(await desk.read(event_page, desk.service, job, cursor, limit))
