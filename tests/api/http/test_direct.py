"""Plain requests go directly to their operations, and get what FastAPI would have answered."""

from typing import Annotated

import pytest
from fastapi import Cookie, Depends
from fastapi.routing import iter_route_contexts
from starlette.testclient import TestClient

from api.app import DIRECT, _routes, create_app
from api.deps import JobPath
from api.http.direct import DirectRoute
from tests.api.requests import EVENTS, JOB, REPORTS, event, report

BEATS = f"{JOB}/heartbeats"
LIVING = {"host": "h00", "workers": ["w00", "w01"], "observed_at": "2026-01-31T12:00:00Z"}


@pytest.fixture
def detour(settings, client):
    """The same service without direct ways, on the same database."""
    app = create_app(settings)
    app.router.routes[:] = [route for route in app.router.routes if not isinstance(route, DirectRoute)]
    with TestClient(app) as other:
        yield other


@pytest.fixture
def no_detour(monkeypatch):
    """FastAPI resolves nothing."""

    async def resolve(**_):
        raise AssertionError("FastAPI resolves the arguments")

    monkeypatch.setattr("fastapi.routing.solve_dependencies", resolve)


def test_every_direct_way_leads_where_the_router_leads():
    routed = {
        (method, str(c.path)): c.original_route.endpoint for c in iter_route_contexts(_routes()) for method in c.methods or ()
    }
    assert [routed[method, path] for method, path, _ in DIRECT] == [endpoint for _, _, endpoint in DIRECT]


@pytest.mark.parametrize(
    "asked",
    [
        ("POST", EVENTS, event("a", 0, "w00"), {}),
        ("POST", f"{EVENTS}?wait_seconds=0.0&detail=brief", event("b", 0, "w00"), {"Idempotency-Key": "k"}),
        ("POST", REPORTS, report(0), {}),
        ("POST", BEATS, LIVING, {}),
        ("GET", f"{JOB}/plan?detail=brief", None, {}),
        ("GET", f"{JOB}/plan?after_generation=0&wait_seconds=0.01", None, {"If-None-Match": '"7"'}),
    ],
)
def test_plain_requests_are_not_resolved_by_fastapi(client, job, no_detour, asked):
    method, path, body, headers = asked
    assert client.request(method, path, json=body, headers=headers).status_code < 300


@pytest.mark.parametrize(
    "asked",
    [
        ("GET", f"{JOB}/plan", None, {}),
        ("GET", f"{JOB}/plan?detail=brief&detail=full", None, {}),
        ("GET", f"{JOB}/plan?detail=", None, {}),
        ("GET", f"{JOB}/plan?detail", None, {}),
        ("GET", f"{JOB}/plan?detail=long", None, {}),
        ("GET", f"{JOB}/plan?after_generation=0", None, {}),
        ("GET", f"{JOB}/plan?after_generation=-1", None, {}),
        ("GET", f"{JOB}/plan?after_generation=0.5", None, {}),
        ("GET", f"{JOB}/plan?wait_seconds=inf", None, {}),
        ("GET", f"{JOB}/plan?wait_seconds=31", None, {}),
        ("GET", f"{JOB}/plan?wait=1", None, {}),
        ("GET", f"{JOB}/plan?detail=%62rief", None, {}),
        ("GET", f"{JOB}/plan?%ff=%fe", None, {}),
        ("GET", "/v1/jobs/ll%61ma/plan", None, {}),
        ("GET", f"/v1/jobs/{'x' * 201}/plan", None, {}),
        ("GET", "/v1/jobs/unknown/plan", None, {}),
        ("GET", f"{JOB}/plan/", None, {}),
        ("HEAD", f"{JOB}/plan", None, {}),
        ("PUT", f"{JOB}/plan", {}, {}),
        ("OPTIONS", EVENTS, None, {}),
        ("POST", EVENTS, event("a", 7, "w00"), {}),
        ("POST", EVENTS, event("a", 0, "w00", speed="high"), {}),
        ("POST", f"{EVENTS}?detail=none", event("a", 0, "w00"), {}),
        ("POST", f"{EVENTS}?wait_seconds=-1", {"nothing": "right"}, {}),
        ("POST", EVENTS, event("a", 0, "w00"), {"Idempotency-Key": ""}),
        ("POST", EVENTS, event("a", 0, "w00"), {"Idempotency-Key": "k" * 201}),
        ("POST", EVENTS, event("a", 0, "w00"), {"Content-Type": "text/plain"}),
        ("POST", REPORTS, report(9), {}),
        ("POST", f"{REPORTS}?detail=brief", report(0), {}),
        ("POST", BEATS, {**LIVING, "workers": ["w99"]}, {}),
    ],
)
def test_what_is_said_is_what_fastapi_would_have_said(client, detour, job, asked):
    method, path, body, headers = asked
    direct, routed = (one.request(method, path, json=body, headers=headers) for one in (client, detour))
    passing = {"x-request-id", "date"}
    assert (direct.status_code, direct.content) == (routed.status_code, routed.content)
    assert [item for item in direct.headers.items() if item[0] not in passing] == [
        item for item in routed.headers.items() if item[0] not in passing
    ]


def test_requests_are_counted_under_the_template_of_their_path(client, job):
    client.get(f"{JOB}/plan")
    counted = 'kintsugi_http_requests_total{method="GET",route="/v1/jobs/{job}/plan",status="200"} 1.0'
    assert counted in client.get("/metrics").text


async def _deep(job: JobPath, made: Annotated[str, Depends(lambda: "in a thread")]): ...


async def _strange(job: JobPath, crumb: Annotated[str, Cookie()]): ...


@pytest.mark.parametrize("endpoint", [_deep, _strange])
def test_arguments_from_elsewhere_are_refused_when_the_application_is_made(endpoint):
    with pytest.raises(TypeError, match="does not know"):
        DirectRoute("GET", "/x/{job}", endpoint)
