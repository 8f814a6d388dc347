"""Streams where an entry, or a plan, is not understood: a later version wrote it, or it is damaged. Nobody else's are held up."""

from contextlib import aclosing
from dataclasses import replace

import anyio
import pytest
from sqlalchemy import create_engine, text

from api.storage.legible import IllegibleError
from api.storage.wording import Detail
from api.waiting.streams import Place, Selection
from kintsugi.core.membership import Event
from kintsugi.core.news import NewsKind
from tests.api.requests import EVENTS, event, new_job

EVERYTHING = Selection(kinds=frozenset(NewsKind), detail=Detail.BRIEF, is_visible=lambda _: True)
HEARS_OTHER = replace(EVERYTHING, is_visible=lambda job: job == "other")
LATER = text(
    "insert into log (job, number, kind, body, received_at, generation, decided, deferred, position) "
    "select 'llama', 2, 'tomorrows', '{}', '2027-01-01T00:00:00.000000Z', 1, :no, :no, max(position) + 1 from log"
)
DAMAGE = text("update decisions set brief = :rubbish where job = 'llama' and generation = 1")


@pytest.fixture
def two_jobs(client, job):
    assert client.post("/v1/jobs", json=new_job(id="other")).status_code == 201
    assert client.post(EVENTS, json=event("a", 0, "w00")).status_code == 200


def changed(database_url, *statements, **values):
    engine = create_engine(database_url)
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(statement, values)
    engine.dispose()


async def heard(streams, job, place, until, selection=EVERYTHING):
    """Everything that a client hears, until the stream ends or says `until`."""
    told = b""
    with anyio.fail_after(30):
        async with aclosing(streams.messages(job, place, selection)) as messages:
            async for message in messages:
                told += message
                if until in told:
                    break
    return told.decode()


async def is_listened_to(tail, count):
    with anyio.fail_after(30):
        while tail.num_listeners < count:
            await anyio.sleep(0.01)


def another_event(client):
    assert client.post("/v1/jobs/other/events", json=event("b", 0, "w01")).status_code == 200


LEFT_OUT = ': left out: this version of the service does not understand all of entry 2 of job "llama"\n\n'


@pytest.mark.both_databases
def test_who_listens_while_it_comes(client, two_jobs, app, database_url):
    streams = app.state.desk.streams
    of_all, of_other, of_it = (
        client.portal.start_task_soon(heard, streams, job, Place(number=number), b'"plan":')
        for job, number in ((None, 1), ("other", 0), ("llama", 1))
    )
    client.portal.call(is_listened_to, streams.tail, 3)
    changed(database_url, LATER, no=False)
    assert of_it.result(timeout=240.0).count("event: ") == 1  # where it began; asked for anew it is refused, with the reason
    another_event(client)
    assert LEFT_OUT in of_all.result(timeout=240.0)
    for told in (of_all.result(), of_other.result(timeout=240.0)):
        assert '"job":"other"' in told


def test_who_comes_afterwards(client, two_jobs, app, database_url):
    changed(database_url, LATER, no=False)
    another_event(client)
    told = client.portal.call(heard, app.state.desk.streams, None, Place(number=0), b'"generation":1,"job":"other"')
    before, comment, behind = told.partition(LEFT_OUT)
    assert before.endswith("id: 1\n\n")
    assert comment
    assert "id: 3+\n" in behind


def test_who_waits_for_it(client, two_jobs, app, database_url):
    streams = app.state.desk.streams

    async def wait():
        with anyio.fail_after(30), pytest.raises(IllegibleError):
            await streams.awaited("llama", Event, 1, 10, 60.0)

    waiting = client.portal.start_task_soon(wait)
    client.portal.call(is_listened_to, streams.tail, 1)
    changed(database_url, LATER, no=False)
    waiting.result(timeout=240.0)


def test_a_plan_that_is_damaged_is_left_out(client, two_jobs, app, database_url):
    another_event(client)
    changed(database_url, text("drop trigger decisions_keeps_its_rows_from_update"), DAMAGE, rubbish=b"x")
    app.state.desk.service.store._forget()
    assert client.get("/v1/jobs/llama/plan").status_code == 503
    told = client.portal.call(heard, app.state.desk.streams, None, Place(number=0), b'"generation":1,"job":"other"')
    assert LEFT_OUT.replace("entry 2", "entry 1") in told
    own = client.portal.call(heard, app.state.desk.streams, "llama", Place(number=0), b"left out")
    assert own.endswith(LEFT_OUT.replace("entry 2", "entry 1"))


def test_of_jobs_that_are_not_the_clients_nothing_is_told(client, two_jobs, app, database_url):
    changed(database_url, LATER, no=False)
    another_event(client)
    told = client.portal.call(heard, app.state.desk.streams, None, Place(number=0), b'"plan":', HEARS_OTHER)
    assert "llama" not in told
