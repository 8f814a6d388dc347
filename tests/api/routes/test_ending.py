"""Jobs that are over: what they still tell, and what they take no more."""

import pytest
from starlette.testclient import TestClient

from api.app import create_app
from kintsugi.core.ending import Ending, Outcome
from kintsugi.core.errors import InvalidInputError
from tests.api.requests import EVENTS, JOB, REPORTS, event, new_job, report

ENDING = f"{JOB}/ending"
COMPLETED = {"outcome": "completed"}


def test_a_job_that_ended_says_how_and_when(client, job):
    answer = client.post(ENDING, json={"outcome": "failed", "by": "Ada", "reason": "the data ran out"})
    record = answer.json()
    assert (answer.status_code, record["number"], record["generation"]) == (200, 1, 0)
    assert record["ending"] == {"outcome": "failed", "by": "Ada", "reason": "the data ran out"}
    view = client.get(JOB).json()
    assert (view["ended"], view["summary"]["outcome"]) == (record, "failed")
    assert (job["ended"], job["summary"]["outcome"]) == (None, None)


@pytest.mark.both_databases
def test_an_end_survives_the_service_and_is_said_once(app, client, job):
    record = client.post(ENDING, json=COMPLETED).json()
    app.state.desk.service._states.clear()
    assert client.get(JOB).json()["ended"] == record
    assert client.post(ENDING, json={**COMPLETED, "by": "another"}).json() == record
    refused = client.post(ENDING, json={"outcome": "cancelled", "reason": "no"})
    assert (refused.status_code, refused.json()["error"]["field"]) == (409, "outcome")
    assert "completed" in refused.json()["error"]["message"]


def test_nothing_happens_in_a_job_that_ended(client, job):
    first = client.post(EVENTS, json=event("a", 0, "w00"))
    client.post(REPORTS, json=report(1))
    client.post(ENDING, json=COMPLETED)
    for path, body in ((EVENTS, event("b", 1, "w01")), (REPORTS, report(1, "measured", measured={"step": 3}))):
        refused = client.post(path, json=body)
        assert (refused.status_code, refused.json()["error"]["field"]) == (409, "job")
        assert "ended (completed" in refused.json()["error"]["message"]
    assert client.post(EVENTS, json=event("a", 0, "w00")).json() == first.json()
    assert client.get(f"{JOB}/plan").json()["generation"] == 1
    assert len(client.get(EVENTS).json()["events"]) == 1


def test_no_plans_are_made_ahead_of_what_happens_in_a_job_that_ended(app, client, job):
    client.post("/v1/jobs", json=new_job(id="other"))
    ahead = app.state.desk.service.decider._ahead
    client.post(ENDING, json=COMPLETED)
    client.post("/v1/jobs/other/ending", json=COMPLETED)
    assert ahead.num_pending() == 0


def test_nobody_approves_in_a_job_that_ended_and_no_approval_is_waited_for(app, client):
    client.post("/v1/jobs", json=new_job(handling={"requires_approval": True, "approval_timeout_seconds": 60}))
    client.post(EVENTS, json=event("a", 0, "w00"))
    assert app.state.desk.service.state("llama").history.deadline is not None
    client.post(ENDING, json={"outcome": "cancelled", "reason": "a maintenance window begins"})
    assert app.state.desk.service.state("llama").history.deadline is None
    assert app.state.desk.service.store.agenda.next_after("") is None
    refused = client.post(f"{JOB}/plans/1/approval", json={"decision": "approve", "by": "Ada"})
    assert (refused.status_code, refused.json()["error"]["field"]) == (409, "job")


def test_events_that_waited_for_others_get_their_plan_after_the_end(app, client):
    client.post("/v1/jobs", json=new_job(handling={"coalesce_seconds": 600}))
    assert client.post(EVENTS, params={"wait_seconds": 0}, json=event("a", 0, "w00")).status_code == 202
    client.post(ENDING, json=COMPLETED)
    assert app.state.desk.service.state("llama").history.deadline.kind.value == "events"


def test_jobs_are_listed_by_whether_they_ended(client, job):
    client.post("/v1/jobs", json=new_job(id="other"))
    client.post(ENDING, json=COMPLETED)

    def listed(**parameters):
        return [summary["id"] for summary in client.get("/v1/jobs", params=parameters).json()["jobs"]]

    assert listed() == ["llama", "other"]
    assert (listed(ended=True), listed(ended=False)) == (["llama"], ["other"])
    assert (listed(ended=False, limit=1), client.get("/v1/jobs", params={"ended": "maybe"}).status_code) == (["other"], 422)


def test_only_jobs_that_go_on_count_against_the_most_there_may_be(settings):
    with TestClient(create_app(settings.model_copy(update={"max_jobs": 1}))) as client:
        client.post("/v1/jobs", json=new_job())
        refused = client.post("/v1/jobs", json=new_job(id="other"))
        assert refused.json()["error"]["field"] == "KINTSUGI_MAX_JOBS"
        assert "that they ended" in refused.json()["error"]["message"]
        client.post(ENDING, json=COMPLETED)
        assert client.post("/v1/jobs", json=new_job(id="other")).status_code == 201


def test_no_plans_are_made_ahead_for_a_job_that_ended(app, client, job):
    ahead, shelf = app.state.ahead, app.state.desk.service.store.shelf
    assert ahead.wait_until_idle(240.0)
    assert shelf.fingerprints("llama")
    client.post(ENDING, json=COMPLETED)
    assert not ahead.num_pending()
    assert not shelf.fingerprints("llama")


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.CANCELLED])
def test_what_is_not_complete_needs_a_reason(outcome):
    with pytest.raises(InvalidInputError, match="reason: is needed"):
        Ending(outcome=outcome)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "outcome"),
        ({"outcome": "done"}, "outcome"),
        ({"outcome": "completed", "by": ""}, "by"),
        ({"outcome": "failed"}, "reason"),
    ],
)
def test_a_bad_ending_names_its_field(client, job, body, field):
    refused = client.post(ENDING, json=body)
    assert (refused.status_code, refused.json()["error"]["field"]) == (422, field)
    assert client.get(JOB).json()["ended"] is None


def test_a_job_that_is_not_there_does_not_end(client):
    assert client.post("/v1/jobs/nowhere/ending", json=COMPLETED).status_code == 404
