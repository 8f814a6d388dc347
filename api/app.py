"""The application: requests' way to its parts. Nothing happens at import."""

from contextlib import AbstractAsyncContextManager
from functools import cache

from fastapi import APIRouter, Depends, FastAPI
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
from api.http.description import describe
from api.http.middleware import BodyLimit, Observation
from api.http.queries import only_known
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
from kintsugi.core.version import __version__

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


def create_app(settings: Settings | None = None) -> FastAPI:
    """The service as an ASGI application; its database is opened when it starts.

    Raises:
        InvalidInputError: the database URL, or another setting, cannot be used.
    """
    parts = assembled(settings or settings_of())

    def lifespan(_: FastAPI) -> AbstractAsyncContextManager[None]:
        return parts.running()

    app = FastAPI(
        title="Kintsugi",
        summary="Plans for training jobs that lost or gained workers.",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        openapi_url=None,  # `describe` tells it
        middleware=_middleware(parts.desk),
    )
    desk = app.state.desk = parts.desk
    app.state.watch, app.state.tail, app.state.ahead, app.state.overlays = desk.watch, desk.streams.tail, parts.ahead, desk.overlays
    problems.install(app)
    app.router.routes.extend(_routes())
    describe(app)
    return app


@cache
def _routes() -> tuple[BaseRoute, ...]:
    """Those of all routers, with what FastAPI derives from each at the first request; nothing of it is one application's own."""
    together = APIRouter(redirect_slashes=False)
    for router in ROUTERS:
        together.include_router(router, dependencies=[Depends(only_known)] if router.prefix.startswith("/v1") else None)
    return tuple(together.routes)


def _middleware(desk: Desk) -> list[Middleware]:
    """What every request goes through, the outermost first."""
    return [
        Middleware(Observation, metrics=desk.metrics),
        Middleware(Gate, access=desk.access),
        Middleware(BodyLimit, max_body_bytes=desk.settings.max_body_bytes),
        Middleware(ConditionalReads),
    ]
