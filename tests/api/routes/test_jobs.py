"""Jobs are created once, whatever is repeated, and shown as they stand."""

import pytest
from starlette.testclient import TestClient

from kintsugi.core import codec
from tests.api.requests import EVENTS, JOB, event, new_job, workers_of
from tests.builders import uniform_profile

pytestmark = pytest.mark.both_databases


def test_a_new_job_has_generation_0_and_its_decision(client, job):
    assert job["summary"]["id"] == "llama"
    assert (job["summary"]["generation"], job["summary"]["applied_generation"]) == (0, 0)
    assert job["decision"]["plan"]["generation"] == 0
    assert sum(pipeline["num_microbatches"] for pipeline in job["decision"]["plan"]["pipelines"]) == 8
    assert workers_of(job["decision"]) <= set(job["alive"])


def test_the_same_request_again_gives_the_same_job(client, job):
    again = client.post("/v1/jobs", json=new_job())
    assert again.status_code == 200
    assert again.json() == job


def test_the_same_id_with_another_body_is_refused(client, job):
    other = client.post("/v1/jobs", json=new_job(workers=4))
    assert other.status_code == 409
    assert other.json()["error"]["field"] == "id"
    assert client.get(JOB).json() == job


def test_the_service_chooses_an_id_and_an_idempotency_key_keeps_it(client):
    headers = {"Idempotency-Key": "first"}
    first = client.post("/v1/jobs", json=new_job(id=None), headers=headers)
    again = client.post("/v1/jobs", json=new_job(id=None), headers=headers)
    other = client.post("/v1/jobs", json=new_job(id=None))
    assert (first.status_code, again.status_code, other.status_code) == (201, 200, 201)
    assert first.json()["summary"]["id"] == again.json()["summary"]["id"] != other.json()["summary"]["id"]
    assert client.post("/v1/jobs", json=new_job(id=None, workers=3), headers=headers).status_code == 409


def test_a_running_plan_is_adopted_as_it_is(client: TestClient):
    half = {"num_microbatches": 4}
    stages = [{"layer_start": 0, "layer_stop": 3}, {"layer_start": 3, "layer_stop": 4}]
    pipelines = [{**half, "stages": [{**stage, "worker": f"w0{2 * p + s}"} for s, stage in enumerate(stages)]} for p in range(2)]
    response = client.post("/v1/jobs", json=new_job(plan={"pipelines": pipelines}))
    assert response.status_code == 201, response.text
    decision = response.json()["decision"]
    assert decision["plan"]["pipelines"] == pipelines
    assert sorted(layer for own in decision["plan"]["rounds"] for one in own for layer in one["layers"]) == [0, 1, 2, 3]
    assert decision["estimate"]["reduce_seconds"] > 0
    assert decision["estimate"]["iteration_seconds"] > 0
    assert decision["search"]["gap_ratio"] > 0
    assert decision["survivable"]["workers"] == 1
    answer = client.post(EVENTS, json=event("a", 0, "w00")).json()
    assert answer["decision"]["previous_plan"]["pipelines"] == pipelines


def test_a_running_plan_of_strangers_is_refused(client):
    pipelines = [{"num_microbatches": 8, "stages": [{"layer_start": 0, "layer_stop": 4, "worker": "w77"}]}]
    response = client.post("/v1/jobs", json=new_job(plan={"pipelines": pipelines}))
    assert response.status_code == 422
    assert response.json()["error"]["field"] == "plan.pipelines[0].stages[0].worker"


def test_a_running_plan_whose_replicas_would_drift_apart_is_refused(client):
    pipelines = [{"num_microbatches": 4, "stages": [{"layer_start": 0, "layer_stop": 4, "worker": w}]} for w in ("w00", "w01")]
    rounds = [[{"layers": [0, 1, 3], "workers": ["w00", "w01"], "num_bytes": 300_000_000}]]
    plan = {"pipelines": pipelines, "rounds": rounds}
    question = {name: new_job()[name] for name in ("profile", "workers")}
    for path, body in (
        ("jobs", new_job(plan=plan)),
        ("estimates", {**question, "plan": plan}),
        ("whatif", {**question, "settings": {"num_microbatches": 8}, "plan": plan}),
    ):
        response = client.post(f"/v1/{path}", json=body)
        assert response.status_code == 422, path
        assert (response.json()["error"]["field"], response.json()["error"]["value"]) == ("plan.rounds", 2)
    assert client.get(JOB).status_code == 404


def test_a_job_that_no_plan_fits_is_not_stored(client):
    profile = codec.encode(uniform_profile(4, memory_bytes=1_000_000))
    response = client.post("/v1/jobs", json=new_job(profile=profile))
    assert response.status_code == 409
    assert response.json()["error"]["code"] == "infeasible"
    assert client.get(JOB).status_code == 404


def test_jobs_are_listed_in_pages(client):
    for name in ("c", "a", "b"):
        client.post("/v1/jobs", json=new_job(id=name, workers=2))
    first = client.get("/v1/jobs", params={"limit": 2}).json()
    assert [job["id"] for job in first["jobs"]] == ["a", "b"]
    second = client.get("/v1/jobs", params={"limit": 2, "cursor": first["next_cursor"]}).json()
    assert [job["id"] for job in second["jobs"]] == ["c"]
    assert second["next_cursor"] is None


def test_a_job_shows_who_is_alive(client, job):
    client.post(EVENTS, json=event("a", 0, "w01"))
    now = client.get(JOB).json()
    assert "w01" not in now["alive"]
    assert (now["summary"]["num_workers"], now["summary"]["num_alive"], now["summary"]["generation"]) == (6, 5, 1)


def test_an_unknown_job_is_not_found(client):
    for path in ("", "/plan", "/plans/0", "/events", "/reports"):
        response = client.get(f"/v1/jobs/nobody{path}")
        assert response.status_code == 404, path
        assert response.json()["error"] == {
            "code": "not_found",
            "field": "job",
            "value": "nobody",
            "message": "there is no job of this id",
        }
