"""The application: requests' way to its parts. Nothing happens at import."""

import json
from contextlib import AbstractAsyncContextManager
from functools import cache
from typing import Any

from anyio.to_thread import run_sync
from fastapi import APIRouter, Depends, FastAPI, Request, Response
from starlette.middleware import Middleware
from starlette.routing import BaseRoute

from api import problems
from api.access import routes as access_routes
from api.access.gate import Gate
from api.assembly import assembled
from api.dashboard import overlay_routes as overlay_pages
from api.dashboard import routes as dashboard
from api.deps import Desk
from api.http.conditional import ConditionalReads
from api.http.description import JSON, description
from api.http.direct import DirectRoute
from api.http.middleware import BodyLimit, Observation
from api.http.queries import only_characters, only_known
from api.routes import (
    approvals,
    estimates,
    events,
    exports,
    generations,
    health,
    heartbeats,
    jobs,
    overlay,
    plans,
    rendezvous,
    reports,
    simulations,
    streams,
    webhooks,
)
from api.settings import Settings, settings_of

ROUTERS = (
    jobs.router,
    events.router,
    plans.router,
    exports.router,
    generations.router,
    rendezvous.router,
    overlay.router,
    approvals.router,
    reports.router,
    heartbeats.router,
    streams.router,
    webhooks.router,
    estimates.router,
    simulations.router,
    access_routes.router,
    access_routes.pages,
    health.router,
    overlay_pages.router,
    dashboard.router,
)

DIRECT = (
    ("POST", "/v1/jobs/{job}/events", events.post_events),
    ("POST", "/v1/jobs/{job}/reports", reports.post_report),
    ("POST", "/v1/jobs/{job}/heartbeats", heartbeats.post_heartbeats),
    ("GET", "/v1/jobs/{job}/plan", plans.get_plan),
)
"""Operations of the routers above to which plain requests go directly."""


def create_app(settings: Settings | None = None) -> FastAPI:
    """The service as an ASGI application; its database is opened when it starts.

    Raises:
        InvalidInputError: the database URL, or another setting, cannot be used.
    """
    parts = assembled(settings or settings_of())

    def lifespan(_: FastAPI) -> AbstractAsyncContextManager[None]:
        return parts.running()

    app = FastAPI(
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        openapi_url=None,
        middleware=_middleware(parts.desk),
    )
    desk = app.state.desk = parts.desk
    app.state.watch, app.state.tail, app.state.ahead, app.state.overlays = desk.watch, desk.streams.tail, parts.ahead, desk.overlays
    problems.install(app)
    app.router.routes.extend((*_direct_routes(), *_routes()))
    app.openapi = _description  # type: ignore[method-assign]
    app.add_route("/v1/openapi.json", _describe, include_in_schema=False)
    return app


@cache
def _routes() -> tuple[BaseRoute, ...]:
    """Those of all routers, with what FastAPI derives from each at the first request; nothing of it is one application's own."""
    together = APIRouter(redirect_slashes=False)
    for router in ROUTERS:
        checked = [Depends(only_known), Depends(only_characters)] if router.prefix.startswith("/v1") else None
        together.include_router(router, dependencies=checked)
    return tuple(together.routes)


@cache
def _direct_routes() -> tuple[DirectRoute, ...]:
    return tuple(DirectRoute(*operation) for operation in DIRECT)


@cache
def _description() -> dict[str, Any]:
    """Of every application, for all have the same routes."""
    return description(_routes())


@cache
def _written_description() -> bytes:
    return json.dumps(_description(), ensure_ascii=False, separators=(",", ":")).encode()


async def _describe(_: Request) -> Response:
    """In a thread: others need not wait until it is made."""
    return Response(await run_sync(_written_description), media_type=JSON)


def _middleware(desk: Desk) -> list[Middleware]:
    """What every request goes through, the outermost first."""
    return [
        Middleware(Observation, metrics=desk.metrics),
        Middleware(Gate, access=desk.access),
        Middleware(BodyLimit, max_body_bytes=desk.settings.max_body_bytes),
        Middleware(ConditionalReads),
    ]
