"""Events within a job's `coalesce_seconds` are answered with one plan, also by a service that was not there when they came."""

import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest
from starlette.testclient import TestClient

from api.app import create_app
from api.settings import Settings
from kintsugi.client import Client
from kintsugi.core.job import JobSettings
from kintsugi.core.membership import Event, EventKind
from tests.api.jobs.test_modes import Handling, Metrics, Service, applied, clock, lose, make  # noqa: F401  (fixtures)
from tests.api.requests import EVENTS, JOB, event, new_job
from tests.builders import uniform_profile
from tests.patience import eventually
from tests.services import service as running_service


def test_events_in_one_window_get_one_plan_and_everybody_the_same_answer(client):
    client.post("/v1/jobs", json=new_job(handling={"coalesce_seconds": 5.0}))
    answers = {}
    asking = [
        threading.Thread(target=lambda worker=worker: answers.update({worker: client.post(EVENTS, json=event(worker, 0, worker))}))
        for worker in ("w00", "w03")
    ]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join(timeout=240.0)
    bodies = [answer.json() for answer in answers.values()]
    assert [body["generation"] for body in bodies] == [1, 1]
    assert bodies[0] == bodies[1]
    assert client.post(EVENTS, json=event("w00", 0, "w00")).json() == bodies[0]
    records = client.get(EVENTS).json()["events"]
    assert [(record["generation"], record["pending"]) for record in records] == [(1, False), (1, False)]


@pytest.fixture
def moved(app, clock):  # noqa: F811
    """The clock of the service that the client asks."""
    desk = app.state.desk
    desk.service.now = desk.deadlines._now = clock
    return clock


def test_who_does_not_wait_is_told_where_to_look(moved, client):
    client.post("/v1/jobs", json=new_job(handling={"coalesce_seconds": 600.0}))
    answer = client.post(EVENTS, json=event("a", 0, "w00"), params={"wait_seconds": 0})
    assert (answer.status_code, answer.json()["generation"]) == (202, 0)
    moved.second = 600
    plan = client.get(answer.headers["Location"], params={"wait_seconds": 20, "after_generation": 0})
    assert (plan.status_code, plan.json()["generation"]) == (200, 1)


def test_who_waits_for_further_events_is_told_where_to_look_once_the_service_stops(client, app):
    client.post("/v1/jobs", json=new_job(handling={"coalesce_seconds": 600.0}))
    with ThreadPoolExecutor(1) as asking:
        asked = asking.submit(client.post, EVENTS, json=event("a", 0, "w00"), params={"wait_seconds": 40})
        assert client.get(EVENTS, params={"after": 0, "wait_seconds": 20}).json()["events"]
        assert not asked.done()
        client.portal.call(app.state.desk.send_away)
        answer = asked.result(timeout=240.0)
    assert (answer.status_code, answer.json()["generation"]) == (202, 0)


def test_who_waits_for_further_events_takes_a_place_and_gives_it_back(database_url):
    settings = Settings(database_url=database_url, plans_ahead=False, max_waiting_clients=1)
    with TestClient(create_app(settings)) as client, ThreadPoolExecutor(1) as asking:
        client.post("/v1/jobs", json=new_job(handling={"coalesce_seconds": 600.0}))
        asked = asking.submit(client.post, EVENTS, json=event("a", 0, "w00"))
        waiting = client.app.state.desk.metrics.waiting
        assert eventually(waiting._value.get, lambda count: count == 1) == 1
        refused = client.post(EVENTS, json=event("b", 0, "w01"))
        assert (refused.status_code, refused.json()["error"]["field"]) == (429, "KINTSUGI_MAX_WAITING_CLIENTS")
        assert [record["event"]["id"] for record in client.get(EVENTS).json()["events"]] == ["a", "b"]
        assert client.post(EVENTS, json=event("b", 0, "w01"), params={"wait_seconds": 0}).status_code == 202
        client.portal.call(client.app.state.desk.send_away)
        assert asked.result(timeout=240.0).status_code == 202
        assert waiting._value.get() == 0
        with client.app.state.desk.access.places.one():
            pass


@pytest.mark.processes
def test_a_client_that_is_gone_waits_for_no_further_events(tmp_path):
    with running_service(tmp_path / "kintsugi.sqlite3") as running, Client(running.url) as client:
        client.create_job(
            job="llama",
            profile=uniform_profile(4),
            workers=6,
            settings=JobSettings(num_microbatches=8),
            handling=Handling(coalesce_seconds=600.0),
        )
        address, body = running.url.removeprefix("http://"), json.dumps(event("a", 0, "w00"))
        with socket.create_connection(address.split(":"), timeout=240.0) as connection:
            head = f"Host: {address}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
            connection.sendall(f"POST {EVENTS} HTTP/1.1\r\n{head}\r\n\r\n{body}".encode())
            assert eventually(lambda: waiting(running.url), lambda count: count == 1) == 1
        assert eventually(lambda: waiting(running.url), lambda count: count == 0) == 0


