"""Approvals: who let which plan count, or refused it."""

from fastapi import APIRouter, Response

from api.deps import BODY_PROBLEMS, READ_PROBLEMS, Cursor, DeskDep, GenerationPath, IdempotencyKey, JobPath, Limit, reply
from api.http.bodies import JudgementBody, takes, tells
from api.pages import approval_page, approval_record
from api.schemas import Judgement
from kintsugi.core.handling import ApprovalPage, ApprovalRecord

router = APIRouter(prefix="/v1/jobs/{job}", tags=["approvals"])


@router.post("/plans/{generation}/approval", responses=tells(ApprovalRecord) | BODY_PROBLEMS, openapi_extra=takes(Judgement))
async def post_approval(
    job: JobPath, generation: GenerationPath, body: JudgementBody, desk: DeskDep, idempotency_key: IdempotencyKey = None
) -> Response:
    """Approve a proposed plan, or refuse it.

    Saying the same again changes nothing and gets the same record; the contrary, or a plan that another one took the place of,
    is a conflict; so is a plan that was decided at another moment than `decided_at`, where that is given. A refused plan is
    decided anew without its policy where `replan` says so: the record's `generation` names what was proposed instead, and where
    nothing else is possible the answer is a problem of code `infeasible`.
    """
    entry = await desk.write(job, desk.service.post_approval, job, body.on(generation), idempotency_key)
    return reply(approval_record(entry))


@router.get("/approvals", responses=tells(ApprovalPage) | READ_PROBLEMS)
async def list_approvals(job: JobPath, desk: DeskDep, cursor: Cursor = None, limit: Limit = 100) -> Response:
    """Approvals and refusals of a job's plans in the order of its log."""
    return reply(await desk.read(approval_page, desk.service, job, cursor, limit))
