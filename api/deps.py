"""What the routes work with: the application's parts, and the forms that answers take."""

from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Annotated, Any, ParamSpec, TypeVar

import anyio
from anyio.to_thread import run_sync
from fastapi import Depends, Header, Path, Query, Request, Response
from starlette.requests import ClientDisconnect

from api.access.assembly import Access
from api.answers import answer_body
from api.deadlines import Deadlines
from api.http.bodies import refuses
from api.metrics import Metrics
from api.overlay.desk import OverlayDesk
from api.records import StandingDecision
from api.service import Service
from api.settings import Settings
from api.storage.wording import Detail
from api.waiting.heartbeats_watch import HeartbeatWatch
from api.waiting.presence import while_there
from api.waiting.streams import Streams
from api.waiting.watch import Turns, Watch
from api.webhooks.registry import Registry
from kintsugi.core import codec
from kintsugi.core.checks import LARGEST_INTEGER
from kintsugi.core.errors import InvalidInputError
from kintsugi.core.handling import PlanStatus

P = ParamSpec("P")
T = TypeVar("T")

LARGEST_GENERATION = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """Everything behind the counter of one running application."""

    settings: Settings
    service: Service
    metrics: Metrics
    watch: Watch
    streams: Streams
    heartbeats: HeartbeatWatch
    turns: Turns
    deadlines: Deadlines
    planners: anyio.CapacityLimiter
    """Threads for work that may plan."""
    long_planners: anyio.CapacityLimiter
    """Those for jobs whose searches may be long: the others' writes do not wait for one."""
    students: anyio.CapacityLimiter
    """Those for questions that store nothing: no job waits for one."""
    decoders: anyio.CapacityLimiter
    """Those for large bodies: nobody who reads waits for one."""
    webhooks: Registry
    access: Access
    overlays: OverlayDesk
    leaving: anyio.Event = field(default_factory=anyio.Event)
    """Set once nobody is to wait any more."""

    def send_away(self) -> None:
        """Answer everybody who waits or listens, and let nobody wait any more."""
        self.leaving.set()
        self.watch.close()
        self.streams.tail.close()
        self.overlays.close()

    def forget(self) -> None:
        """Forget what was told of jobs: the database does not hold it any more."""
        self.watch.forget()
        self.streams.tail.forget()
        self.heartbeats.forget()
        self.overlays.forget()

    def check_wait(self, seconds: float) -> None:
        """Require a wait that the service bears.

        Raises:
            InvalidInputError: it is too long.
        """
        longest = self.settings.max_wait_seconds
        if seconds > longest:
            message = f"must be at most {longest:g}, as KINTSUGI_MAX_WAIT_SECONDS says; ask again afterwards"
            raise InvalidInputError(message, field="wait_seconds", value=seconds)

    async def read(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run short blocking work in a thread."""
        return await run_sync(lambda: work(*args, **kwargs))

    async def plan(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run work that may plan in one of the threads kept for planning."""
        return await run_sync(lambda: work(*args, **kwargs), limiter=self.planners)

    async def study(self, request: Request, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Answer a question that stores nothing, in one of the threads kept for those, if its client is there by then.

        Raises:
            ClientDisconnect: the client is gone.
        """
        with while_there(request):
            return await run_sync(lambda: work(*args, **kwargs), limiter=self.students)
        raise ClientDisconnect

    async def write(self, job: str, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run work that writes to `job`, one at a time, and wake those who wait for its outcome."""
        try:
            async with self.turns.of(job):
                return await self._plan_for(job, lambda: work(*args, **kwargs))
        finally:  # what leaves a job without a plan is an error, and logged all the same
            self._wrote(job)

    async def expire(self, job: str) -> None:
        """Log what a job's deadlines lead to that have passed; of all who wait for one, the first does so."""
        async with self.turns.of(job):
            if not self.service.may_be_due(job):
                return
            await self._plan_for(job, lambda: self.service.expire(job))
        self._wrote(job)

    async def _plan_for(self, job: str, work: Callable[[], T]) -> T:
        """Run work that may plan for a job in one of the threads kept for such jobs."""
        return await run_sync(work, limiter=self.long_planners if self.service.may_search_long(job) else self.planners)

    def _wrote(self, job: str) -> None:
        """Wake those who wait for what was written."""
        self._tell(job)
        self.streams.tail.poke()
        self.heartbeats.moved(job)

    def _tell(self, job: str) -> None:
        history = self.service.kept_history(job)
        if history is None:
            return
        self.watch.tell(job, history.lifecycle.current)
        if history.deadline is not None:
            self.deadlines.expect(history.deadline.at)


async def desk_of(request: Request) -> Desk:
    """The desk of the application that serves `request`; asynchronous, or each request would wait for a thread to be told."""
    desk: Desk = request.app.state.desk
    return desk


DeskDep = Annotated[Desk, Depends(desk_of)]
JobPath = Annotated[str, Path(min_length=1, max_length=200, description="Id of the job.")]
GenerationPath = Annotated[int, Path(ge=0, le=LARGEST_GENERATION, description="Generation of the decision.")]
Cursor = Annotated[str | None, Query(max_length=1_000, description="`next_cursor` of the page before.")]
Limit = Annotated[int, Query(ge=1, le=1000, description="Most items on the page.")]
IdempotencyKey = Annotated[
    str | None,
    Header(min_length=1, max_length=200, description="The same key again gives the first answer again and changes nothing."),
]

After = Annotated[int | None, Query(ge=0, le=LARGEST_INTEGER, description="Only what stands behind this number of the log.")]
WaitSeconds = Annotated[float, Query(ge=0, allow_inf_nan=False, description="Wait so long where there is nothing new yet.")]
DetailQuery = Annotated[Detail, Query(description="`brief` leaves `alternatives` and `previous_plan` empty.")]

READ_PROBLEMS = refuses(HTTPStatus.NOT_FOUND, HTTPStatus.UNPROCESSABLE_ENTITY, HTTPStatus.SERVICE_UNAVAILABLE)
BODY_PROBLEMS = refuses(
    HTTPStatus.BAD_REQUEST,
    HTTPStatus.NOT_FOUND,
    HTTPStatus.CONFLICT,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
    HTTPStatus.UNPROCESSABLE_ENTITY,
    HTTPStatus.SERVICE_UNAVAILABLE,
)


def reply(value: Any, status: HTTPStatus = HTTPStatus.OK, headers: dict[str, str] | None = None) -> Response:
    """`value` as canonical JSON."""
    return Response(codec.dumps(value), status, headers, "application/json")


def answer(job: str, found: StandingDecision, detail: Detail) -> Response:
    """A stored decision as an `Answer`, its JSON put together from what lies in the database."""
    body = answer_body(job, found, detail)
    return Response(body, HTTPStatus.OK, {"ETag": etag(found)}, "application/json")


def etag(found: StandingDecision) -> str:
    """The entity tag of a plan: which one it is, and the log entry since which it stands otherwise than when it was decided.

    The moment tells it from one that had its generation before the database was set back.
    """
    decision, standing = found.decision, found.standing
    named = f"{decision.generation}@{decision.decided_at}"
    if standing.number == decision.number:
        return f'"{named}"'
    since = PlanStatus.SUPERSEDED.value if standing.number is None else standing.number
    return f'"{named}.{since}"'
