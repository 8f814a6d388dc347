"""Reports: what trainers did with a plan and what they measured."""

from http import HTTPStatus

from fastapi import APIRouter, Response

from api.deps import BODY_PROBLEMS, READ_PROBLEMS, Cursor, DeskDep, IdempotencyKey, JobPath, Limit, reply
from api.pages import report_page, report_record
from api.schemas import ReportBody
from kintsugi.core.messages import ReportPage, ReportRecord

router = APIRouter(prefix="/v1/jobs/{job}/reports", tags=["reports"])


@router.post("", status_code=201, response_model=ReportRecord, responses=BODY_PROBLEMS)
async def post_report(job: JobPath, body: ReportBody, desk: DeskDep, idempotency_key: IdempotencyKey = None) -> Response:
    """Log that a plan was applied or rejected, or what was measured under it.

    After `applied` the next decision starts from that plan. Where a later plan was decided meanwhile from an older state, it is
    decided anew, and the record's `generation` names the plan to go on with.
    """
    entry = await desk.write(job, desk.service.post_report, job, body, idempotency_key)
    return reply(report_record(entry), HTTPStatus.CREATED)


@router.get("", response_model=ReportPage, responses=READ_PROBLEMS)
async def list_reports(job: JobPath, desk: DeskDep, cursor: Cursor = None, limit: Limit = 100) -> Response:
    """Reports of a job in the order of its log."""
    return reply(await desk.read(report_page, desk.service, job, cursor, limit))
