"""Server-sent events: what the logs say as it is written, behind the last thing that a client took in."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import anyio
from anyio.to_thread import run_sync
from fastapi.sse import EventSourceResponse, format_sse_event
from starlette.types import Message, Receive, Scope, Send

from api.access.limits import Places
from api.answers import answer_body
from api.jobs.history import Entry
from api.pages import ending_record, event_record, report_record
from api.storage.legible import IllegibleError
from api.storage.wording import Detail
from api.waiting.feed import Feed, Illegible, Line
from api.waiting.tail import PAGE, Tail, Window
from kintsugi.core import codec
from kintsugi.core.checks import LARGEST_INTEGER
from kintsugi.core.ending import Ending
from kintsugi.core.errors import InvalidInputError, UnavailableError
from kintsugi.core.membership import Event
from kintsugi.core.messages import Report
from kintsugi.core.news import NewsKind

STUCK_SECONDS = 60.0
"""A client that takes nothing in for so long is sent away; it comes back where it left off."""
RETRY_MILLISECONDS = 1_000
"""After which browsers are told to come back."""
WIRES = 1_024
"""Lines kept in the form in which they are sent, for all who listen to the same."""
HALF = "+"
"""Ends an id where the plan of that line is still to be told."""

RECORDED: Mapping[type, tuple[NewsKind, Callable[[Entry], Any]]] = MappingProxyType(
    {
        Event: (NewsKind.EVENT, event_record),
        Report: (NewsKind.REPORT, report_record),
        Ending: (NewsKind.ENDING, ending_record),
    }
)
"""The entries that streams tell of, each in its form; of the others only the plans that they let count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """How far a client has come: behind line `number`, of which the plan may be missing."""

    number: int
    plan_missing: bool = False

    @classmethod
    def of(cls, last_event_id: str) -> "Place":
        """The place that an id names.

        Raises:
            InvalidInputError: it is no id of a stream.
        """
        digits = last_event_id.removesuffix(HALF)
        if not (digits.isascii() and digits.isdecimal() and len(digits) < 20 and int(digits) <= LARGEST_INTEGER):
            message = "is no id of this stream; leave it out to begin with what comes next"
            raise InvalidInputError(message, field="Last-Event-ID", value=last_event_id[:80])
        return cls(number=int(digits), plan_missing=last_event_id.endswith(HALF))


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What a client wants to hear."""

    kinds: frozenset[NewsKind]
    detail: Detail
    is_visible: Callable[[str], bool]
    """Whether the client may hear of a job."""

    def text_of(self, line: Line | Illegible) -> bytes:
        """A line as the client is told it; empty where there is nothing for it."""
        if not self.is_visible(line.job):
            return b""
        if isinstance(line, Illegible):
            return _left_out(line)
        try:
            return _wire(line, self.kinds, self.detail)
        except IllegibleError:
            return _left_out(line)


class EventStream(EventSourceResponse):
    """Server-sent events to one client, until there are no more or the client is gone or stuck."""

    def __init__(self, messages: AsyncIterator[bytes], places: Places) -> None:
        self._places = places
        super().__init__(messages, headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})

    async def stream_response(self, send: Send) -> None:
        """Send all messages, each within `STUCK_SECONDS`."""

        async def bounded(message: Message) -> None:
            with anyio.fail_after(STUCK_SECONDS):
                await send(message)

        iterator: Any = self.body_iterator
        async with aclosing(iterator):
            await super().stream_response(bounded)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one client.

        Raises:
            TooManyRequestsError: as many clients wait already as may; nothing was sent.
        """
        with self._places.one(), suppress(TimeoutError):
            await super().__call__(scope, receive, send)


