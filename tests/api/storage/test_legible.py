"""What a later version of the program stored: one that was left running says so, and takes neither caller nor job for wrong."""

import json

import pytest
from sqlalchemy import create_engine, text

from tests.api.requests import EVENTS, JOB, event, new_job

ENTRY = text(
    "insert into log (job, number, kind, event_id, body, received_at, generation, decided, deferred, position) "
    "values ('llama', 2, :kind, 'later', :body, '2027-01-01T00:00:00.000000Z', 1, :no, :no, 1000)"
)
SLOWER = json.dumps(event("later", 1, "w03", kind="straggler", speed_ratio=0.5))
LATER = {
    "kind of entry": {"kind": "tomorrows", "body": "{}"},
    "kind of event": {"kind": "event", "body": SLOWER.replace("straggler", "vanished")},
    "field": {"kind": "event", "body": SLOWER.replace("}", ', "colour": "red"}')},
    "form": {"kind": "event", "body": "what is no JSON"},
}


@pytest.mark.both_databases
@pytest.mark.parametrize("entry", LATER.values(), ids=LATER)
def test_it_is_the_services_absence(client, job, database_url, entry):
    client.post("/v1/jobs", json=new_job(id="other"))
    assert client.post(EVENTS, json=event("a", 0, "w00")).status_code == 200
    engine = create_engine(database_url)
    with engine.begin() as connection:
        connection.execute(ENTRY, {**entry, "no": False})
    engine.dispose()
    told = [client.get(path) for path in (JOB, EVENTS, f"{JOB}/plan", "/v1/jobs", f"{JOB}/stream?after=0")]
    told.append(client.post(EVENTS, json=event("b", 1, "w01")))
    for response in told:
        assert response.status_code == 503
        assert "all processes on a database must be of one version" in response.json()["detail"]
    assert client.get("/dashboard/jobs/llama").status_code == 503
    assert client.get("/v1/jobs/other/plan").status_code == 200
