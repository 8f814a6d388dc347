"""Query parameters that a call does not have, or is given twice."""

import pytest

from tests.api.requests import EVENTS, JOB, event


@pytest.mark.parametrize(
    ("path", "name", "has"),
    [
        (f"{JOB}/plan?wait=30&after_generation=0", "wait", "it has after_generation, wait_seconds, detail"),
        ("/v1/jobs?limt=5", "limt", "it has"),
        (f"{JOB}?brief=1", "brief", "it has none"),
    ],
)
def test_a_parameter_that_the_call_does_not_have_is_refused_with_those_that_it_has(client, job, path, name, has):
    response = client.get(path)
    assert response.status_code == 422
    assert response.json()["error"]["field"] == name
    assert has in response.json()["detail"]


def test_a_value_that_cannot_be_is_refused_with_what_it_must_be(client):
    response = client.get("/v1/jobs?limit=0")
    assert response.status_code == 422
    assert response.json()["detail"] == "limit: must be greater than or equal to 1"


@pytest.mark.parametrize("path", [f"{JOB}/plan?detail=brief&detail=full", "/v1/jobs?limit=5&ended=false&limit=5"])
def test_a_parameter_that_is_given_twice_is_refused(client, job, path):
    response = client.get(path)
    assert response.status_code == 422
    assert response.json()["error"]["field"] == path.rpartition("&")[2].partition("=")[0]
    assert "given twice" in response.json()["detail"]


def test_nothing_is_logged_where_a_parameter_is_refused(client, job):
    assert client.post(f"{EVENTS}?wait_second=1", json=event("a", 0, "w00")).status_code == 422
    assert client.get(EVENTS).json()["events"] == []


def test_calls_without_a_version_take_any(client, job):
    """Identity providers add theirs to the pages that they lead back to, monitors to the health check."""
    assert client.get("/healthz?from=monitor").status_code == 200
    assert client.get("/metrics?x=1").status_code == 200


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/v1/jobs/%00", "job"),
        ("/v1/jobs/%00/plan", "job"),
        ("/v1/audit?job=a%00", "job"),
        ("/v1/rendezvous/%00/b", "run"),
    ],
)
def test_what_is_no_character_is_refused_with_the_parameter_that_has_it(client, path, field):
    response = client.get(path)
    assert response.status_code == 422
    assert response.json()["error"]["field"] == field
    assert "no characters" in response.json()["detail"]
