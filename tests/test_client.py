"""The client speaks to the real application, retries what may be retried and raises Kintsugi's own errors."""

import json
import logging
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace

import httpx2
import pytest
from starlette.testclient import TestClient

from api.app import create_app
from api.problems import problem_of
from api.settings import Settings
from kintsugi.client import Client, HeartbeatSender, Patience
from kintsugi.core import codec
from kintsugi.core.cluster import Cluster
from kintsugi.core.ending import Outcome
from kintsugi.core.errors import (
    PROBLEM_TYPE,
    ConflictError,
    ForbiddenError,
    InfeasibleError,
    InvalidInputError,
    KintsugiError,
    NotFoundError,
    StaleGenerationError,
    StaleIncarnationError,
    UnavailableError,
)
from kintsugi.core.handling import Handling, PlanStatus
from kintsugi.core.heartbeats import HeartbeatAnswer
from kintsugi.core.job import JobSettings
from kintsugi.core.membership import Event
from kintsugi.core.messages import Measurement, Pending, Report, ReportStatus
from tests.builders import uniform_profile
from tests.clients import AT_ONCE, answering, failed

SETTINGS = JobSettings(num_microbatches=8)


@pytest.fixture
def client(tmp_path):
    app = create_app(Settings(database_url=f"sqlite:///{tmp_path}/kintsugi.sqlite3"))
    with TestClient(app) as served, Client("http://testserver", patience=AT_ONCE, transport=served._transport) as client:
        yield client


@pytest.fixture
def job(client):
    return client.create_job(job="llama", profile=uniform_profile(4), workers=6, settings=SETTINGS)


def test_a_whole_life(client, job):
    assert job.summary.generation == 0
    assert client.create_job(job="llama", profile=uniform_profile(4), workers=6, settings=SETTINGS) == job
    assert client.job("llama") == job
    assert [summary.id for summary in client.jobs().jobs] == ["llama"]

    answer = client.post_event("llama", failed("a", 0, "w01"))
    assert answer.generation == answer.decision.plan.generation == 1
    assert answer.decision.previous_plan == job.decision.plan
    assert client.plan("llama") == client.plan_at("llama", 1) == answer
    assert client.plan_after("llama", 0) == answer
    brief = replace(answer, decision=replace(answer.decision, alternatives=(), previous_plan=None))
    assert client.plan("llama", brief=True) == client.plan_at("llama", 1, brief=True) == brief
    assert client.plan_after("llama", 0, brief=True) == client.post_event("llama", failed("a", 0, "w01"), brief=True) == brief
    assert client.plan_after("llama", 1, wait_seconds=0.01) is None

    record = client.report("llama", Report(generation=1, status=ReportStatus.APPLIED))
    assert record.generation == 1
    measured = Measurement(iteration_seconds=0.25, worker_busy_seconds={"w00": 0.2}, phase_seconds={"planned": 0.01})
    client.report("llama", Report(generation=1, status=ReportStatus.MEASURED, measured=measured))
    assert client.reports("llama").reports[1].report.measured == measured

    several = client.post_events("llama", [failed("b", 1, "w02"), failed("c", 1, "w03")])
    assert several.generation == 2
    assert [record.event.id for record in client.events("llama").events] == ["a", "b", "c"]


def test_events_that_wait_for_others_are_waited_for(client, monkeypatch):
    monkeypatch.setattr("kintsugi.client.client.GATHERING_SECONDS", 0.05)
    handling = Handling(coalesce_seconds=2.0)
    client.create_job(job="llama", profile=uniform_profile(4), workers=6, settings=SETTINGS, handling=handling)
    pending = client.submit_events("llama", [failed("a", 0, "w00")])
    assert isinstance(pending, Pending)
    assert (pending.number, pending.generation) == (1, 0)
    answer = client.post_event("llama", failed("b", 0, "w01"))
    assert answer.generation == 1
    assert client.post_events("llama", [failed("a", 0, "w00")]) == client.submit_events("llama", [failed("a", 0, "w00")]) == answer
    assert [record.generation for record in client.events("llama").events] == [1, 1]


def test_plans_are_approved_and_refused(client):
    handling = Handling(requires_approval=True)
    view = client.create_job(job="llama", profile=uniform_profile(4), workers=6, settings=SETTINGS, handling=handling)
    assert view.handling == handling
    assert client.post_event("llama", failed("a", 0, "w00")).status is PlanStatus.PROPOSED
    refused = client.refuse("llama", 1, by="Ada", reason="too slow", replan=True)
    assert (refused.generation, client.plan("llama").generation) == (2, 0)
    seen = client.plan_at("llama", 2)
    with pytest.raises(ConflictError, match=f"decided_at: is not when generation 2 was decided, {seen.decided_at}"):
        client.approve("llama", 2, by="Ada", decided_at="2026-01-31T12:00:00Z")
    approved = client.approve("llama", 2, by="Ada", decided_at=seen.decided_at)
    assert (client.plan("llama").generation, client.plan("llama").status) == (2, PlanStatus.APPROVED)
    assert client.approvals("llama").approvals == (refused, approved)


