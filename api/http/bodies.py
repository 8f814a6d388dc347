"""Request bodies in, and all bodies described.

Bodies are decoded by the nouns' own codec, which refuses unknown fields, booleans for numbers and what is not finite, and
names the path of what is wrong. Pydantic describes the same dataclasses, once somebody asks for the OpenAPI document: to
build its validators for every route would take a second of each start.
"""

from collections.abc import Awaitable, Callable
from email.message import Message
from http import HTTPStatus
from typing import Annotated, Any, TypeVar

from anyio.to_thread import run_sync
from fastapi import Depends, Request
from pydantic import TypeAdapter

from api.access.audit import AuditPage
from api.access.tokens import IssuedToken, NewToken, Token, TokenPage
from api.problems import MEDIA_TYPE, MalformedBodyError, Problem, UnsupportedMediaTypeError, phrase_of
from api.rendezvous import Meeting, MeetingWrite
from api.schemas import EstimateRequest, EventBatch, Judgement, NewJob, SimulationReply, SimulationRequest, WhatIf
from api.webhooks.hooks import Delivery, DeliveryPage, NewWebhook, Webhook, WebhookList, WebhookTarget
from kintsugi.core import codec
from kintsugi.core.decision import Decision, PlanEstimate
from kintsugi.core.ending import Ending, EndingRecord
from kintsugi.core.handling import ApprovalPage, ApprovalRecord
from kintsugi.core.heartbeats import HeartbeatAnswer, Heartbeats
from kintsugi.core.leases import ContingencyPage, LeaseClaim, LeaseRecord
from kintsugi.core.membership import Event
from kintsugi.core.messages import Answer, EventPage, JobPage, JobView, Pending, Report, ReportPage, ReportRecord
from kintsugi.core.overlay import Overlay
from kintsugi.core.overlay_messages import OverlayEvent, OverlayHeartbeat, OverlayHeartbeatAnswer, OverlayLog, OverlaySigns
from kintsugi.formats.exports import Export

T = TypeVar("T")

REQUESTS = (
    MeetingWrite,
    NewJob,
    NewToken,
    Event,
    EventBatch,
    Report,
    Judgement,
    Ending,
    EstimateRequest,
    SimulationRequest,
    WhatIf,
    NewWebhook,
    WebhookTarget,
    Heartbeats,
    OverlayEvent,
    OverlayHeartbeat,
    LeaseClaim,
)
RESPONSES = (
    AuditPage,
    IssuedToken,
    Token,
    TokenPage,
    Answer,
    ApprovalPage,
    ApprovalRecord,
    Decision,
    Delivery,
    DeliveryPage,
    EndingRecord,
    PlanEstimate,
    EventPage,
    Export,
    JobPage,
    JobView,
    Meeting,
    Pending,
    Problem,
    ReportPage,
    ReportRecord,
    SimulationReply,
    Webhook,
    WebhookList,
    HeartbeatAnswer,
    Overlay,
    OverlayHeartbeatAnswer,
    OverlayLog,
    OverlaySigns,
    ContingencyPage,
    LeaseRecord,
)

SMALL_BODY_BYTES = 20_000
"""Bodies up to this are decoded at once; larger ones in a thread, so that nobody waits for them."""


def decoded(decoder: Callable[[Any], T]) -> Callable[[Request], Awaitable[T]]:
    """A dependency that reads a JSON body and decodes it.

    Raises:
        UnsupportedMediaTypeError: the body does not say that it is JSON.
        MalformedBodyError: it is not JSON.
        InvalidInputError: it is not what `decoder` takes.
    """

    def decode(body: bytes) -> T:
        try:
            data = codec.parsed(body)
        except ValueError as error:
            raise MalformedBodyError(f"is not JSON: {error}", field="body") from error
        return decoder(data)

    async def read(request: Request) -> T:
        _require_json(request.headers.get("content-type", ""))
        body = await request.body()
        if len(body) <= SMALL_BODY_BYTES:
            return decode(body)
        return await run_sync(decode, body, limiter=request.app.state.desk.decoders)

    return read


def _require_json(content_type: str) -> None:
    message = Message()
    message["Content-Type"] = content_type
    if message.get_content_maintype() != "application" or message.get_content_subtype().rpartition("+")[2] != "json":
        raise UnsupportedMediaTypeError("must be application/json", field="Content-Type", value=content_type[:200])


def _event_or_batch(data: Any) -> Event | EventBatch:
    is_batch = isinstance(data, dict) and "events" in data
    return codec.decode(EventBatch, data) if is_batch else codec.decode(Event, data)


NewJobBody = Annotated[NewJob, Depends(decoded(lambda data: codec.decode(NewJob, data)))]
HeartbeatsBody = Annotated[Heartbeats, Depends(decoded(lambda data: codec.decode(Heartbeats, data)))]
EventBody = Annotated[Event | EventBatch, Depends(decoded(_event_or_batch))]
ReportBody = Annotated[Report, Depends(decoded(lambda data: codec.decode(Report, data)))]
JudgementBody = Annotated[Judgement, Depends(decoded(lambda data: codec.decode(Judgement, data)))]
EndingBody = Annotated[Ending, Depends(decoded(lambda data: codec.decode(Ending, data)))]
EstimateBody = Annotated[EstimateRequest, Depends(decoded(lambda data: codec.decode(EstimateRequest, data)))]
SimulationBody = Annotated[SimulationRequest, Depends(decoded(lambda data: codec.decode(SimulationRequest, data)))]
NewWebhookBody = Annotated[NewWebhook, Depends(decoded(lambda data: codec.decode(NewWebhook, data)))]
WebhookTargetBody = Annotated[WebhookTarget, Depends(decoded(lambda data: codec.decode(WebhookTarget, data)))]
LeaseClaimBody = Annotated[LeaseClaim, Depends(decoded(lambda data: codec.decode(LeaseClaim, data)))]
WhatIfBody = Annotated[WhatIf, Depends(decoded(lambda data: codec.decode(WhatIf, data)))]


def takes(*kinds: type) -> dict[str, Any]:
    """The OpenAPI description of an operation's body, one of `kinds`."""
    references = [_reference(kind) for kind in kinds]
    schema = references[0] if len(references) == 1 else {"anyOf": references}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def tells(kind: type, status: HTTPStatus = HTTPStatus.OK) -> dict[int | str, dict[str, Any]]:
    """The OpenAPI description of an operation's answer."""
    return {int(status): {"description": phrase_of(status), "content": {"application/json": {"schema": _reference(kind)}}}}


def refuses(*statuses: HTTPStatus) -> dict[int | str, dict[str, Any]]:
    """The OpenAPI description of an operation's refusals."""
    content = {MEDIA_TYPE: {"schema": _reference(Problem)}}
    return {int(status): {"description": phrase_of(status), "content": content} for status in statuses}


def component_schemas() -> dict[str, Any]:
    """JSON schemas of all bodies and of what they consist of, by name."""
    kinds: list[tuple[type, Any, TypeAdapter[Any]]] = [
        *((kind, "validation", TypeAdapter(kind)) for kind in REQUESTS),
        *((kind, "serialization", TypeAdapter(kind)) for kind in RESPONSES),
    ]
    _, schemas = TypeAdapter.json_schemas(kinds, ref_template="#/components/schemas/{model}")
    found: dict[str, Any] = schemas["$defs"]
    return found


def _reference(kind: type) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{kind.__name__}"}
