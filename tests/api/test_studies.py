"""Estimates and what-if studies answer and store nothing."""

import json

import pytest

from kintsugi.core import codec
from tests.api.requests import EVENTS, JOB, event, new_job, workers_of
from tests.builders import uniform_profile


def study(**changes):
    body = {name: value for name, value in new_job().items() if name != "id"}
    return {**body, **changes}


def estimate_of(plan, **changes):
    return {"profile": codec.encode(uniform_profile(4)), "workers": 6, "workers_per_host": 2, "plan": plan, **changes}


def test_the_estimate_of_a_plan_is_the_decisions_own(client, job):
    response = client.post("/v1/estimates", json=estimate_of(job["decision"]["plan"]))
    assert response.status_code == 200
    assert response.json() == {**job["decision"]["estimate"], "overfull_workers": []}


def test_an_estimate_names_the_workers_whose_memory_is_too_small_by_a_byte(client, job):
    decision, workers = job["decision"], job["cluster"]["workers"]
    peaks = {stage["worker"]: stage["peak_memory_bytes"] for stage in decision["estimate"]["stages"]}
    small = sorted(peaks)[-1]
    given = [{**worker, "memory_bytes": peaks[worker["id"]] - (worker["id"] == small)} for worker in workers]
    body = estimate_of(decision["plan"], cluster={**job["cluster"], "workers": given})
    del body["workers"], body["workers_per_host"]
    response = client.post("/v1/estimates", json=body)
    assert response.status_code == 200, response.text
    assert response.json() == {**decision["estimate"], "overfull_workers": [small]}


def test_a_plan_of_strangers_has_no_estimate(client, job):
    response = client.post("/v1/estimates", json=estimate_of(job["decision"]["plan"], workers=1))
    assert response.status_code == 422
    assert response.json()["error"]["field"] == "plan.pipelines[0].stages[1].worker"


def test_a_plan_of_another_model_has_no_estimate(client, job):
    body = estimate_of(job["decision"]["plan"], profile=codec.encode(uniform_profile(5)))
    response = client.post("/v1/estimates", json=body)
    assert (response.status_code, response.json()["error"]["field"]) == (422, "plan")


def test_an_estimate_wants_a_credible_mean_time_between_failures(client, job):
    response = client.post("/v1/estimates", json=estimate_of(job["decision"]["plan"], mtbf_seconds=0.5))
    assert (response.status_code, response.json()["error"]["field"]) == (422, "mtbf_seconds")


def test_what_if_says_what_the_event_then_gets(client, job):
    lost = sorted(workers_of(job["decision"]))[0]
    thought = client.post("/v1/whatif", json={"job": "llama", "fail": [lost]}).json()
    assert client.get(JOB).json() == job
    done = client.post(EVENTS, json=event("a", 0, lost)).json()["decision"]
    for decision in (thought, done):
        decision["search"].pop("elapsed_seconds")
    assert thought == done


def test_a_described_job_needs_no_stored_one(client):
    decision = client.post("/v1/whatif", json=study(fail=["w00"], join=["w42"])).json()
    assert decision["plan"]["generation"] == 1
    assert "w00" not in workers_of(decision)
    assert client.get("/v1/jobs").json()["jobs"] == []


def test_hosts_fail_with_all_their_workers(client):
    decision = client.post("/v1/whatif", json=study(fail_hosts=["h01"])).json()
    assert not workers_of(decision) & {"w02", "w03"}


def test_what_if_a_worker_ran_slower_is_what_its_straggler_event_gets(client, job):
    slow = sorted(workers_of(job["decision"]))[0]
    thought = client.post("/v1/whatif", json={"job": "llama", "slow": {slow: 0.25}}).json()
    assert thought["estimate"]["iteration_seconds"] > job["decision"]["estimate"]["iteration_seconds"]
    done = client.post(EVENTS, json=event("a", 0, slow, "straggler", speed_ratio=0.25)).json()["decision"]
    for decision in (thought, done):
        decision["search"].pop("elapsed_seconds")
    assert thought == done