def test_studies(client, job):
    plan = job.decision.plan
    assert client.estimate(plan, uniform_profile(4), Cluster.uniform(6)) == job.decision.estimate
    decision = client.whatif("llama", fail=["w00"], join=["w42"])
    assert "w00" not in decision.plan.workers
    assert client.job("llama") == job


def test_refusals_are_the_services_own_errors(client, job):
    with pytest.raises(NotFoundError) as missing:
        client.plan("nobody")
    assert (missing.value.field, missing.value.value) == ("job", "nobody")
    client.post_event("llama", failed("a", 0, "w01"))
    with pytest.raises(StaleGenerationError) as stale:
        client.post_event("llama", failed("b", 0, "w02"))
    assert stale.value.current_generation == 1
    with pytest.raises(InfeasibleError):
        client.post_events("llama", [failed(worker, 1, worker) for worker in job.alive if worker != "w01"])
    with pytest.raises(InvalidInputError) as invalid:
        client.create_job(job="!", profile=uniform_profile(4), workers=6, settings=SETTINGS)
    assert invalid.value.field == "id"


def test_a_write_is_tried_again_with_the_same_key(client, job):
    done = httpx2.Response(200, content=codec.dumps(client.plan("llama")))
    flaky, requests = answering(httpx2.ConnectError("refused"), httpx2.Response(503), done)
    with flaky:
        assert flaky.post_event("llama", failed("a", 0, "w01")) == client.plan("llama")
    assert len(requests) == 3
    assert len({request.headers["Idempotency-Key"] for request in requests}) == 1
    assert len({request.content for request in requests}) == 1
    assert json.loads(requests[0].content)["id"] == "a"


@pytest.mark.parametrize("failure", [httpx2.ConnectError("refused"), httpx2.ReadTimeout("too late"), httpx2.Response(503)])
def test_patience_ends(failure):
    gone, requests = answering(failure, failure, failure)
    with gone, pytest.raises(UnavailableError):
        gone.plan("llama")
    assert len(requests) == 3


def problem(error):
    """What looks like a refusal of the service's, with an error in it that is none."""
    return {"status_code": 409, "text": json.dumps({"type": f"{PROBLEM_TYPE}?", "error": {"message": "?", **error}})}


@pytest.mark.parametrize(
    "strange",
    [
        {"status_code": 500, "text": "boom"},
        {"status_code": 507, "text": "disk full"},
        {"status_code": 401, "json": {"detail": "who are you"}},
        {"status_code": 403, "json": {"error": "forbidden"}},
        {"status_code": 404, "json": {"type": "about:blank", "error": {"code": "not_found", "message": "no upstream"}}},
        {"status_code": 409, "text": "[" * 200_000},
        {"status_code": 302, "headers": {"Location": "http://login"}},
        {"status_code": 200, "text": "<html>"},
        {"status_code": 200, "json": {}},
        {"status_code": 200, "headers": {"Content-Encoding": "gzip"}, "stream": httpx2.ByteStream(b"no gzip")},
        problem({"code": "stale_generation", "current_generation": 1e999}),
        problem({"code": "stale_incarnation", "incarnations": {"w00": "first"}}),
        problem({"code": "stale_incarnation", "incarnations": []}),
        problem({"code": "state_lost", "value": ["first"]}),
    ],
    ids=lambda strange: f"{strange['status_code']}",
)
def test_an_answer_that_is_none_of_the_services_is_its_absence(client, job, strange):
    away = [httpx2.Response(**strange) for _ in range(AT_ONCE.attempts)]
    gone, requests = answering(*away)
    with gone, pytest.raises(UnavailableError, match=rf"the service at http://service (answers {strange['status_code']}|does not)"):
        gone.plan("llama")
    assert len(requests) == AT_ONCE.attempts
    back, _ = answering(httpx2.Response(**strange), httpx2.Response(200, content=codec.dumps(client.plan("llama"))))
    with back:
        assert back.plan("llama") == client.plan("llama")


def refused(error: KintsugiError) -> httpx2.Response:
    """As the service tells it."""
    document = problem_of(error)
    return httpx2.Response(document.status_code, content=document.body)


@pytest.mark.parametrize("error", [InvalidInputError("is no name"), NotFoundError("is gone"), ForbiddenError("needs a scope")])
def test_what_the_service_refused_is_not_tried_again(error):
    refusing, requests = answering(refused(error))
    with refusing, pytest.raises(type(error), match=error.message):
        refusing.plan("llama")
    assert len(requests) == 1


