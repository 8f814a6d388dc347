"""The rendezvous of torchrun's agents: values that are changed by compare-and-swap."""

from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Response

from api.deps import BODY_PROBLEMS, READ_PROBLEMS, DeskDep, IdempotencyKey, reply
from api.http.bodies import decoded, refuses, takes, tells
from api.rendezvous import MOST_LETTERS, Meeting, Meetings, MeetingWrite
from kintsugi.core import codec

router = APIRouter(prefix="/v1/rendezvous/{run}/{key}", tags=["rendezvous"])

RunPath = Annotated[str, Path(min_length=1, max_length=MOST_LETTERS, description="`--rdzv-id` of the agents.")]
KeyPath = Annotated[str, Path(min_length=1, max_length=MOST_LETTERS, description="Name of the value.")]
WriteBody = Annotated[MeetingWrite, Depends(decoded(lambda data: codec.decode(MeetingWrite, data)))]


def _meetings(desk: DeskDep) -> Meetings:
    return Meetings(desk.service.store.database)


MeetingsDep = Annotated[Meetings, Depends(_meetings)]


@router.get("", responses=tells(Meeting) | READ_PROBLEMS)
async def get_value(run: RunPath, key: KeyPath, desk: DeskDep, meetings: MeetingsDep) -> Response:
    """What is under a key."""
    return reply(await desk.read(meetings.look, run, key))


@router.put("", responses=tells(Meeting) | BODY_PROBLEMS, openapi_extra=takes(MeetingWrite))
async def put_value(
    run: RunPath, key: KeyPath, body: WriteBody, desk: DeskDep, meetings: MeetingsDep, *, idempotency_key: IdempotencyKey = None
) -> Response:
    """Put a value under a key if its version is the expected one; `is_set` says whether it was.

    Without an `Idempotency-Key` who lost the answer cannot tell his own write from that of another; keys count for ten minutes.
    """
    return reply(await desk.read(meetings.put, run, key, body, idempotency_key))


@router.delete("", status_code=HTTPStatus.NO_CONTENT, responses=READ_PROBLEMS | refuses(HTTPStatus.CONFLICT))
async def delete_value(
    run: RunPath, key: KeyPath, desk: DeskDep, meetings: MeetingsDep, idempotency_key: IdempotencyKey = None
) -> Response:
    """Forget what is under a key; asked for again with its `Idempotency-Key`, nothing that was set meanwhile."""
    await desk.read(meetings.drop, run, key, idempotency_key)
    return Response(status_code=HTTPStatus.NO_CONTENT)
