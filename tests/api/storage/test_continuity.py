"""A database that is emptied or set back under running services: said once, forgotten, and never are two pasts mixed."""

import json
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager

import httpx2
import pytest
from sqlalchemy import make_url

from api.metrics import Metrics
from api.records import Records
from api.schemas import NewJob
from api.service import Service
from api.storage.continuity import Head, SetBackError
from api.storage.store import Store
from api.waiting.feed import Feed
from api.webhooks.collector import Collector
from api.webhooks.guard import Guard
from api.webhooks.hooks import NewWebhook
from api.webhooks.outbox import Outbox
from api.webhooks.registry import Registry
from kintsugi.core import codec
from kintsugi.core.errors import NotFoundError, UnavailableError
from kintsugi.core.membership import Event
from tests.api.overlay.test_routes import JOINED, OVERLAY, join
from tests.api.requests import EVENTS, JOB, event, new_job
from tests.api.storage.test_durability import assert_whole, serving
from tests.api.webhooks.receiver import receiver
from tests.api.webhooks.test_webhooks import SECRET
from tests.databases import POSTGRESQL, prepare
from tests.services import service

pytestmark = pytest.mark.both_databases
PLAN = f"{JOB}/plan"
JOINING = {"kind": "worker_joined", "id": "joined-w02", "worker": "w02", "neighbors": ["w00"], **JOINED}


class Archive:
    """Backups of one database, as its administrator makes and restores them."""

    def __init__(self, url, folder, postgres):
        self.url, self._folder, self._postgres = url, folder, postgres

    def empty(self):
        """A backup without anything in it."""
        copy = self._postgres.new() if self._postgres else f"sqlite:///{self._folder}/empty.sqlite3"
        prepare(copy)
        return copy

    def back_up(self):
        if self._postgres:
            return self._postgres.back_up(self.url)
        copy = f"sqlite:///{self._folder}/backup.sqlite3"
        self._copy(self.url, copy)
        return copy

    def restore(self, copy):
        if self._postgres:
            self._postgres.restore(self.url, copy)
        else:
            self._copy(copy, self.url)

    @staticmethod
    def _copy(source, target):
        with (
            closing(sqlite3.connect(make_url(source).database)) as here,
            closing(sqlite3.connect(make_url(target).database)) as there,
        ):
            here.backup(there)


@pytest.fixture
def archive(database_kind, request, tmp_path):
    if database_kind != POSTGRESQL:
        url = f"sqlite:///{tmp_path}/kintsugi.sqlite3"
        prepare(url)
        yield Archive(url, tmp_path, None)
        return
    postgres = request.getfixturevalue("postgres")
    url = postgres.new()
    prepare(url)
    yield Archive(url, tmp_path, postgres)
    postgres.drop(url)


@pytest.fixture
def unwatched(monkeypatch):
    """Only requests notice anything."""
    monkeypatch.setattr("api.waiting.lookout.LOOK_SECONDS", 3600.0)


@contextmanager
def past(archive, num_events=1):
    """A client of a service whose job has so many events, and a backup from right before the service started."""
    with serving(archive.url) as client:
        assert client.post("/v1/jobs", json=new_job()).status_code == 201
        for number in range(num_events):
            lose(client, number)
    copy = archive.back_up()
    with serving(archive.url) as client:
        yield client, copy


def lose(client, number, **changes):
    """The answer to the loss of a worker, of the generation that is then the latest."""
    return client.post(EVENTS, json=event(f"e{number}", number, f"w0{number}", **changes))


def answered(ask):
    """The answer of a service that may have to find its database again."""
    while (answer := ask()).status_code == 503:
        assert answer.json()["error"]["code"] in ("unavailable", "storage_set_back")
    return answer


def assert_told(response):
    assert (response.status_code, response.json()["error"]["code"]) == (503, "storage_set_back"), response.text
    assert "set back while the service ran" in response.json()["detail"]


