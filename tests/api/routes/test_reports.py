"""Reports say where the state lies."""

import pytest

from tests.api.requests import EVENTS, JOB, REPORTS, event, report

pytestmark = pytest.mark.both_databases


def test_an_applied_plan_is_where_the_state_lies(client, job):
    client.post(EVENTS, json=event("a", 0, "w00"))
    response = client.post(REPORTS, json=report(1))
    assert response.status_code == 201
    assert response.json()["generation"] == 1
    assert client.get(JOB).json()["summary"]["applied_generation"] == 1


def test_a_plan_applied_late_calls_for_a_decision_from_there(client, job):
    client.post(EVENTS, json=event("a", 0, "w00"))
    client.post(EVENTS, json=event("b", 1, "w01"))
    assert client.post(REPORTS, json=report(1)).json()["generation"] == 3
    latest = client.get(f"{JOB}/plan").json()
    assert latest["generation"] == 3
    assert latest["decision"]["previous_plan"]["generation"] == 1


def test_an_older_plan_than_the_applied_one_is_stale(client, job):
    client.post(EVENTS, json=event("a", 0, "w00"))
    client.post(REPORTS, json=report(1))
    response = client.post(REPORTS, json=report(0))
    assert response.status_code == 409
    assert response.json()["current_generation"] == 1


def test_a_generation_that_nobody_decided_is_not_found(client, job):
    response = client.post(REPORTS, json=report(7))
    assert response.status_code == 404
    assert response.json()["error"]["field"] == "generation"


def test_rejected_and_measured_are_logged_and_change_nothing(client, job):
    client.post(EVENTS, json=event("a", 0, "w00"))
    measured = {
        "step": 7,
        "iteration_seconds": 0.5,
        "worker_busy_seconds": {"w01": 0.3},
        "layers": [{"layer": 0, "worker": "w01", "forward_seconds": 0.01, "backward_seconds": 0.02}],
        "phase_seconds": {"detected": 0.01, "planned": 0.02, "first_step": 0.4},
        "incarnations": {"w01": 2},
    }
    client.post(REPORTS, json=report(1, "rejected", reason="w02 did not answer"))
    client.post(REPORTS, json=report(0, "measured", measured=measured))
    records = client.get(REPORTS).json()["reports"]
    assert [record["report"]["status"] for record in records] == ["rejected", "measured"]
    assert records[1]["report"]["measured"] == measured
    assert client.get(JOB).json()["summary"]["applied_generation"] == 0


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (report(0, "rejected"), "reason"),
        (report(0, "measured"), "measured"),
        (report(0, "done"), "status"),
        (report(-1), "generation"),
        (report(True), "generation"),
        (report(0, "measured", measured={"iteration_seconds": 0}), "measured.iteration_seconds"),
        (report(0, "measured", measured={"phase_seconds": {"planned": -1}}), "measured.phase_seconds.planned"),
        (report(0, "measured", measured={"watts": 1}), "measured.watts"),
    ],
)
def test_a_report_that_says_nothing_sensible_names_the_field(client, job, body, field):
    response = client.post(REPORTS, json=body)
    assert response.status_code == 422
    assert response.json()["error"]["field"] == field


def test_an_idempotency_key_logs_a_report_once(client, job):
    headers = {"Idempotency-Key": "k"}
    first = client.post(REPORTS, json=report(0), headers=headers)
    assert client.post(REPORTS, json=report(0), headers=headers).json() == first.json()
    assert len(client.get(REPORTS).json()["reports"]) == 1


def test_a_worker_that_came_back_before_a_plan_was_applied_holds_no_state(client, job):
    client.post(EVENTS, json=event("lost", 0, "w00"))
    answer = client.post(EVENTS, json=event("back", 1, "w00", "worker_joined")).json()
    migrated = {transfer["target"] for transfer in answer["decision"]["migration"]["transfers"]}
    used = {stage["worker"] for pipeline in answer["decision"]["plan"]["pipelines"] for stage in pipeline["stages"]}
    assert "w00" in migrated or "w00" not in used


def layer_times(worker, layer):
    return {"layer": layer, "worker": worker, "forward_seconds": 0.01, "backward_seconds": 0.02}


@pytest.mark.parametrize(
    ("measured", "field"),
    [
        ({"worker_busy_seconds": {"w00": 1.0, "nobody": 1.0}}, "measured.worker_busy_seconds.nobody"),
        ({"incarnations": {"w99": 1}}, "measured.incarnations.w99"),
        ({"layers": [layer_times("w00", 0), layer_times("w99", 0)]}, "measured.layers[1].worker"),
        ({"layers": [layer_times("w00", 3), layer_times("w00", 4)]}, "measured.layers[1].layer"),
    ],
)
def test_what_was_measured_of_strangers_is_refused(client, job, measured, field):
    answer = client.post(REPORTS, json=report(0, "measured", measured=measured))
    assert answer.status_code == 404
    assert answer.json()["error"]["field"] == field
    assert client.get(REPORTS).json()["reports"] == []
