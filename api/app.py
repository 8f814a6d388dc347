"""The application: its parts put together. Nothing happens at import."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from fastapi import FastAPI
from starlette.middleware import Middleware

from api import problems
from api.access import routes as access_routes
from api.access.assembly import access_of
from api.access.gate import Gate
from api.dashboard import routes as dashboard
from api.deadlines import Deadlines
from api.decisions.contingencies import Contingencies
from api.deps import Desk
from api.http.conditional import ConditionalReads
from api.http.description import describe
from api.http.middleware import BodyLimit, Observation
from api.metrics import Metrics
from api.overlay.assembly import overlays_of
from api.routes import (
    approvals,
    estimates,
    events,
    exports,
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
from api.service import Service
from api.settings import Settings
from api.spans import SPANS
from api.storage.store import Store
from api.waiting.feed import Feed
from api.waiting.heartbeats_watch import HeartbeatWatch
from api.waiting.streams import Streams
from api.waiting.tail import Tail
from api.waiting.watch import Turns, Watch
from api.webhooks.assembly import webhooks_of
from kintsugi.core.version import __version__

SETTLING_SECONDS = 0.1
"""How long a job is left alone after a decision before plans are made ahead of the next one."""

ROUTERS = (
    jobs.router,
    events.router,
    plans.router,
    exports.router,
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
    dashboard.router,
)


def create_app(settings: Settings | None = None) -> FastAPI:
    """The service as an ASGI application; its database is opened when it starts.

    Raises:
        InvalidInputError: the database URL cannot be used.
    """
    settings = settings or Settings()
    store, metrics = Store(settings.database_url), Metrics()
    ahead = (
        Contingencies(store.shelf, pair_work=settings.pair_work, settling_seconds=SETTLING_SECONDS)
        if settings.plans_ahead
        else None
    )
    if ahead is not None:
        metrics.pending.set_function(ahead.num_pending)
    service = Service(store, metrics, ahead=ahead)
    metrics.count_jobs(service.job_states)
    access = access_of(settings, store.database)
    watch = Watch(service.latest_generations)
    feed = Feed(store)
    tail = Tail(feed)
    metrics.streams.set_function(lambda: tail.num_listeners)
    listeners = HeartbeatWatch(service, lambda job, events: app.state.desk.write(job, service.post_events, job, events))
    metrics.watched.set_function(listeners.num_workers)
    hooks = webhooks_of(settings, store, metrics)
    overlays = overlays_of(settings, store.database)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        deadlines = Deadlines(store.agenda, service.now, lambda job: desk.write(job, service.expire, job))
        desk = app.state.desk = Desk(
            settings=settings,
            service=service,
            metrics=metrics,
            watch=watch,
            streams=Streams(feed=feed, tail=tail, heartbeat_seconds=settings.stream_heartbeat_seconds),
            heartbeats=listeners,
            turns=Turns(),
            deadlines=deadlines,
            planners=anyio.CapacityLimiter(settings.max_planning_threads),
            webhooks=hooks.registry,
            access=access,
            overlays=overlays,
        )
        if settings.otel_endpoint is not None:
            SPANS.start(settings.otel_endpoint)
        await anyio.to_thread.run_sync(store.open)
        await anyio.to_thread.run_sync(access.open)
        if ahead is not None:
            ahead.start()
        async with anyio.create_task_group() as tasks:
            background = (watch, deadlines, overlays, tail, listeners, hooks.courier, access.auditor)
            for part in background:
                tasks.start_soon(part.run)
            yield
            for part in background:
                part.close()
        if ahead is not None:
            await anyio.to_thread.run_sync(ahead.close)
        store.close()
        if settings.otel_endpoint is not None:
            await anyio.to_thread.run_sync(SPANS.stop)

    app = FastAPI(
        title="Kintsugi",
        summary="Plans for training jobs that lost or gained workers.",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        openapi_url="/v1/openapi.json",
        middleware=[
            Middleware(Observation, metrics=metrics),
            Middleware(Gate, access=access),
            Middleware(BodyLimit, max_body_bytes=settings.max_body_bytes),
            Middleware(ConditionalReads),
        ],
    )
    app.state.watch, app.state.tail, app.state.ahead, app.state.overlays = watch, tail, ahead, overlays
    problems.install(app)
    for router in ROUTERS:
        app.include_router(router)
    describe(app)
    return app