@pytest.mark.usefixtures("unwatched")
def test_an_event_of_the_lost_past_is_not_put_behind_the_restored_one(archive):
    with past(archive) as (client, copy):
        assert [lose(client, number).json()["generation"] for number in (1, 2)] == [2, 3]
        archive.restore(copy)
        assert_told(lose(client, 3))
        refused = lose(client, 3)
        assert (refused.status_code, refused.json()["current_generation"]) == (409, 1)
        answer = client.post(EVENTS, json=event("anew", 1, "w02"))
        assert (answer.status_code, answer.json()["generation"]) == (200, 2)
        assert client.get(PLAN).json() == answer.json()
    assert_whole(archive.url, "llama", {"e0": 1, "anew": 2})


@pytest.mark.usefixtures("unwatched")
def test_a_past_that_another_service_made_as_long_again_is_not_taken_for_the_same(archive):
    with past(archive) as (client, copy):
        before = lose(client, 1).headers["ETag"]
        archive.restore(copy)
        with serving(archive.url) as other:
            theirs = other.post(EVENTS, json=event("theirs", 1, "w05", "straggler", speed_ratio=0.5))
            assert theirs.json()["generation"] == 2
            assert_told(lose(client, 2))
            assert client.get(PLAN, headers={"If-None-Match": before}).json() == theirs.json()
            assert client.get(PLAN).json() == client.get(f"{JOB}/plans/2").json() == theirs.json()
            assert lose(client, 2).json()["generation"] == 3
    assert_whole(archive.url, "llama", {"e0": 1, "theirs": 2, "e2": 3})


@pytest.mark.usefixtures("unwatched")
def test_a_job_that_is_created_anew_in_an_emptied_database_begins_at_the_beginning(archive):
    with past(archive) as (client, _):
        assert client.get(JOB).status_code == 200
        archive.restore(archive.empty())
        assert_told(client.get(JOB))
        assert client.get(JOB).status_code == 404
        assert client.post("/v1/jobs", json=new_job(workers=4)).status_code == 201
        assert lose(client, 0).json()["generation"] == 1
    assert_whole(archive.url, "llama", {"e0": 1})


@pytest.mark.usefixtures("unwatched")
def test_a_job_without_events_that_was_created_anew_is_another_one(archive):
    with past(archive, num_events=0) as (client, _):
        assert client.get(JOB).status_code == 200
        archive.restore(archive.empty())
        with serving(archive.url) as other:
            assert other.post("/v1/jobs", json=new_job(workers=4)).status_code == 201
            assert_told(lose(client, 0))
            assert client.get(JOB).json()["summary"]["num_workers"] == 4


def test_who_waits_and_who_listens_hear_of_it_without_any_request(archive):
    """Real processes: answers come while others wait."""
    with serving(archive.url) as client:
        client.post("/v1/jobs", json=new_job())
        lose(client, 0)
    copy = archive.back_up()
    with service(archive.url) as process, httpx2.Client(base_url=process.url, timeout=240.0) as client:
        lose(client, 1)
        lose(client, 2)
        waited = []
        asked = {"after_generation": 3, "wait_seconds": 10}
        waiter = threading.Thread(target=lambda: waited.append(answered(lambda: client.get(PLAN, params=asked))), daemon=True)
        with client.stream("GET", f"{JOB}/stream", params={"after": 0}) as stream:
            lines = stream.iter_lines()
            assert "id: 3" in lines
            waiter.start()
            archive.restore(copy)
            assert not any(line.startswith("id:") for line in lines)  # and it ends
        waiter.join(120.0)
        assert waited[0].status_code == 204
        assert waited[0].headers["ETag"].startswith('"1@')  # the plan to go on with is of another past than generation 3
        answer = answered(lambda: client.post(EVENTS, json=event("anew", 1, "w02")))
        assert answer.json()["generation"] == 2
        with client.stream("GET", f"{JOB}/stream", headers={"Last-Event-ID": "3"}) as stream:
            begin = next(line for line in stream.iter_lines() if line.startswith("data: "))
            assert json.loads(begin.removeprefix("data: ")) == {"number": 2}
            assert process.terminate() == 0


