"""The page of an overlay, and its button by which a worker is asked to leave."""

from http import HTTPStatus
from urllib.parse import quote
from uuid import uuid4

from fastapi import APIRouter, Request, Response
from starlette.responses import RedirectResponse

from api.access import sessions
from api.access.addresses import scheme_of
from api.access.callers import caller
from api.access.tokens import Scope
from api.dashboard.overlay import picture_of, rate_words
from api.dashboard.rendering import PageRoute, page
from api.deps import DeskDep, JobPath
from kintsugi.core.errors import InvalidInputError
from kintsugi.core.overlay_messages import OverlayEvent, OverlayEventKind

router = APIRouter(include_in_schema=False, route_class=PageRoute)


@router.get("/dashboard/jobs/{job}/overlay")
async def overlay(request: Request, job: JobPath, desk: DeskDep) -> Response:
    """Workers and links, what is reduced over which, and the states that are on their way."""
    found = (await desk.overlays.page(job)).overlay
    token = caller().token
    may_leave = token is None or token.scope.includes(Scope.REPORT)
    picture = picture_of(found, desk.overlays.monitor.signs(job), may_leave=may_leave)
    is_planned = await desk.read(desk.service.store.job, job) is not None
    return page(request, "overlay.html", title=job, job=job, picture=picture, is_planned=is_planned, rate_words=rate_words)


@router.post("/dashboard/jobs/{job}/overlay/leave")
async def leave(request: Request, job: JobPath, desk: DeskDep) -> Response:
    """Ask a worker to leave: it hands over what it holds and goes at a boundary of steps."""
    sessions.require_same_origin(request.headers, scheme_of(request.scope, desk.settings.trusted_proxies))
    fields = await sessions.form_of(request)
    worker, incarnation = fields.get("worker", ""), fields.get("incarnation", "")
    if not worker or not (incarnation.isascii() and incarnation.isdecimal() and len(incarnation) < 16):
        raise InvalidInputError("names no worker with its incarnation; use the page's button", field="worker", value=worker[:200])
    told = OverlayEvent(
        kind=OverlayEventKind.WORKER_DRAINING,
        id=f"leave-{uuid4().hex}",
        worker=worker,
        incarnation=int(incarnation),
        detail="asked to leave on the dashboard",
    )
    await desk.overlays.post(job, told)
    row = quote(f"worker-{worker}", safe="")  # where who came by keys goes on
    return RedirectResponse(f"/dashboard/jobs/{quote(job, safe='')}/overlay#{row}", HTTPStatus.SEE_OTHER)
