"""Streams tell every entry once, in order, with its plan; they are taken up again behind any message, and end with the service."""

import json
from contextlib import asynccontextmanager, closing
from itertools import islice

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from api.access.limits import Places
from api.jobs.history import Entry
from api.storage.continuity import Mark
from api.storage.wording import Detail
from api.waiting.feed import Line
from api.waiting.streams import EventStream, Place, Selection, Streams
from api.waiting.tail import PAGE, WINDOW_LINES, Tail, Window
from kintsugi.client import Client, Patience
from kintsugi.core import codec
from kintsugi.core.errors import InvalidInputError, UnavailableError
from kintsugi.core.job import JobSettings
from kintsugi.core.membership import Event, EventKind
from kintsugi.core.messages import Report
from kintsugi.core.news import News, NewsKind
from tests.api.requests import EVENTS, JOB, REPORTS, event, new_job, report
from tests.builders import uniform_profile
from tests.services import service

pytestmark = pytest.mark.anyio
EVERYTHING = Selection(kinds=frozenset(NewsKind), detail=Detail.BRIEF, is_visible=lambda _: True)
SILENCE = b": alive\n\n"


class Memory:
    """A feed whose lines are in memory."""

    def __init__(self):
        self.written: list[tuple[str, int]] = []
        self.away = False
        self.asked: set[tuple[str | None, int]] = set()
        """Of which job, or of all, behind which number."""
        self.num_refused = 0

    def write(self, job):
        self.written.append((job, 1 + sum(name == job for name, _ in self.written)))

    def end(self):
        if self.away:
            self.num_refused += 1
            raise UnavailableError("away")
        return len(self.written)

    def mark(self):
        return Mark(position=self.end(), at="")

    def behind(self, mark, limit):
        return self.after(mark.position, limit)

    def after(self, position, limit):
        self.end()
        self.asked.add((None, position))
        chosen = list(enumerate(self.written, start=1))[position : position + limit]
        return [self._line(job, number, place) for place, (job, number) in chosen]

    def of_job(self, job, number, limit):
        self.end()
        self.asked.add((job, number))
        return [self._line(job, n, n) for name, n in self.written if name == job and n > number][:limit]

    def _line(self, job, number, place):
        content = Event(kind=EventKind.WORKER_FAILED, id=f"{job}-{number}", generation=0, worker="w00")
        entry = Entry(number=number, received_at="", content=content, generation=0, decided=False, problem=None)
        return Line(job=job, number=place, entry=entry, plan=None)


def parsed(text):
    """Type, id and data of each message."""
    result = []
    for block in text.decode().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if "data" in fields:
            result.append((fields["event"], fields["id"], json.loads(fields["data"])))
    return result


@asynccontextmanager
async def running(memory, heartbeat_seconds=60.0):
    tail = Tail(memory)
    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(tail.run)
            yield Streams(feed=memory, tail=tail, heartbeat_seconds=heartbeat_seconds), tasks
            tail.close()


async def until(condition):
    while not condition():
        await anyio.sleep(0.01)


async def told(streams, job, place, count):
    """Ids of events, in order, once there are so many."""
    ids = []
    messages = streams.messages(job, place, EVERYTHING)
    async for message in messages:
        ids += [data["event"]["event"]["id"] for kind, _, data in parsed(message) if kind == "event"]
        if len(ids) >= count:
            break
    await messages.aclose()
    return ids


