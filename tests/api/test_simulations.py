"""Small simulations over HTTP."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from api.schemas import SimulationRequest
from api.simulations import simulated
from kintsugi.core.errors import InvalidInputError
from tests.api.requests import EVENTS, event

FAILURES = "values.faults.num_failures"
SHORT = {"scenario": "chameleon-32", "values": {"duration": 3600, "spares": 1}, "policies": ["oobleck", "varuna"]}


def test_a_simulation_answers_with_a_row_per_policy(client):
    response = client.post("/v1/simulations", json={**SHORT, "seeds": 2})
    assert response.status_code == 200
    rows = response.json()["rows"]
    assert [(row["policy"], row["num_runs"], row["values"]) for row in rows] == [
        (name, 2, {"duration": 3600, "spares": 1}) for name in ("oobleck", "varuna")
    ]
    assert all(row["samples_per_second"]["mean"] > row["samples_per_second"]["margin"] > 0 for row in rows)
    assert client.post("/v1/simulations", json={**SHORT, "seeds": 2}).json() == response.json()


def test_a_trace_is_simulated_once(client):
    request = {"scenario": "spot", "values": {"duration": 3600}, "policies": ["varuna"], "seeds": 3}
    row = client.post("/v1/simulations", json=request).json()["rows"][0]
    assert (row["num_runs"], row["samples_per_second"]["margin"]) == (1, None)


def test_no_job_waits_for_those_who_study(client, job, app, monkeypatch):
    is_over, begun = threading.Event(), threading.Semaphore(0)

    def endless(request, limit_seconds):
        begun.release()
        assert is_over.wait(60.0)
        return simulated(request, limit_seconds)

    monkeypatch.setattr("api.routes.simulations._simulated", endless)
    settings = app.state.desk.settings
    crowd = settings.max_planning_threads + settings.max_study_threads
    with ThreadPoolExecutor(crowd) as pool:
        studies = [pool.submit(client.post, "/v1/simulations", json=SHORT) for _ in range(crowd)]
        try:
            assert all(begun.acquire(timeout=60.0) for _ in range(settings.max_study_threads))
            assert not begun.acquire(blocking=False)
            assert client.post(EVENTS, json=event("e1", 0, "w01")).status_code == 200
            assert not any(study.done() for study in studies)
        finally:
            is_over.set()
        assert [study.result(60.0).status_code for study in studies] == [200] * crowd


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"scenario": "/etc/passwd"}, "scenario"),
        ({"policies": ["luck"]}, "policies"),
        ({"policies": []}, "policies"),
        ({"seeds": 0}, "seeds"),
        ({"values": {"nothing": 1}}, "values.nothing"),
        ({"values": {"": 1}}, "values."),
        ({"values": {"spares": 1, ".": 1}}, "values.."),
        ({"values": {"vary": 1}}, "values.vary"),
        ({"values": {"settings.ranges.min_pp.": 1}}, "values.settings.ranges.min_pp."),
        ({"values": {"folder": 1}}, "values.folder"),
        ({"values": {"duration": 60, "duration_seconds": 90}}, "values.duration_seconds"),
        ({"values": {"profile": "/etc/passwd"}}, "values.profile"),
        ({"values": {"num_workers": 100_000}}, "values"),
        ({"values": {"num_workers": 1_000_000}}, "values.num_workers"),
        ({"values": {"mtbf": 1e-3}}, "values"),
        ({"values": {"settings.num_microbatches": 1e9}}, "values.settings.num_microbatches"),
        ({"values": {"microbatches": 1e9}}, "values.microbatches"),
        ({"values": {"spares": -1}}, "values.spares"),
        ({"values": {"duration": -1}}, "values.duration"),
        ({"scenario": "llama3-16k", "values": {"faults.num_failures": 3000, "faults.repair_seconds": 1e12}}, FAILURES),
    ],
)
def test_bad_requests_name_the_field(client, changes, field):
    response = client.post("/v1/simulations", json={**SHORT, **changes})
    assert response.status_code == 422
    assert response.json()["error"]["field"] == field


def test_what_takes_too_long_is_given_up():
    request = SimulationRequest(scenario="chameleon-32", policies=("oobleck",))
    with pytest.raises(InvalidInputError, match=r"KINTSUGI_MAX_SIMULATION_SECONDS.*kintsugi simulate"):
        simulated(request, 0.0)