@pytest.mark.parametrize("error", [KintsugiError("an unexpected error"), UnavailableError("the database does not answer")])
def test_an_error_of_the_services_own_may_pass_and_is_told(error):
    failing, requests = answering(*[refused(error)] * AT_ONCE.attempts)
    with failing, pytest.raises(UnavailableError, match=error.message):
        failing.plan("llama")
    assert len(requests) == AT_ONCE.attempts


def test_who_hurries_is_not_kept_by_a_service_that_does_not_answer():
    """It takes connections, what was asked before and what is asked now, and says nothing."""
    patience = Patience(timeout_seconds=600.0)
    with (
        socket.create_server(("127.0.0.1", 0)) as mute,
        ThreadPoolExecutor() as threads,
        Client(f"http://127.0.0.1:{mute.getsockname()[1]}", patience=patience) as client,
    ):
        before = threads.submit(client.plan, "llama")
        connection, _ = mute.accept()
        with connection, client.hurried(0.5):
            assert connection.recv(1)
            assert isinstance(before.exception(60), UnavailableError)
            with pytest.raises(UnavailableError, match="does not answer"):
                client.plan("llama")
            with pytest.raises(UnavailableError, match="has had its time"):
                client.plan("llama")


def test_every_request_has_a_timeout_that_outlasts_the_wait():
    served, requests = answering(httpx2.Response(204), httpx2.Response(204))
    with served:
        served.plan_after("llama", 0)
        served.plan_after("llama", 0, wait_seconds=50)
    short, long = (request.extensions["timeout"]["read"] for request in requests)
    assert (short, long) == (AT_ONCE.timeout_seconds, AT_ONCE.timeout_seconds + 50)


def test_a_url_that_is_none():
    with pytest.raises((InvalidInputError, UnavailableError)), Client("http://[", patience=AT_ONCE) as client:
        client.plan("llama")


def test_plans_are_followed_by_generation(client, job):
    with closing(client.plans("llama", 0, wait_seconds=1.0)) as plans:
        client.post_event("llama", failed("a", 0, "w01"))
        assert next(plans).generation == 1
        client.post_event("llama", failed("b", 1, "w02"))
        assert next(plans).generation == 2
    assert [record.number for record in client.events_after("llama", 1, wait_seconds=1.0).events] == [2]
    assert client.reports_after("llama", 0).reports == ()


def test_the_service_asks_for_a_pause():
    client, requests = answering(httpx2.Response(429, headers={"Retry-After": "0"}), httpx2.Response(204))
    with client:
        assert client.plan_after("llama", 0) is None
    assert len(requests) == 2


@pytest.mark.parametrize("pause", ["\u0660", "\u00b2", "\u00ff"])
def test_what_is_no_pause_is_none_of_the_services(pause):
    headers = [(b"Retry-After", pause.encode())]
    client, requests = answering(httpx2.Response(503, headers=headers), httpx2.Response(204))
    with client:
        assert client.plan_after("llama", 0) is None
    assert len(requests) == 2


def test_tokens_and_certificates(monkeypatch, tmp_path):
    monkeypatch.setenv("KINTSUGI_TOKEN", "from-the-environment")
    for given, told in ((None, "from-the-environment"), ("given", "given")):
        requests = []

        def answer(request, requests=requests):
            requests.append(request)
            return httpx2.Response(204)

        with Client("http://service", token=given, transport=httpx2.MockTransport(answer)) as client:
            client.plan_after("llama", 0)
        assert requests[0].headers["Authorization"] == f"Bearer {told}"
    with pytest.raises(InvalidInputError) as missing:
        Client("https://service", ca_file=str(tmp_path / "nothing.pem"))
    assert missing.value.field == "ca_file"


def test_heartbeats_are_sent_until_the_service_refuses(client):
    settings = replace(SETTINGS, heartbeat_timeout_seconds=60.0)
    client.create_job(job="llama", profile=uniform_profile(4), workers=6, settings=settings)
    refused = threading.Event()
    sender = HeartbeatSender(client, "llama", "h01", lambda: {"w01": 0}, period_seconds=0.001, on_refusal=lambda _: refused.set())
    with sender:
        client.post_event("llama", failed("a", 0, "w01"))
        assert refused.wait(120.0)
    assert isinstance(sender.refusal, StaleIncarnationError)
    assert sender.refusal.incarnations == {"w01": 0}


def test_a_service_that_is_away_is_told_again():
    heard = threading.Event()

    def answer(request):
        requests.append(json.loads(request.content))
        if len(requests) < 3:
            raise httpx2.ConnectError("refused")
        heard.set()
        return httpx2.Response(200, json={"generation": 4, "timeout_seconds": 9.0})

    requests = []
    once = Client("http://service", patience=replace(AT_ONCE, attempts=1), transport=httpx2.MockTransport(answer))
    with once, HeartbeatSender(once, "llama", "h00", lambda: {"w00": 3}, period_seconds=0.001) as sender:
        sender.step = 7
        assert heard.wait(120.0)
        sender.close()
    assert sender.answer == HeartbeatAnswer(generation=4, timeout_seconds=9.0)
    assert requests[2]["incarnations"] == {"w00": 3}
    assert requests[2]["host"] == "h00"