def test_a_read_that_began_before_others_wrote_is_not_taken_for_a_database_that_was_set_back(archive):
    with past(archive) as (client, _):
        service, store = client.app.state.desk.service, client.app.state.desk.service.store
        with store.looking():
            assert service.state("llama").history.number == 1
            writer = threading.Thread(target=lose, args=(client, 1))
            writer.start()
            writer.join(120.0)
            assert service.known_state("llama").history.number == 2
            assert service.state("llama").history.number == 2
        assert store.times_set_back == 0


def test_the_end_of_all_logs_is_looked_back_at(archive):
    with past(archive) as (client, copy):
        lose(client, 1)
        store = Store(archive.url)
        try:
            store.look_back()
            lose(client, 2)
            store.look_back()
            archive.restore(copy)
            with pytest.raises(SetBackError, match="entry 3 of all logs"):
                store.look_back()
            store.look_back()
        finally:
            store.close()


def test_a_decision_that_was_read_in_the_lost_past_is_not_told_after_it(archive, monkeypatch):
    with past(archive) as (client, copy):
        lose(client, 1)
    store = Store(archive.url)
    read = store._read_decision

    def read_before_it_is_noticed(job, generation):
        found = read(job, generation)
        archive.restore(copy)
        store.database.close()  # as PostgreSQL has ended its connections
        with pytest.raises(SetBackError):
            store.entries_behind(job, Head(number=found.number, at=found.decided_at))
        return found

    try:
        monkeypatch.setattr(store, "_read_decision", read_before_it_is_noticed)
        assert store.decision("llama", 2).generation == 2
        monkeypatch.undo()
        with pytest.raises(NotFoundError):
            store.decision("llama", 2)
    finally:
        store.close()


def delivered(store):
    outbox = Outbox(store.database)
    Collector(store, outbox, retry_seconds=60).collect()
    (parcel,) = outbox.lease("9999-01-01T00:00:00.000000Z", "9999-01-01T00:00:01.000000Z", "lease", most=9)
    return json.loads(parcel.body)["data"]["decided_at"]


def streamed(store):
    return Feed(store).after(0, 1)[0].plan.decision.decided_at


def exported(store):
    return Records(store).decision("llama", 1).decided_at


@pytest.mark.parametrize("told", [delivered, streamed, exported])
def test_who_tells_of_plans_without_a_look_at_the_job_tells_of_none_that_is_lost(archive, told):
    store, other = Store(archive.url), Store(archive.url)
    try:
        ours, theirs = Service(store, Metrics()), Service(other, Metrics())
        ours.create_job(codec.decode(NewJob, new_job()))
        hook = NewWebhook(id="site", url="http://127.0.0.1:9", secret=SECRET)
        Registry(store.database, Guard(loopback=True), retry_seconds=60).add("llama", hook)
        store.close()  # as nobody may be connected to what is backed up
        copy = archive.back_up()
        ours.post_events("llama", [codec.decode(Event, event("ours", 0, "w00"))])
        archive.restore(copy)
        store.close()  # PostgreSQL has ended its connections
        there = theirs.post_events("llama", [codec.decode(Event, event("theirs", 0, "w05"))])
        with pytest.raises(SetBackError):
            told(store)
        assert told(store) == there.received_at
    finally:
        store.close()
        other.close()