def uneven(*speed_ratios):
    """A cluster of six workers, the first ones not as fast as the profile says."""
    workers = [{"id": f"w{i:02d}", "host": f"h{i:02d}"} for i in range(6)]
    for worker, speed_ratio in zip(workers, speed_ratios, strict=False):
        worker["speed_ratio"] = speed_ratio
    return {"schema_version": 1, "name": "uneven", "workers": workers}


@pytest.mark.parametrize(
    "asked",
    [
        {"slow": {"w00": 1.0}},
        {"slow": {f"w{i:02d}": 0.25 for i in range(6)}},
        {"fail": ["w01"], "join": ["w01"]},
        {"fail_hosts": ["h01"], "join": ["w01"]},
        {"fail": ["w05"], "slow": {"w00": 0.5}},
    ],
    ids=["recovered", "all slower", "restarted", "restarted with its host", "lost, and one faster"],
)
def test_a_described_job_gets_what_a_stored_one_does(client, asked):
    described = study(workers=None, cluster=uneven(0.25))
    described.pop("workers_per_host", None)
    assert client.post("/v1/jobs", json={**described, "id": "stored"}).status_code == 201
    answers = [client.post("/v1/whatif", json=body).json() for body in ({"job": "stored", **asked}, {**described, **asked})]
    for decision in answers:
        decision["search"].pop("elapsed_seconds")
    assert answers[0] == answers[1]


@pytest.mark.parametrize(
    ("changes", "status", "field"),
    [
        ({"slow": {"w00": 0}}, 422, "slow.w00"),
        ({"slow": {"w00": 1e9}}, 422, "slow.w00"),
        ({"slow": {"w77": 0.5}}, 404, "slow.w77"),
        ({"fail": ["w01"], "slow": {"w01": 0.5}}, 422, "slow.w01"),
        ({"slow": {"w01": 70}}, 422, "slow.w01"),
        ({"fail": ["w00", "w00"]}, 422, "fail[1]"),
        ({"fail": ["w00", "w77"]}, 404, "fail[1]"),
        ({"fail": ["w77"], "settings": {"num_microbatches": 8, "ranges": {"min_dp": 7}}}, 404, "fail[0]"),
        ({"fail_hosts": ["h77"]}, 404, "fail_hosts[0]"),
        ({"join": ["w42", ""]}, 422, "join[1]"),
        ({"workers": None}, 422, "workers"),
        ({"profile": None}, 422, "profile"),
        ({"settings": None}, 422, "settings"),
        ({"settings": {"num_microbatches": 8, "mtbf_seconds": 1e-320}}, 422, "settings.mtbf_seconds"),
        ({"workers": 0}, 422, "workers"),
        ({"workers": 10**9}, 422, "workers"),
    ],
)
def test_a_study_of_nonsense_is_refused_by_name(client, changes, status, field):
    response = client.post("/v1/whatif", json=study(**changes))
    assert (response.status_code, response.json()["error"]["field"]) == (status, field)


def test_a_stored_job_is_not_described_again(client, job):
    response = client.post("/v1/whatif", json=study(job="llama"))
    assert (response.status_code, response.json()["error"]["field"]) == (422, "profile")
    response = client.post("/v1/whatif", json={"job": "llama", "workers_per_host": 2})
    assert (response.status_code, response.json()["error"]["field"]) == (422, "workers_per_host")
    assert client.post("/v1/whatif", json={"job": "nobody"}).status_code == 404


def test_a_worker_that_is_gone_cannot_fail_again(client, job):
    client.post(EVENTS, json=event("a", 0, "w00"))
    response = client.post("/v1/whatif", json={"job": "llama", "fail": ["w00"]})
    assert (response.status_code, response.json()["error"]["field"]) == (422, "fail[0]")


@pytest.mark.both_databases
@pytest.mark.parametrize("name", ["\ud800", "a\x00", ""])
def test_a_job_that_cannot_be_is_refused_by_name(client, name):
    response = client.post("/v1/whatif", content=json.dumps({"job": name}), headers={"content-type": "application/json"})
    assert (response.status_code, response.json()["error"]["field"]) == (422, "job")