def test_a_slip_of_who_tells_who_is_alive_ends_no_beats(caplog):
    """The service would take a host for lost that lives; the log tells of each failure once, however many beats it lasts."""
    slips = [RuntimeError("dictionary changed size during iteration"), InvalidInputError("is no name"), {"w00": 3}]
    heard = threading.Event()

    def alive():
        told = slips.pop(0) if len(slips) > 1 else slips[0]
        if isinstance(told, Exception):
            raise told
        return told

    def answer(request):
        heard.set()
        return httpx2.Response(200, json={"generation": 4, "timeout_seconds": 9.0})

    with (
        Client("http://service", patience=AT_ONCE, transport=httpx2.MockTransport(answer)) as client,
        HeartbeatSender(client, "llama", "h00", alive, period_seconds=0.001) as sender,
    ):
        assert heard.wait(30.0)
    assert sender.refusal is None
    assert [record.message for record in caplog.records if "who is alive" in record.message] == [
        "who is alive cannot be told: no heartbeat is sent for h00 of job llama until it can"
    ]


def test_workers_that_decide_by_themselves_find_plans_and_leases(client, job):
    assert list(client.all_contingencies("llama", 7)) == []
    record = client.claim_lease("llama", 1, holder="w00", agreement="ours")
    assert client.claim_lease("llama", 1, holder="w00", agreement="ours") == record
    with pytest.raises(ConflictError, match="held by w00"):
        client.claim_lease("llama", 1, holder="w01", agreement="theirs")
    assert client.lease("llama", 0, latest=True) == record
    with pytest.raises(NotFoundError):
        client.lease("llama", 2)


@pytest.mark.parametrize("name", ["", "..", None, 7])
def test_what_is_no_id_of_a_job_is_refused_without_asking(name):
    client, requests = answering()
    with pytest.raises(InvalidInputError) as refused:
        client.plan(name)
    assert (refused.value.field, refused.value.value, requests) == ("job", name, [])


def test_attempts_are_told_by_the_standard_logger_alone(caplog, capsys, monkeypatch):
    logger = logging.getLogger("kintsugi.client")
    monkeypatch.setattr(logger, "propagate", False)  # a service that ran here before has its own handlers
    monkeypatch.setattr(logger, "handlers", [caplog.handler])
    busy = httpx2.Response(503, headers={"Retry-After": "0"})
    client, requests = answering(httpx2.ConnectError("refused"), busy, busy)
    with pytest.raises(UnavailableError):
        client.job("llama")
    assert len(requests) == 3
    assert [(record.name, record.levelname) for record in caplog.records] == [("kintsugi.client", "WARNING")] * 2
    assert caplog.messages[0] == "the service at http://service does not answer: refused; attempt 2 of 3 in 0 s"
    again, _ = answering(*[httpx2.ConnectError("refused")] * 6)
    caplog.clear()
    for _ in range(2):
        with pytest.raises(UnavailableError):
            again.job("llama")
    assert [message.rpartition("; ")[2] for message in caplog.messages] == ["attempt 2 of 3 in 0 s", "attempt 3 of 3 in 0 s"]
    assert capsys.readouterr().out == ""


def test_enumerations_may_be_given_by_their_texts(client, job):
    lost = Event(kind="worker_failed", id="one", generation=0, worker="w01")
    assert client.post_event("llama", lost).generation == 1
    client.report("llama", Report(generation=1, status="applied"))
    assert client.end("llama", "completed").ending.outcome is Outcome.COMPLETED
    with pytest.raises(InvalidInputError, match="outcome: is no outcome; known ones: completed, failed, cancelled"):
        client.end("llama", "done")


def test_a_service_that_is_away_is_told_by_its_address():
    away = httpx2.ConnectError("refused")
    client = Client("http://me:secret@service:81/", patience=AT_ONCE, transport=httpx2.MockTransport(lambda _: raised(away)))
    with pytest.raises(UnavailableError, match="the service at http://service:81 does not answer: refused"):
        client.job("llama")


def test_who_asks_while_another_thread_closes_the_client_has_no_answer():
    """As threads that give signs of life do, at the end of a job: the closed pool's own error ended them with a traceback."""
    client, requests = answering()
    client.close()
    with pytest.raises(UnavailableError, match="the client of the service at http://service was closed"):
        client.job("llama")
    assert requests == []


def raised(error: Exception) -> httpx2.Response:
    raise error
