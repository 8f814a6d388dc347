"""Stored plans for other tools: traces that Perfetto loads, and other systems' words."""

import pytest

from api import exports
from tests.api.requests import EVENTS, JOB, event
from tests.estimator.test_trace import require_paired_flows, require_valid


def test_a_plans_trace(client, job):
    response = client.get(f"{JOB}/plans/0/trace")
    assert response.headers["content-type"] == "application/json"
    document = response.json()
    require_valid(document)
    require_paired_flows(document)
    assert document["otherData"] == {"job": "llama", "generation": "0", "kind": "predicted"}
    ends = [e["args"]["end_seconds"] for e in document["traceEvents"] if e["name"] == "apply"]
    assert max(ends) == pytest.approx(job["decision"]["estimate"]["iteration_seconds"])


def test_a_later_generation_has_its_own(client, job):
    client.post(EVENTS, json=event("a", 0, "w00"))
    document = client.get(f"{JOB}/plans/1/trace").json()
    names = [e["args"]["name"] for e in document["traceEvents"] if e["name"] == "thread_name"]
    assert names
    assert not any(name.startswith("w00 ") for name in names)


@pytest.mark.parametrize("form", ["megatron", "torchtitan", "csv"])
def test_a_plan_in_other_words(client, job, form):
    plan = job["decision"]["plan"]
    response = client.get(f"{JOB}/plans/0/export", params={"format": form})
    if form == "csv" and all(len(pipeline["stages"]) == 1 for pipeline in plan["pipelines"]):
        assert response.status_code == 422
        return
    body = response.json()
    assert body["format"] == form
    assert sorted(n for part in body["parts"] for n in part["pipelines"]) == list(range(len(plan["pipelines"])))
    assert all(part["text"] for part in body["parts"])


@pytest.mark.parametrize("what", ["trace", "export?format=megatron"])
def test_what_is_not_there_and_what_is_no_format(client, job, what):
    assert client.get(f"{JOB}/plans/9/{what}").status_code == 404
    assert client.get(f"/v1/jobs/absent/plans/0/{what}").status_code == 404
    assert client.get(f"{JOB}/plans/0/export?format=deepspeed").status_code == 422


def test_a_trace_too_large_is_refused(client, job, monkeypatch):
    monkeypatch.setattr(exports, "MOST_PASSES", 3)
    response = client.get(f"{JOB}/plans/0/trace")
    assert response.status_code == 422
    assert "kintsugi trace" in response.json()["detail"]