@dataclass(frozen=True, slots=True, kw_only=True)
class Streams:
    """Tells clients what happens."""

    feed: Feed
    tail: Tail
    heartbeat_seconds: float
    """Longest silence on a stream."""

    async def messages(self, job: str | None, place: Place, selection: Selection) -> AsyncGenerator[bytes, None]:
        """Everything behind `place`, of one job or of all, and then what comes, until the service stops.

        Who is behind while the database is away is sent away, too: it is too late for a refusal, and nothing is lost. So is
        who listens to a job that this version of the program does not understand any more; who listens to all hears the others.
        """
        with suppress(UnavailableError):
            async with self.tail.listening(job) as window:
                yield _begin(place)
                if place.plan_missing:
                    plan_alone = replace(selection, kinds=frozenset((NewsKind.PLAN,)) & selection.kinds)
                    for begun in await self._page(job, place.number - 1, 1):
                        if begun.number == place.number:  # else it is the first of those that follow
                            yield plan_alone.text_of(begun)
                async for line in self._lines(job, place.number, window):
                    if line is None:
                        yield b": alive\n\n"
                    elif text := selection.text_of(line):
                        yield text

    async def awaited(self, job: str, kind: type[Event] | type[Report], after: int, limit: int, seconds: float) -> list[Entry]:
        """Up to `limit` entries of a kind behind log number `after` as soon as there are any; none after `seconds`.

        Raises:
            UnavailableError: the database does not answer, or not what this version of the program understands.
        """
        with anyio.move_on_after(seconds):
            async with self.tail.listening(job) as window, aclosing(self._lines(job, after, window)) as lines:
                async for line in lines:
                    if isinstance(line, Line) and isinstance(line.entry.content, kind):
                        more = _until_illegible(window.after(line.number) or ())
                        return [at.entry for at in (line, *more) if isinstance(at.entry.content, kind)][:limit]
        return []

    async def _lines(self, job: str | None, number: int, window: Window) -> AsyncGenerator[Line | Illegible | None, None]:
        """Every line behind `number`; None for every `heartbeat_seconds` without any. A stopping service ends with a page.

        They end as well once the database was set back: what the client was told is not there any more.

        Raises:
            IllegibleError: of the lines of one job one is not understood.
        """
        caught_up = False
        while True:
            changed = window.changed
            lines = window.after(number) if caught_up else None
            if lines is None:
                lines = await self._page(job, number, PAGE)
                caught_up = len(lines) < PAGE
            if window.is_over:
                return
            for line in lines:
                if job is not None and isinstance(line, Illegible):
                    raise line.error
                number = line.number
                yield line
            if self.tail.is_closed:
                return
            if not lines and not await _happens(changed, self.heartbeat_seconds):
                yield None

    async def _page(self, job: str | None, number: int, limit: int) -> Sequence[Line | Illegible]:
        if job is None:
            return await run_sync(self.feed.after, number, limit)
        return await run_sync(self.feed.of_job, job, number, limit)


async def _happens(event: anyio.Event, seconds: float) -> bool:
    """Whether `event` happens in time."""
    with anyio.move_on_after(seconds) as scope:
        await event.wait()
    return not scope.cancelled_caught


def _until_illegible(lines: Iterable[Line | Illegible]) -> Iterator[Line]:
    """Who waits for them hears the others first."""
    for line in lines:
        if isinstance(line, Illegible):
            return
        yield line


def _left_out(line: Line | Illegible) -> bytes:
    """A comment, which programs pass over; the number stays that of the last line that was told."""
    told = f"this version of the service does not understand all of entry {line.number_in_job} of job {codec.dumps(line.job)}"
    return f": left out: {told}\n\n".encode()


def _begin(place: Place) -> bytes:
    named = f"{place.number}{HALF if place.plan_missing else ''}"
    return format_sse_event(event="begin", data_str=codec.dumps({"number": place.number}), id=named, retry=RETRY_MILLISECONDS)


@lru_cache(WIRES)
def _wire(line: Line, kinds: frozenset[NewsKind], detail: Detail) -> bytes:
    """A line as it is sent: its entry, and then the plan that it led to; empty where neither is wanted."""
    entry, messages = line.entry, []
    recorded = RECORDED.get(type(entry.content))
    tells_plan = line.plan is not None and NewsKind.PLAN in kinds
    if recorded is not None and recorded[0] in kinds:
        kind, record_of = recorded
        data = codec.dumps({"job": line.job, kind.value: record_of(entry)})
        messages.append(format_sse_event(event=kind, data_str=data, id=f"{line.number}{HALF if tells_plan else ''}"))
    if line.plan is not None and tells_plan:
        data = f'{{"job":{codec.dumps(line.job)},"plan":{answer_body(line.job, line.plan, detail).decode()}}}'
        messages.append(format_sse_event(event=NewsKind.PLAN, data_str=data, id=str(line.number)))
    return b"".join(messages)
