"""Probes and metrics."""

from http import HTTPStatus

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST

from api.deps import DeskDep, reply
from api.http.bodies import refuses
from kintsugi.core.errors import UnavailableError

router = APIRouter(tags=["health"])


@router.get("/healthz")
async def healthz() -> dict[str, str]:
    """The process is alive."""
    return {"status": "ok"}


@router.get("/readyz", responses=refuses(HTTPStatus.SERVICE_UNAVAILABLE))
async def readyz(desk: DeskDep) -> Response:
    """The process can answer: its database is within reach, of its version and open to be written, and it is not stopping.

    Where the latest write failed for the database's sake (a full disk, somebody who holds it) another one has to succeed first.
    """
    if desk.watch.is_closed:
        raise UnavailableError("the service is stopping")
    await desk.read(desk.service.store.ping)
    return reply({"status": "ok"})


@router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
async def metrics(desk: DeskDep) -> Response:
    """Metrics in Prometheus' text format."""
    return Response(desk.metrics.exposition(), media_type=CONTENT_TYPE_LATEST)
