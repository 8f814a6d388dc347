"""Small simulations over HTTP."""

import pytest

from api.schemas import SimulationRequest
from api.simulations import simulated
from kintsugi.core.errors import InvalidInputError

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


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"scenario": "/etc/passwd"}, "scenario"),
        ({"policies": ["luck"]}, "policies"),
        ({"policies": []}, "policies"),
        ({"seeds": 0}, "seeds"),
        ({"values": {"nothing": 1}}, "values.nothing"),
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
