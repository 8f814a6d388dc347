"""Jobs: create, show, list."""

from http import HTTPStatus

from fastapi import APIRouter, Response

from api.access.room import require_room
from api.deps import BODY_PROBLEMS, READ_PROBLEMS, Cursor, DeskDep, IdempotencyKey, JobPath, Limit, reply
from api.http.bodies import NewJobBody, takes, tells
from api.pages import job_page, job_view
from api.schemas import NewJob
from kintsugi.core.messages import JobPage, JobView

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])


@router.post(
    "",
    status_code=HTTPStatus.CREATED,
    responses=tells(JobView) | tells(JobView, HTTPStatus.CREATED) | BODY_PROBLEMS,
    openapi_extra=takes(NewJob),
)
async def create_job(body: NewJobBody, desk: DeskDep, idempotency_key: IdempotencyKey = None) -> Response:
    """Plan for a new job; the same id and the same body again give the same job (200)."""
    await desk.read(require_room, desk.settings, desk.service.store, body)
    async with desk.turns.of(f"new {body.id or idempotency_key}"):
        job, is_new = await desk.plan(desk.service.create_job, body, idempotency_key)
    status = HTTPStatus.CREATED if is_new else HTTPStatus.OK
    return reply(await desk.read(job_view, desk.service, job), status, {"Location": f"/v1/jobs/{job}"})


@router.get("", responses=tells(JobPage) | READ_PROBLEMS)
async def list_jobs(desk: DeskDep, cursor: Cursor = None, limit: Limit = 100) -> Response:
    """Jobs in the order of their ids."""
    return reply(await desk.read(job_page, desk.service, cursor, limit))


@router.get("/{job}", responses=tells(JobView) | READ_PROBLEMS)
async def get_job(job: JobPath, desk: DeskDep) -> Response:
    """A job as it stands: who is alive, what was decided last, what is applied."""
    return reply(await desk.read(job_view, desk.service, job))
