"""The parts of one application, put together, and their life from its start to its end."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import anyio
from anyio.to_thread import run_sync

from api.access.assembly import access_of
from api.deadlines import Deadlines
from api.decisions.contingencies import Contingencies
from api.decisions.forkserver import ForkServer
from api.decisions.warm import fork_server
from api.decisions.workshop import Workshop
from api.deps import Desk
from api.metrics import Metrics
from api.overlay.assembly import overlays_of
from api.service import Service
from api.settings import Settings
from api.spans import SPANS
from api.storage.shared_clock import SharedClock
from api.storage.store import Store
from api.waiting.feed import Feed
from api.waiting.hearsay import Hearsay
from api.waiting.heartbeats_watch import HeartbeatWatch
from api.waiting.lookout import Lookout
from api.waiting.streams import Streams
from api.waiting.tail import Tail
from api.waiting.watch import Turns, Watch
from api.webhooks.assembly import webhooks_of

SETTLING_SECONDS = 0.1
"""How long a job is left alone after a decision, at least, before plans are made ahead of the next one."""
DECODING_THREADS = 4
"""For bodies too large to be decoded between other requests."""


class Background(Protocol):
    """What runs beside the requests as long as the application does."""

    async def run(self) -> None:
        """Return once it is closed."""
        ...

    def close(self) -> None:
        """Let `run` return."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Everything that one application consists of."""

    store: Store
    clock: SharedClock
    desk: Desk
    background: tuple[Background, ...]
    ahead: Contingencies | None
    workshop: Workshop
    fork_server: ForkServer

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """From the opening of the database to the end of the last process.

        Raises:
            UnavailableError: the database does not answer.
            InvalidInputError: it is of another version, or tokens are needed and there is none.
        """
        endpoint = self.desk.settings.otel_endpoint
        if endpoint is not None:
            SPANS.start(endpoint)
        try:
            await run_sync(self.store.open)
            await run_sync(self.clock.look)
            await run_sync(self.desk.access.open)
            await run_sync(self.desk.overlays.restore, self.desk.settings)
            async with self._working():
                yield
        finally:
            if self.ahead is not None:
                await run_sync(self.ahead.close)
            await run_sync(self.workshop.close)
            await run_sync(self.fork_server.close)
            self.store.close()
            if endpoint is not None:
                await run_sync(SPANS.stop)

    @asynccontextmanager
    async def _working(self) -> AsyncIterator[None]:
        if self.ahead is not None:
            self.ahead.start()
        async with anyio.create_task_group() as tasks:
            for part in self.background:
                tasks.start_soon(part.run)
            yield
            for part in self.background:
                part.close()


def assembled(settings: Settings) -> Parts:
    """The parts by the settings; nothing is opened yet.

    Raises:
        InvalidInputError: the database URL cannot be used.
    """
    store, metrics, server = Store(settings.database_url), Metrics(), fork_server()
    workshop, ahead = Workshop(settings.planning_processes, server), _ahead(settings, store, server)
    clock = SharedClock(store.database)
    service = Service(store, metrics, now=clock.now, ahead=ahead, workshop=workshop)
    access, hooks, feed = access_of(settings, store.database), webhooks_of(settings, store, metrics), Feed(store)

    def write(job: str, work: Callable[..., Any], *args: Any) -> Awaitable[Any]:
        return desk.write(job, work, *args)

    desk = Desk(
        settings=settings,
        service=service,
        metrics=metrics,
        watch=Watch(service.latest_generations),
        streams=Streams(feed=feed, tail=Tail(feed), heartbeat_seconds=settings.stream_heartbeat_seconds),
        heartbeats=HeartbeatWatch(
            service,
            lambda job, events: write(job, service.post_events, job, events),
            witness=Hearsay(store.database, "jobs"),
        ),
        turns=Turns(),
        deadlines=Deadlines(
            store.agenda,
            service.now,
            lambda job: write(job, service.expire, job),
            at_a_time=2 * settings.max_planning_threads,  # no more of them could go on at the same time
        ),
        planners=anyio.CapacityLimiter(settings.max_planning_threads),
        long_planners=anyio.CapacityLimiter(settings.max_planning_threads),
        decoders=anyio.CapacityLimiter(DECODING_THREADS),
        students=anyio.CapacityLimiter(settings.max_study_threads),
        webhooks=hooks.registry,
        access=access,
        overlays=overlays_of(settings, store.database),
    )
    _count(desk, ahead)
    told = (desk.watch, desk.overlays, desk.streams.tail, desk.heartbeats)
    beside = (*told, clock, desk.deadlines, Lookout(store, desk.forget), hooks.courier, access.auditor)
    return Parts(store=store, clock=clock, desk=desk, background=beside, ahead=ahead, workshop=workshop, fork_server=server)


def _ahead(settings: Settings, store: Store, server: ForkServer) -> Contingencies | None:
    if not settings.plans_ahead:
        return None
    ahead = Contingencies(store.shelf, server, pair_work=settings.pair_work, settling_seconds=SETTLING_SECONDS)
    store.when_set_back(ahead.forget_all)
    return ahead


def _count(desk: Desk, ahead: Contingencies | None) -> None:
    """Let the gauges show what the parts count."""
    metrics, tail = desk.metrics, desk.streams.tail
    metrics.count_jobs(desk.service.job_states)
    metrics.streams.set_function(lambda: tail.num_listeners)
    metrics.watched.set_function(desk.heartbeats.num_workers)
    if ahead is not None:
        metrics.pending.set_function(ahead.num_pending)
