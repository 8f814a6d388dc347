"""What the service holds is bounded, and every refusal names the setting."""

import pytest
from starlette.testclient import TestClient

from api.app import create_app
from api.settings import Settings
from tests.api.requests import new_job


@pytest.mark.parametrize(
    ("limits", "setting"), [({"max_jobs": 1}, "KINTSUGI_MAX_JOBS"), ({"max_workers_per_job": 7}, "KINTSUGI_MAX_WORKERS_PER_JOB")]
)
def test_a_job_too_many_is_refused(database_url, limits, setting):
    with TestClient(create_app(Settings(database_url=database_url, plans_ahead=False, **limits))) as client:
        assert client.post("/v1/jobs", json=new_job()).status_code == 201
        refused = client.post("/v1/jobs", json=new_job(id="second", workers=8))
        assert refused.status_code == 409
        assert refused.json()["error"]["code"] == "limit_reached"
        assert refused.json()["error"]["field"] == setting
        assert client.post("/v1/jobs", json=new_job()).status_code == 200
