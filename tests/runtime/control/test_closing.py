"""A job that ends tells what is left to tell, and is not kept by whoever does not answer."""

import threading
from concurrent.futures import Future
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from starlette.testclient import TestClient

from api.app import create_app
from api.settings import Settings
from kintsugi.client import Client, Patience
from kintsugi.core.cluster import Cluster
from kintsugi.core.ending import Ending, Outcome
from kintsugi.core.errors import InfeasibleError
from kintsugi.core.handling import Handling
from kintsugi.core.job import Ranges
from kintsugi.core.membership import Event, EventKind
from kintsugi.core.messages import ReportStatus
from kintsugi.runtime.control.decider import Decider
from kintsugi.runtime.control.decisions import JobRequest, ServiceDecisions
from tests.builders import snapshot_of, uniform_profile

LONG_SECONDS = 60.0
ENDED = Ending(outcome=Outcome.CANCELLED, reason="told to end", by="agent")
LOST = Event(kind=EventKind.WORKER_FAILED, id="lost", generation=0, worker="w01")


def request_of(handling: Handling | None = None) -> JobRequest:
    of = snapshot_of(uniform_profile(12), Cluster.uniform(6), 12)
    return JobRequest(name="job", profile=of.profile, cluster=of.cluster, settings=of.settings, handling=handling)


@pytest.fixture
def app(tmp_path):
    with TestClient(
        create_app(Settings(database_url=f"sqlite:///{tmp_path}/kintsugi.sqlite3", planning_processes=0, plans_ahead=False))
    ) as served:
        yield served


@pytest.fixture
def client(app):
    with Client("http://testserver", transport=app._transport) as client:
        yield client


class Holding(ThreadingHTTPServer):
    """Passes requests on, but takes those with events and does not answer them."""

    daemon_threads = True

    def __init__(self, app: TestClient) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.app, self.has_events, self.is_over = app, threading.Event(), threading.Event()


class Handler(BaseHTTPRequestHandler):
    server: Holding

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        if "/events" in self.path:
            self.server.has_events.set()
            self.server.is_over.wait(LONG_SECONDS)
            return
        answer = self.server.app.post(self.path, content=content, headers={"Content-Type": "application/json"})
        self.send_response(answer.status_code)
        self.send_header("Content-Length", str(len(answer.content)))
        self.end_headers()
        self.wfile.write(answer.content)

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


@pytest.fixture
def holding(app):
    with Holding(app) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.is_over.set()
        server.shutdown()


def closed(decider: Decider) -> Future[None]:
    """The end of a thread that closes it."""
    done: Future[None] = Future()

    def close() -> None:
        decider.close(ENDED)
        done.set_result(None)

    threading.Thread(target=close, daemon=True).start()
    return done


def test_what_is_left_to_tell_is_told_where_a_decision_does_not_come(holding, client, monkeypatch):
    monkeypatch.setattr("kintsugi.runtime.control.decisions._HURRIED_SECONDS", 10.0)
    patience = Patience(timeout_seconds=10 * LONG_SECONDS)
    with Client(f"http://127.0.0.1:{holding.server_port}", patience=patience) as held:
        decider = Decider(ServiceDecisions(held), timeout_seconds=LONG_SECONDS)
        decider.start(request_of())
        decider.submit([LOST])
        assert holding.has_events.wait(LONG_SECONDS)
        decider.tell_applied(0)
        closed(decider).result(LONG_SECONDS)
        assert client.job("job").ended.ending == ENDED
        assert [record.report.status for record in client.reports("job").reports] == [ReportStatus.APPLIED]
        assert held.end("job", ENDED.outcome, reason=ENDED.reason, by=ENDED.by).ending == ENDED  # there is no hurry any more


def test_an_approval_is_waited_for_only_as_long_as_the_job_goes_on(client, monkeypatch):
    asked = threading.Event()

    class Asked(ServiceDecisions):
        def _approved(self, answer):
            asked.set()
            return super()._approved(answer)

    monkeypatch.setattr("kintsugi.runtime.control.decisions._LOOK_SECONDS", 0.05)
    decider = Decider(Asked(client), timeout_seconds=LONG_SECONDS)
    decider.start(request_of(Handling(requires_approval=True)))
    decider.submit([LOST])
    assert asked.wait(LONG_SECONDS)
    closed(decider).result(LONG_SECONDS)
    assert client.job("job").ended.ending == ENDED


def test_a_job_that_ends_does_not_wait_for_further_events(client):
    decider = Decider(ServiceDecisions(client), timeout_seconds=LONG_SECONDS)
    decider.start(request_of(Handling(coalesce_seconds=LONG_SECONDS)))
    busy, is_free = threading.Event(), threading.Event()
    decider._thread.submit(lambda: (busy.set(), is_free.wait(LONG_SECONDS)))
    assert busy.wait(LONG_SECONDS)
    decider.submit([LOST])
    done = closed(decider)
    assert decider._is_closing.wait(LONG_SECONDS)
    is_free.set()
    done.result(LONG_SECONDS)
    assert [record.event for record in client.events("job").events] == [LOST]
    assert client.job("job").ended.ending == ENDED


@pytest.mark.parametrize("may_begin", [True, False])
def test_a_job_that_begins_anew_under_another_name_is_over(client, may_begin):
    request = request_of()
    decider = Decider(ServiceDecisions(client), timeout_seconds=LONG_SECONDS)
    decider.start(request)
    cluster = request.cluster.with_workers(request.cluster.workers[1:])
    settings = request.settings if may_begin else replace(request.settings, ranges=Ranges(min_dp=6))
    decider.start_over(replace(request, name="job.restart1", cluster=cluster, settings=settings))
    if may_begin:
        decider.finish()
    else:
        with pytest.raises(InfeasibleError):
            decider.finish()
    decider.close(ENDED)
    before = client.job("job").ended.ending
    if may_begin:
        assert (before.outcome, before.reason) == (Outcome.CANCELLED, "begins anew as job.restart1")
        assert client.job("job.restart1").ended.ending == ENDED
    else:
        assert before == ENDED