def waiting(url):
    lines = httpx2.get(f"{url}/metrics", timeout=240.0).text.splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("kintsugi_waiting_clients "))


@pytest.mark.both_databases
def test_events_are_durable_at_once_and_another_service_closes_the_window(make, clock):  # noqa: F811
    service = make(Handling(coalesce_seconds=10.0))
    first = lose(service, "w00", 0)
    clock.second = 9
    second = lose(service, "w01", 0)
    assert (first.deferred, second.deferred, first.decided, second.decided) == (True, True, False, False)
    assert service.answered("job", first) is None
    again = Service(service.store, Metrics(), now=clock)  # the one before was killed
    assert again.state("job").history == service.state("job").history
    assert again.state("job").history.decides_at == "2026-01-31T12:00:10.000000Z"
    clock.second = 10
    assert again.store.agenda.due(clock()) == ["job"]
    assert again.expire("job").generation == 1
    assert service.expire("job").generation == 1  # closed already
    assert {service.answered("job", entry).number for entry in (first, second)} == {3}
    plan = service.decision("job", 1).wording.plan()
    assert not {"w00", "w01"} & set(plan.workers)
    third = lose(service, "w02", 1)
    clock.second = 20
    again.expire("job")
    assert service.answered("job", third).generation == 2


def test_who_tells_what_was_told_already_gets_the_same_plan(make, clock):  # noqa: F811
    service = make(Handling(coalesce_seconds=10.0))
    first, again = lose(service, "w00", 0), lose(service, "w00", 0, name="seen by another agent")
    assert (first.deferred, again.deferred) == (True, True)
    assert not service.may_be_due("job")
    clock.second = 10
    assert service.may_be_due("job")
    service.expire("job")
    assert not service.may_be_due("job")
    assert service.answered("job", again) == service.answered("job", first)
    assert service.answered("job", again).generation == 1


def test_a_window_ends_where_the_clock_is_set_back(make, clock):  # noqa: F811
    service = make(Handling(coalesce_seconds=10.0))
    clock.second = 50
    lose(service, "w00", 0)
    clock.second = 49  # as another machine's clock may say
    assert not service.may_be_due("job")
    clock.second = 0
    assert service.kept_history("job").gathering_seconds(clock()) == 0.0
    assert service.expire("job").generation == 1


def test_an_event_that_changes_nothing_opens_no_window(client):
    client.post("/v1/jobs", json=new_job(handling={"coalesce_seconds": 600}))
    answer = client.post(EVENTS, json={**event("a", 0, kind="link_connected"), "link": ["h00", "h01"]})
    assert (answer.status_code, answer.json()["generation"]) == (200, 0)


def test_where_no_plan_is_left_everybody_who_waited_is_told(client):
    client.post("/v1/jobs", json=new_job(handling={"coalesce_seconds": 0.05}))
    lost = {"events": [event(worker, 0, worker) for worker in client.get(JOB).json()["alive"]]}
    for _ in range(2):
        answer = client.post(EVENTS, json=lost)
        assert (answer.status_code, answer.json()["error"]["field"]) == (409, "alive")


@pytest.mark.parametrize("seconds", ["-1", "nan", "soon"])
def test_a_wait_that_cannot_be(client, job, seconds):
    answer = client.post(EVENTS, json=event("a", 0, "w00"), params={"wait_seconds": seconds})
    assert (answer.status_code, answer.json()["error"]["field"]) == (422, "wait_seconds")


@pytest.mark.both_databases
def test_what_is_remembered_of_a_window_is_what_the_log_says(make, clock):  # noqa: F811
    """Two services on one database close windows in turn; each remembers the latest that it followed from its beginning."""
    one = make(Handling(coalesce_seconds=10.0))
    other = Service(one.store, Metrics(), now=clock)
    told, kinds = [], (EventKind.WORKER_FAILED, EventKind.WORKER_JOINED)
    for number, (teller, closer) in enumerate([(one, one), (one, other), (other, one), (one, one), (other, other), (one, one)]):
        for worker in ("w00", "w01"):
            happened = Event(
                kind=kinds[number % 2], id=f"{number} {worker}", generation=number, worker=worker, incarnation=number % 2 * number
            )
            told.append(teller.post_events("job", [happened]))
        clock.second += 10
        assert closer.expire("job").generation == number + 1
        teller.post_report("job", applied(number + 1))
        for service in (one, other):
            fresh = Service(one.store, Metrics(), now=clock)  # which remembers nothing
            assert all(service.kept_answering("job", entry) in (None, fresh.answering("job", entry)) for entry in told)
    assert one.kept_answering("job", told[-1]) is not None
    assert one.kept_answer("job", told[-1]) == one.answered("job", told[-1])
