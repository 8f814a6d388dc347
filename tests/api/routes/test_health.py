"""Probes tell the truth, and metrics count what happened."""

from starlette.testclient import TestClient

from api.app import create_app
from tests.api.requests import EVENTS, event


def test_probes(client):
    assert client.get("/healthz").json() == {"status": "ok"}
    assert client.get("/readyz").json() == {"status": "ok"}


def test_a_database_that_went_away_is_told(settings, tmp_path):
    with TestClient(create_app(settings)) as client:
        for path in tmp_path.iterdir():
            with path.open("r+b") as file:  # in place and as long: whoever maps a file that becomes shorter ends by SIGBUS
                file.write((b"no database" * 100_000)[: path.stat().st_size])
        response = client.get("/readyz")
        assert response.status_code == 503
        assert response.json()["error"]["code"] == "unavailable"
        assert client.get("/healthz").status_code == 200


def test_metrics_count_events_decisions_and_requests(client, job):
    client.post(EVENTS, json=event("a", 0, "w00"))
    client.post(EVENTS, json=event("a", 0, "w00"))
    lines = client.get("/metrics").text.splitlines()
    assert 'kintsugi_events_total{kind="worker_failed"} 1.0' in lines
    assert "kintsugi_planning_seconds_count 2.0" in lines
    assert 'kintsugi_http_requests_total{method="POST",route="/v1/jobs/{job}/events",status="200"} 2.0' in lines


def test_two_applications_keep_their_metrics_apart(settings):
    with TestClient(create_app(settings)) as one, TestClient(create_app(settings)) as other:
        one.get("/healthz")
        assert "/healthz" in one.get("/metrics").text
        assert "/healthz" not in other.get("/metrics").text


def test_every_answer_has_a_request_id(client):
    first, second = (client.get("/healthz").headers["X-Request-Id"] for _ in range(2))
    assert first != second
