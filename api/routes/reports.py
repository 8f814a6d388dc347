"""Reports: what trainers did with a plan and what they measured."""

from http import HTTPStatus

from fastapi import APIRouter, Request, Response

from api.deps import BODY_PROBLEMS, READ_PROBLEMS, After, Cursor, DeskDep, IdempotencyKey, JobPath, Limit, WaitSeconds, reply
from api.http.bodies import ReportBody, takes, tells
from api.pages import report_page, report_record
from api.routes.listing import Listing
from kintsugi.core.messages import Report, ReportPage, ReportRecord

router = APIRouter(prefix="/v1/jobs/{job}/reports", tags=["reports"])

LISTING = Listing(
    kind=Report,
    page=report_page,
    last=lambda entries: ReportPage(reports=tuple(report_record(entry) for entry in entries), next_cursor=None),
)


@router.post(
    "",
    status_code=HTTPStatus.CREATED,
    responses=tells(ReportRecord, HTTPStatus.CREATED) | BODY_PROBLEMS,
    openapi_extra=takes(Report),
)
async def post_report(job: JobPath, body: ReportBody, desk: DeskDep, idempotency_key: IdempotencyKey = None) -> Response:
    """Log that a plan was applied or rejected, or what was measured under it.

    After `applied` the next decision starts from that plan. Where a later plan was decided meanwhile from an older state, it is
    decided anew, and the record's `generation` names the latest decision. After `rejected` the plan before it is what runs; with
    `replan` it is decided anew at once, without the rejected plan's policy.
    """
    entry = await desk.write(job, desk.service.post_report, job, body, idempotency_key)
    return reply(report_record(entry), HTTPStatus.CREATED)


@router.get("", responses=tells(ReportPage) | READ_PROBLEMS)
async def list_reports(
    job: JobPath,
    desk: DeskDep,
    request: Request,
    *,
    cursor: Cursor = None,
    after: After = None,
    wait_seconds: WaitSeconds = 0.0,
    limit: Limit = 100,
) -> Response:
    """Reports of a job in the order of its log; behind `after`, with `wait_seconds`, as soon as there are any."""
    return await LISTING.answer(desk, request, job, cursor=cursor, after=after, wait_seconds=wait_seconds, limit=limit)
