"""Streams: events, reports and plans as they come, for people's browsers and for programs."""

from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Response

from api.access.callers import caller
from api.access.listening import while_usable
from api.deps import READ_PROBLEMS, Desk, DeskDep, DetailQuery, JobPath
from api.storage.wording import Detail
from api.waiting.streams import EventStream, Place, Selection
from kintsugi.core.checks import LARGEST_INTEGER
from kintsugi.core.errors import InvalidInputError
from kintsugi.core.news import NewsKind

router = APIRouter(prefix="/v1", tags=["streams"])

After = Annotated[
    int | None,
    Query(ge=0, le=LARGEST_INTEGER, description="Begin behind this number, 0 for the whole past; left out, with what comes next."),
]
Kinds = Annotated[
    str | None, Query(max_length=100, description="`event`, `report`, `plan` and `ending`, separated by commas; all by default.")
]
LastEventId = Annotated[
    str | None, Header(max_length=100, description="Id of the last message that was taken in; wins over `after`.")
]

RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Messages of type `event`, `report`, `plan` and `ending` after one of type `begin`, each with JSON data",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    },
    **READ_PROBLEMS,
}


@router.get("/stream", response_class=Response, responses=RESPONSES)
async def stream_all(
    desk: DeskDep,
    *,
    after: After = None,
    kinds: Kinds = None,
    detail: DetailQuery = Detail.BRIEF,
    last_event_id: LastEventId = None,
) -> EventStream:
    """What happens to all jobs, as server-sent events; ids are places in the order of all jobs' entries."""
    selection = _selection(kinds, detail)
    end = await desk.read(desk.streams.feed.end)
    return _stream(desk, None, _asked(after, last_event_id, end), selection)


@router.get("/jobs/{job}/stream", response_class=Response, responses=RESPONSES)
async def stream_job(
    job: JobPath,
    desk: DeskDep,
    *,
    after: After = None,
    kinds: Kinds = None,
    detail: DetailQuery = Detail.BRIEF,
    last_event_id: LastEventId = None,
) -> EventStream:
    """What happens to one job, as server-sent events; ids are numbers of its log.

    An entry that led to a plan is followed by it. An id that ends with `+` says that this plan is still to come: a client that
    comes back with it as `Last-Event-ID` is told the plan, and nothing twice.
    """
    selection = _selection(kinds, detail)
    end = await desk.read(_end_of, desk, job)
    return _stream(desk, job, _asked(after, last_event_id, end), selection)


def _stream(desk: Desk, job: str | None, place: Place, selection: Selection) -> EventStream:
    messages = desk.streams.messages(job, place, selection)
    return EventStream(while_usable(messages, caller().token, desk.access), desk.access.places)


def _end_of(desk: Desk, job: str) -> int:
    return desk.service.state(job).history.number


def _asked(after: int | None, last_event_id: str | None, end: int) -> Place:
    """Where a client is to begin: what it was told behind the end is not in the database any more."""
    if last_event_id:
        return min(Place.of(last_event_id), Place(number=end), key=lambda place: place.number)
    return Place(number=end if after is None else after)


def _selection(kinds: str | None, detail: Detail) -> Selection:
    try:
        chosen = frozenset(NewsKind(kind.strip()) for kind in kinds.split(",")) if kinds else frozenset(NewsKind)
    except ValueError as error:
        names = ", ".join(kind.value for kind in NewsKind)
        raise InvalidInputError(f"must be some of {names}, separated by commas", field="kinds", value=kinds) from error
    return Selection(kinds=chosen, detail=detail, is_visible=caller().sees)