@pytest.mark.processes
def test_who_watches_an_overlay_that_was_set_back_is_told_so_and_who_is_in_it_is_heard(archive):
    with past(archive):
        pass
    with serving(archive.url) as client:
        join(client, "w00")
    copy = archive.back_up()
    with service(archive.url, "--log-level", "error") as process, httpx2.Client(base_url=process.url, timeout=60.0) as client:
        lose(client, 1)
        join(client, "w01", "w00")
        assert client.post(f"{OVERLAY}/heartbeats", json={"worker": "w01", "incarnation": 1}).status_code == 200
        with client.stream("GET", f"{OVERLAY}/stream") as stream:
            lines = stream.iter_lines()
            assert "event: overlay" in lines
            archive.restore(copy)
            assert answered(lambda: client.get(PLAN)).status_code == 200
            assert not any(line.startswith("event:") for line in lines)  # and it ends
        joined = answered(lambda: client.post(f"{OVERLAY}/events", json=JOINING)).json()
        heard = answered(lambda: client.post(f"{OVERLAY}/heartbeats", json={"worker": "w02", "incarnation": 1}))
        assert (heard.status_code, heard.json()["generation"]) == (200, joined["generation"])
        assert client.post(f"{OVERLAY}/heartbeats", json={"worker": "w01", "incarnation": 1}).status_code == 404


@pytest.mark.parametrize("is_as_long_again", [False, True])
def test_an_overlay_is_the_one_that_is_there(archive, is_as_long_again):
    with serving(archive.url) as client:
        there = join(client, "w00")
    copy = archive.back_up()
    with serving(archive.url) as client:
        for worker in ("w01", "w02"):
            join(client, worker, "w00")
        archive.restore(copy)
        if is_as_long_again:
            with serving(archive.url) as other:
                there = [join(other, worker, "w00") for worker in ("w04", "w05")][-1]
        assert answered(lambda: client.get(OVERLAY)).json() == there
        asked = {"after_generation": there["generation"], "wait_seconds": 20}
        with ThreadPoolExecutor(1) as thread:
            waited = thread.submit(client.get, OVERLAY, params=asked)
            assert join(client, "w03", "w00") == waited.result(240.0).json()


def test_webhooks_are_told_of_a_generation_that_comes_again_under_another_id(archive):
    with receiver() as site:
        with serving(archive.url) as client:
            client.post("/v1/jobs", json=new_job())
            hook = {"id": "site", "url": site.url, "secret": SECRET}
            assert client.post(f"{JOB}/webhooks", json=hook).status_code == 201
        copy = archive.back_up()
        with serving(archive.url) as client:
            lose(client, 0)
            site.wait_for(1)
            archive.restore(copy)
            assert answered(lambda: client.post(EVENTS, json=event("anew", 0, "w05"))).json()["generation"] == 1
            before, after = site.wait_for(2)
    assert before.headers["webhook-id"] != after.headers["webhook-id"]
    assert json.loads(before.body)["id"] != json.loads(after.body)["id"]


@pytest.mark.usefixtures("unwatched")
def test_an_approval_that_says_which_plan_was_looked_at_lets_no_other_one_count(archive):
    with serving(archive.url) as client:
        client.post("/v1/jobs", json=new_job(handling={"requires_approval": True}))
    copy = archive.back_up()
    with serving(archive.url) as client:
        seen = lose(client, 0).json()["decided_at"]
        archive.restore(copy)
        present = answered(lambda: client.post(EVENTS, json=event("anew", 0, "w05"))).json()
        said = {"decision": "approve", "by": "Ada", "decided_at": seen}
        refused = client.post(f"{JOB}/plans/1/approval", json=said)
        assert (refused.status_code, refused.json()["error"]["field"]) == (409, "decided_at"), refused.text
        assert present["decided_at"] in refused.json()["detail"]
        assert client.get(f"{JOB}/plans/1").json()["status"] == "proposed"
        approved = client.post(f"{JOB}/plans/1/approval", json={**said, "decided_at": present["decided_at"]})
        assert approved.json()["approval"]["decided_at"] == present["decided_at"]


def test_a_document_that_is_gone_is_told_as_what_the_database_lacks(archive):
    store = Store(archive.url)
    store.open()
    try:
        with pytest.raises(UnavailableError, match="is not there: the database was emptied or set back"):
            store.body("0" * 64)
    finally:
        store.close()
