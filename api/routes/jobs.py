"""Jobs: create, show, list, end."""

from functools import partial
from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Query, Response

from api.access.room import require_room
from api.deps import BODY_PROBLEMS, READ_PROBLEMS, Cursor, DeskDep, IdempotencyKey, JobPath, Limit, reply
from api.http.bodies import EndingBody, NewJobBody, takes, tells
from api.pages import ending_record, job_page, job_view
from api.schemas import NewJob
from kintsugi.core.ending import Ending, EndingRecord
from kintsugi.core.messages import JobPage, JobView

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])


Ended = Annotated[bool | None, Query(description="Only jobs that ended, or only those that go on; both by default.")]


@router.post(
    "",
    status_code=HTTPStatus.CREATED,
    responses=tells(JobView) | tells(JobView, HTTPStatus.CREATED) | BODY_PROBLEMS,
    openapi_extra=takes(NewJob),
)
async def create_job(body: NewJobBody, desk: DeskDep, idempotency_key: IdempotencyKey = None) -> Response:
    """Plan for a new job; the same id and the same body again give the same job (200)."""
    room = partial(require_room, desk.settings, desk.service.store)
    async with desk.turns.of(f"new {body.id or idempotency_key}"):
        job, is_new = await desk.plan(desk.service.create_job, body, idempotency_key, room=room)
    status = HTTPStatus.CREATED if is_new else HTTPStatus.OK
    return reply(await desk.read(job_view, desk.service, job), status, {"Location": f"/v1/jobs/{job}"})


@router.get("", responses=tells(JobPage) | READ_PROBLEMS)
async def list_jobs(desk: DeskDep, cursor: Cursor = None, limit: Limit = 100, ended: Ended = None) -> Response:
    """Jobs in the order of their ids."""
    return reply(await desk.read(job_page, desk.service, cursor, limit, ended))


@router.get("/{job}", responses=tells(JobView) | READ_PROBLEMS)
async def get_job(job: JobPath, desk: DeskDep) -> Response:
    """A job as it stands: who is alive, what was decided last, what is applied."""
    return reply(await desk.read(job_view, desk.service, job))


@router.post("/{job}/ending", responses=tells(EndingRecord) | BODY_PROBLEMS, openapi_extra=takes(Ending))
async def post_ending(job: JobPath, body: EndingBody, desk: DeskDep, idempotency_key: IdempotencyKey = None) -> Response:
    """Say that a job is over.

    From then on it takes no events, reports, approvals and heartbeats (409), nobody in it is missed, no plans are made ahead, and
    it does not count against `KINTSUGI_MAX_JOBS`; events that waited for others still get their plan. Its log and its plans stay.
    Saying the same outcome again changes nothing and gets the same record; another one is a conflict.
    """
    return reply(ending_record(await desk.write(job, desk.service.post_ending, job, body, idempotency_key)))
