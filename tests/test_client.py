"""The client speaks to the real application, retries what may be retried and raises Kintsugi's own errors."""

import json
from dataclasses import replace

import httpx2
import pytest
from starlette.testclient import TestClient

from api.app import create_app
from api.settings import Settings
from kintsugi.client import Client, Patience
from kintsugi.core.cluster import Cluster
from kintsugi.core.errors import (
    InfeasibleError,
    InvalidInputError,
    KintsugiError,
    NotFoundError,
    StaleGenerationError,
    UnavailableError,
)
from kintsugi.core.job import JobSettings
from kintsugi.core.membership import Event, EventKind
from kintsugi.core.messages import Measurement, Report, ReportStatus
from tests.builders import uniform_profile

AT_ONCE = Patience(attempts=3, retry_seconds=0.0, longest_retry_seconds=0.0)
SETTINGS = JobSettings(num_microbatches=8)


def failed(name: str, generation: int, worker: str) -> Event:
    return Event(kind=EventKind.WORKER_FAILED, id=name, generation=generation, worker=worker)


@pytest.fixture
def client(tmp_path):
    app = create_app(Settings(database_url=f"sqlite:///{tmp_path}/kintsugi.sqlite3"))
    with TestClient(app) as served, Client("http://testserver", patience=AT_ONCE, transport=served._transport) as client:
        yield client


@pytest.fixture
def job(client):
    return client.create_job(job="llama", profile=uniform_profile(4), workers=6, settings=SETTINGS)


def answering(*answers):
    """A client of a service that gives these answers in turn, and the requests it got."""
    requests, left = [], list(answers)

    def answer(request: httpx2.Request) -> httpx2.Response:
        requests.append(request)
        result = left.pop(0)
        if isinstance(result, Exception):
            raise result
        return result

    return Client("http://service", patience=AT_ONCE, transport=httpx2.MockTransport(answer)), requests


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


def test_a_write_is_tried_again_with_the_same_key(client):
    done = httpx2.Response(200, json={"summary": None})
    flaky, requests = answering(httpx2.ConnectError("refused"), httpx2.Response(503), done)
    with flaky, pytest.raises(InvalidInputError):
        flaky.post_event("llama", failed("a", 0, "w01"))
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


@pytest.mark.parametrize("status", [400, 404, 409, 500])
def test_other_refusals_are_not_tried_again(status):
    refusing, requests = answering(httpx2.Response(status, text="nothing that Kintsugi says"))
    with refusing, pytest.raises(KintsugiError, match=str(status)):
        refusing.plan("llama")
    assert len(requests) == 1


def test_every_request_has_a_timeout_that_outlasts_the_wait():
    served, requests = answering(httpx2.Response(204), httpx2.Response(204))
    with served:
        served.plan_after("llama", 0)
        served.plan_after("llama", 0, wait_seconds=50)
    short, long = (request.extensions["timeout"]["read"] for request in requests)
    assert (short, long) == (AT_ONCE.timeout_seconds, AT_ONCE.timeout_seconds + 50)


def test_an_answer_that_is_no_plan_is_told():
    strange, _ = answering(httpx2.Response(200, text="<html>"))
    with strange, pytest.raises(InvalidInputError, match="JSON"):
        strange.plan("llama")


def test_a_url_that_is_none():
    with pytest.raises((InvalidInputError, UnavailableError)), Client("http://[", patience=AT_ONCE) as client:
        client.plan("llama")
