"""Webhooks: who is told of a job's decisions, and what became of the telling."""

from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Header, Path, Query, Response

from api.deps import BODY_PROBLEMS, READ_PROBLEMS, Cursor, Desk, DeskDep, IdempotencyKey, JobPath, Limit, reply
from api.http.bodies import NewWebhookBody, WebhookTargetBody, refuses, takes, tells
from api.http.conditional import entity_tag, require_match
from api.webhooks.hooks import Delivery, DeliveryPage, DeliveryStatus, NewWebhook, Webhook, WebhookList, WebhookTarget
from kintsugi.core import codec

router = APIRouter(prefix="/v1/jobs/{job}/webhooks", tags=["webhooks"])

WebhookPath = Annotated[str, Path(min_length=1, max_length=200, description="Id of the webhook.")]
DeliveryPath = Annotated[str, Path(min_length=1, max_length=200, description="Id of the delivery.")]
StatusQuery = Annotated[DeliveryStatus | None, Query(description="Deliveries of this status alone.")]
IfMatch = Annotated[str | None, Header(max_length=200, description="Change it only where this is its ETag.")]
CHANGED = refuses(HTTPStatus.PRECONDITION_FAILED)


@router.post(
    "",
    status_code=HTTPStatus.CREATED,
    responses=tells(Webhook) | tells(Webhook, HTTPStatus.CREATED) | BODY_PROBLEMS,
    openapi_extra=takes(NewWebhook),
)
async def add_webhook(job: JobPath, body: NewWebhookBody, desk: DeskDep, idempotency_key: IdempotencyKey = None) -> Response:
    """Tell a URL of the job's decisions from now on; the same id and the same body again give the same webhook (200).

    Each event is one POST of a CloudEvent 1.0 in structured JSON, signed as Standard Webhooks specifies (`webhook-id`,
    `webhook-timestamp`, `webhook-signature`). Anything but 2xx is tried again with exponential back-off until the service
    gives up; 410 ends it at once. Deliveries may come more than once, with the same id, and out of order: compare `generation`.
    """
    await desk.webhooks.check(body)
    webhook, is_new = await desk.read(desk.webhooks.add, job, body, idempotency_key)
    status = HTTPStatus.CREATED if is_new else HTTPStatus.OK
    return reply(webhook, status, {"Location": f"/v1/jobs/{job}/webhooks/{webhook.id}"})


@router.get("", responses=tells(WebhookList) | READ_PROBLEMS)
async def list_webhooks(job: JobPath, desk: DeskDep) -> Response:
    """All webhooks of a job."""
    return reply(await desk.read(desk.webhooks.webhooks, job))


@router.get("/{webhook}", responses=tells(Webhook) | READ_PROBLEMS)
async def get_webhook(job: JobPath, webhook: WebhookPath, desk: DeskDep) -> Response:
    """One webhook, without its secret."""
    return reply(await desk.read(desk.webhooks.webhook, job, webhook))


@router.put("/{webhook}", responses=tells(Webhook) | BODY_PROBLEMS | CHANGED, openapi_extra=takes(WebhookTarget))
async def change_webhook(
    job: JobPath, webhook: WebhookPath, body: WebhookTargetBody, desk: DeskDep, if_match: IfMatch = None
) -> Response:
    """Replace url, secret and kinds; what is pending goes to the new url, signed with the new secret."""
    await desk.webhooks.check(body)
    expected = None if if_match is None else await _expected(desk, job, webhook, if_match)
    return reply(await desk.read(desk.webhooks.change, job, webhook, body, expected))


@router.delete("/{webhook}", status_code=HTTPStatus.NO_CONTENT, responses=READ_PROBLEMS | CHANGED)
async def remove_webhook(job: JobPath, webhook: WebhookPath, desk: DeskDep, if_match: IfMatch = None) -> Response:
    """Remove a webhook and forget its deliveries."""
    expected = None if if_match is None else await _expected(desk, job, webhook, if_match)
    await desk.read(desk.webhooks.remove, job, webhook, expected)
    return Response(status_code=HTTPStatus.NO_CONTENT)


@router.get("/{webhook}/deliveries", responses=tells(DeliveryPage) | READ_PROBLEMS)
async def list_deliveries(
    job: JobPath, webhook: WebhookPath, desk: DeskDep, *, status: StatusQuery = None, cursor: Cursor = None, limit: Limit = 100
) -> Response:
    """Deliveries of a webhook, the oldest first; with `status=dead` those that were given up."""
    return reply(await desk.read(desk.webhooks.deliveries, job, webhook, status, cursor, limit))


@router.post("/{webhook}/deliveries/{delivery}/retry", responses=tells(Delivery) | READ_PROBLEMS)
async def retry_delivery(job: JobPath, webhook: WebhookPath, delivery: DeliveryPath, desk: DeskDep) -> Response:
    """Send a delivery again, at once and as often as a new one, whatever became of it."""
    return reply(await desk.read(desk.webhooks.send_again, job, webhook, delivery))


async def _expected(desk: Desk, job: str, webhook: str, if_match: str) -> str:
    """`changed_at` of the webhook, which `if_match` must mean."""
    present: Webhook = await desk.read(desk.webhooks.webhook, job, webhook)
    require_match(if_match, entity_tag(codec.dumps(present)))
    return present.changed_at
