"""Probes and metrics."""

from http import HTTPStatus
from typing import Annotated

import anyio
from anyio.to_thread import run_sync
from fastapi import APIRouter, Query, Response
from prometheus_client import CONTENT_TYPE_LATEST

from api.deps import DeskDep, reply
from api.http.bodies import refuses
from api.storage.engines import DATABASE_FIELD
from kintsugi.core.errors import UnavailableError

router = APIRouter(tags=["health"])

PROBE_SECONDS = 1.0
"""How long a probe waits for the database: who sends it waits hardly longer, and a writer may wait ten times as long."""

ReadsOnly = Annotated[
    bool,
    Query(description="Whether it is enough that the database can be read: one that takes no writes takes none of any process."),
]


@router.head("/healthz", include_in_schema=False)  # as some balancers ask
@router.get("/healthz")
async def healthz() -> dict[str, str]:
    """The process is alive."""
    return {"status": "ok"}


@router.head("/readyz", include_in_schema=False)
@router.get("/readyz", responses=refuses(HTTPStatus.UNPROCESSABLE_ENTITY, HTTPStatus.SERVICE_UNAVAILABLE))
async def readyz(desk: DeskDep, *, reads_only: ReadsOnly = False) -> Response:
    """The process can answer: its database is within reach, of its version and open to be written, and it is not stopping.

    Where a write failed for the database's sake (a full disk, somebody who holds it) one that it tries itself has to succeed first.
    It is answered within about a second.
    """
    if desk.watch.is_closed:
        raise UnavailableError("the service is stopping")
    ping = desk.service.store.ping_to_read if reads_only else desk.service.store.ping
    with anyio.move_on_after(PROBE_SECONDS) as patience:
        await run_sync(ping, abandon_on_cancel=True)
    if patience.cancelled_caught:
        raise UnavailableError(f"the database does not answer within {PROBE_SECONDS:g} s", field=DATABASE_FIELD)
    return reply({"status": "ok"})


@router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
async def metrics(desk: DeskDep) -> Response:
    """Metrics in Prometheus' text format."""
    return Response(desk.metrics.exposition(), media_type=CONTENT_TYPE_LATEST)