async def test_past_and_present_are_told_once_and_in_order():
    memory = Memory()
    for number in range(2 * PAGE + 5):
        memory.write("ab"[number % 2])
    async with running(memory) as (streams, tasks):
        heard = {}

        async def hear(name, job, place, count):
            heard[name] = await told(streams, job, Place(number=place), count)

        everything = 2 * PAGE + 5 + WINDOW_LINES + 50
        tasks.start_soon(hear, "all", None, 0, everything)
        tasks.start_soon(hear, "a", "a", 3, everything // 2 + 1 - 3)
        await until(lambda: memory.asked >= {("a", PAGE + 3), (None, 2 * PAGE + 5)})
        for number in range(2 * PAGE + 5, everything):
            memory.write("ab"[number % 2])
            if number % 97 == 0:
                streams.tail.poke()
                await anyio.lowlevel.checkpoint()
        streams.tail.poke()
        await until(lambda: len(heard) == 2)
    assert heard["all"] == [f"{job}-{number}" for job, number in memory.written]
    assert heard["a"] == [f"a-{number}" for number in range(4, everything // 2 + 2)]


async def test_who_left_goes_on_where_it_was():
    memory = Memory()
    async with running(memory) as (streams, _):
        for _ in range(30):
            memory.write("a")
        first = await told(streams, "a", Place(number=0), 12)
        last = int(first[-1].partition("-")[2])
        assert await told(streams, "a", Place(number=last), 30 - last) == [f"a-{n}" for n in range(last + 1, 31)]
        assert streams.tail.num_listeners == 0


async def test_silence_is_filled_and_the_end_ends_the_stream():
    async with running(Memory(), heartbeat_seconds=0.01) as (streams, _):
        messages = streams.messages("a", Place(number=7), EVERYTHING)
        assert parsed(await anext(messages)) == [("begin", "7", {"number": 7})]
        assert await anext(messages) == SILENCE
        streams.tail.close()
        assert [message async for message in messages if message != SILENCE] == []


async def test_a_database_that_returns_is_read_on():
    memory = Memory()
    async with running(memory) as (streams, tasks):
        heard = []

        async def hear():
            heard.extend(await told(streams, "a", Place(number=0), 1))

        tasks.start_soon(hear)
        await until(lambda: ("a", 0) in memory.asked)
        memory.away = True
        memory.write("a")
        streams.tail.poke()
        await until(lambda: memory.num_refused)
        memory.away = False
        await until(lambda: heard)
    assert heard == ["a-1"]


async def test_who_is_behind_while_the_database_is_away_is_sent_away():
    memory = Memory()
    for _ in range(PAGE + 1):
        memory.write("a")
    async with running(memory) as (streams, _):
        messages = streams.messages("a", Place(number=0), EVERYTHING)
        told = [await anext(messages) for _ in range(2)]
        memory.away = True
        told += [message async for message in messages]
        assert len(told) == 1 + PAGE
        assert streams.tail.num_listeners == 0


async def test_a_client_that_takes_nothing_in_is_sent_away(monkeypatch):
    monkeypatch.setattr("api.waiting.streams.STUCK_SECONDS", 0.01)
    ended = []

    async def endless():
        try:
            while True:
                yield b"data: x\n\n"
        finally:
            ended.append(True)

    async def receive():
        await anyio.sleep_forever()

    async def send(message):
        if message["type"] == "http.response.body":
            await anyio.sleep_forever()

    with anyio.fail_after(10):
        await EventStream(endless(), Places(1))({"type": "http"}, receive, send)
    assert ended


@given(kept=st.integers(0, 40), number=st.integers(0, 60))
@settings(deadline=None, max_examples=50)
def test_a_window_never_hides_a_gap(kept, number):
    window = Window()
    memory = Memory()
    for _ in range(20 + kept):
        memory.write("a")
    for line in memory.of_job("a", 20, kept):
        window.add(line)
    lines = window.after(number)
    expected = list(range(max(number, 20) + 1, 21 + kept))
    if kept and number < 20:
        assert lines is None
    else:
        assert [line.number for line in lines] == expected


@pytest.mark.parametrize("text", ["x", "-1", "1++", "+", "\u0661", "9" * 30, " 1"])
def test_ids_that_are_none(text):
    with pytest.raises(InvalidInputError) as error:
        Place.of(text)
    assert error.value.field == "Last-Event-ID"


def test_ids():
    assert Place.of("17") == Place(number=17)
    assert Place.of("17+") == Place(number=17, plan_missing=True)


async def gathered(streams, job, place, selection, count):
    result = []
    messages = streams.messages(job, place, selection)
    async for message in messages:
        result += parsed(message)
        if len(result) >= count:
            break
    await messages.aclose()
    return result


def test_the_real_log(client, job, app):
    for n, worker in enumerate(("w01", "w02")):
        assert client.post(EVENTS, json=event(f"e{n}", n, worker)).status_code == 200
    assert client.post(REPORTS, json=report(2)).status_code == 201
    client.post("/v1/jobs", json=new_job(id="other"))
    client.post("/v1/jobs/other/events", json=event("e", 0, "w01"))
    plans = [client.get(f"{JOB}/plans/{generation}?detail=brief").json() for generation in (1, 2)]
    streams = app.state.desk.streams

    def hear(job, place, count, kinds=frozenset(NewsKind)):
        selection = Selection(kinds=kinds, detail=Detail.BRIEF, is_visible=lambda name: name != "other" or job is None)
        return client.portal.call(gathered, streams, job, place, selection, count)

    whole = hear("llama", Place(number=0), 6)
    assert [(kind, name) for kind, name, _ in whole] == [
        ("begin", "0"), ("event", "1+"), ("plan", "1"), ("event", "2+"), ("plan", "2"), ("report", "3"),
    ]  # fmt: skip
    told = [data["plan"] for kind, _, data in whole if kind == "plan"]  # a plan's standing may have changed since
    assert [(plan["generation"], plan["decision"]) for plan in told] == [(p["generation"], p["decision"]) for p in plans]
    events, reports = client.get(EVENTS).json()["events"], client.get(REPORTS).json()["reports"]
    assert [data["event"] for kind, _, data in whole if kind == "event"] == events
    assert [data["report"] for kind, _, data in whole if kind == "report"] == reports
    for start, (_, name, _) in enumerate(whole[:-1]):
        assert hear("llama", Place.of(name), 6 - start)[1:] == whole[start + 1 :]
    assert [name for _, name, _ in hear("llama", Place(number=0), 3, frozenset([NewsKind.PLAN]))] == ["0", "1", "2"]
    everywhere = hear(None, Place(number=2), 4)
    assert [(kind, name, data.get("job")) for kind, name, data in everywhere[1:]] == [
        ("report", "3", "llama"), ("event", "4+", "other"), ("plan", "4", "other"),
    ]  # fmt: skip


def test_an_id_that_anybody_may_send_tells_nothing_of_another_job(client, job, app):
    client.post(EVENTS, json=event("a", 0, "w01"))
    client.post("/v1/jobs", json=new_job(id="other"))
    client.post("/v1/jobs/other/events", json=event("a", 0, "w01"))
    chosen = Selection(kinds=frozenset(NewsKind), detail=Detail.BRIEF, is_visible=lambda name: name == "other")
    told = client.portal.call(gathered, app.state.desk.streams, None, Place(number=1, plan_missing=True), chosen, 3)
    assert [data.get("job") for _, _, data in told] == [None, "other", "other"]


def test_the_end_of_a_job_is_told(client, job, app):
    record = client.post(f"{JOB}/ending", json={"outcome": "completed"}).json()
    chosen = Selection(kinds=frozenset([NewsKind.ENDING]), detail=Detail.BRIEF, is_visible=lambda _: True)
    told = client.portal.call(gathered, app.state.desk.streams, "llama", Place(number=0), chosen, 2)
    assert told[1:] == [("ending", "1", {"job": "llama", "ending": record})]
    assert codec.decode(News, told[1][2]).kind is NewsKind.ENDING


def test_over_http_a_stream_begins_at_the_end_and_a_stopping_service_ends_it(client, job, app):
    client.post(EVENTS, json=event("a", 0, "w01"))
    app.state.tail.close()
    answer = client.get(f"{JOB}/stream")
    assert [name for kind, name, _ in parsed(client.get(f"{JOB}/stream?after=0").content)] == ["0", "1+", "1"]
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert parsed(answer.content) == [("begin", "1", {"number": 1})]
    for path in (f"{JOB}/stream", "/v1/stream"):
        assert [name for _, name, _ in parsed(client.get(path, headers={"Last-Event-ID": "0+"}).content)] == ["0+", "1+", "1"]


@pytest.mark.parametrize(
    ("url", "headers", "status", "field"),
    [
        ("/v1/jobs/nobody/stream", {}, 404, "job"),
        (f"{JOB}/stream?kinds=news", {}, 422, "kinds"),
        (f"{JOB}/stream?after=-1", {}, 422, "after"),
        (f"{JOB}/stream", {"Last-Event-ID": "x"}, 422, "Last-Event-ID"),
        ("/v1/stream", {"Last-Event-ID": "x"}, 422, "Last-Event-ID"),
    ],
)
def test_refusals_come_before_the_stream(client, job, url, headers, status, field):  # noqa: PLR0917
    answer = client.get(url, headers=headers)
    assert answer.status_code == status
    assert answer.json()["error"]["field"] == field


def test_a_stream_that_cannot_begin_is_refused(client, app, monkeypatch):
    def away():
        raise UnavailableError("away")

    monkeypatch.setattr(app.state.desk.streams.feed, "end", away)
    for query in ("", "?after=0"):
        assert client.get(f"/v1/stream{query}").status_code == 503


def test_events_and_reports_are_waited_for(client, job, app):
    assert client.get(EVENTS, params={"after": 0, "wait_seconds": 0.01}).json() == {"events": [], "next_cursor": None}
    heard = {}

    async def wait(name, kind):
        heard[name] = [entry.number for entry in await app.state.desk.streams.awaited("llama", kind, 0, 10, 60.0)]

    waiting = [client.portal.start_task_soon(wait, kind.__name__, kind) for kind in (Event, Report)]
    client.post(EVENTS, json=event("a", 0, "w01"))
    client.post(REPORTS, json=report(1))
    for future in waiting:
        future.result(timeout=240.0)
    assert heard == {"Event": [1], "Report": [2]}
    assert client.get(REPORTS, params={"after": 1, "wait_seconds": 20}).json()["reports"][0]["number"] == 2
    assert client.get(EVENTS, params={"after": 1, "cursor": "x"}).json()["error"]["field"] == "after"
    refused = client.get(EVENTS, params={"wait_seconds": 31}).json()["error"]
    assert refused["field"] == "wait_seconds"
    assert "at most 30, as KINTSUGI_MAX_WAIT_SECONDS says" in refused["message"]


@pytest.mark.processes
def test_a_stream_survives_a_kill_of_the_service_without_loss_and_without_repetition(tmp_path):
    database, patience = tmp_path / "killed.sqlite3", Patience(attempts=60, longest_retry_seconds=1.0)
    lost = [Event(kind=EventKind.STRAGGLER, id=f"e{n}", generation=n, worker=f"w0{n}", speed_ratio=0.5) for n in range(4)]
    with service(database) as first, Client(first.url, patience=patience) as client:
        client.create_job(job="llama", profile=uniform_profile(4), workers=6, settings=JobSettings(num_microbatches=8))
        with closing(client.follow("llama", after=0)) as stream, closing(client.follow(after=0)) as everywhere:
            for happened in lost[:2]:
                client.post_event("llama", happened)
            heard, seen = list(islice(stream, 3)), list(islice(everywhere, 2))
            first.kill()
            with service(database, "--port", first.url.rpartition(":")[2]):
                for happened in lost[2:]:
                    client.post_event("llama", happened)
                heard += islice(stream, 5)
                seen += islice(everywhere, 6)
    kinds = [(message.kind, (message.plan or message.event).generation) for message in heard]
    assert kinds == [(kind, generation) for generation in range(1, 5) for kind in (NewsKind.EVENT, NewsKind.PLAN)]
    assert seen == heard
