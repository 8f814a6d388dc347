"""Events lead to decisions: once each, in order, from where the state lies."""

import pytest
from starlette.testclient import TestClient

from api.app import create_app
from tests.api.requests import EVENTS, JOB, REPORTS, event, new_job, report, workers_of

pytestmark = pytest.mark.both_databases


def test_a_failure_is_answered_with_the_next_generation(client, job):
    lost = sorted(workers_of(job["decision"]))[0]
    response = client.post(EVENTS, json=event("a", 0, lost))
    assert response.status_code == 200
    answer = response.json()
    assert answer["generation"] == answer["decision"]["plan"]["generation"] == 1
    assert lost not in workers_of(answer["decision"])
    assert response.headers["ETag"].startswith('"1@')


def test_a_repeated_event_changes_nothing_and_gets_the_same_answer(client, job):
    first = client.post(EVENTS, json=event("a", 0, "w01"))
    later = client.post(EVENTS, json=event("b", 1, "w02"))
    again = client.post(EVENTS, json=event("a", 0, "w01"))
    assert again.content == first.content
    assert client.get(f"{JOB}/plan").content == later.content
    assert len(client.get(EVENTS).json()["events"]) == 2


def test_an_event_id_that_belongs_to_another_event_is_refused(client, job):
    client.post(EVENTS, json=event("a", 0, "w01"))
    response = client.post(EVENTS, json=event("a", 1, "w02"))
    assert response.status_code == 409
    assert response.json()["error"]["field"] == "id"


@pytest.mark.parametrize("generation", [0, 2, 10**12])
def test_another_generation_than_the_latest_is_refused_with_the_latest(client, job, generation):
    client.post(EVENTS, json=event("a", 0, "w01"))
    response = client.post(EVENTS, json=event("b", generation, "w02"))
    assert response.status_code == 409
    assert response.json()["error"]["code"] == "stale_generation"
    assert response.json()["current_generation"] == 1
    assert len(client.get(EVENTS).json()["events"]) == 1


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (event("a", 0, "w77"), "worker"),
        (event("a", 0, kind="host_failed", host="h77"), "host"),
        ({"events": [event("a", 0, "w00"), event("b", 0, "w77")]}, "worker"),
    ],
)
def test_an_unknown_subject_is_not_found_and_nothing_is_logged(client, job, body, field):
    response = client.post(EVENTS, json=body)
    assert response.status_code == 404
    assert response.json()["error"]["field"] == field
    assert client.get(EVENTS).json()["events"] == []
    assert client.get(JOB).json() == job


def test_a_worker_that_is_said_to_be_where_it_is_not_is_refused_and_nothing_is_logged(client, job):
    """Whoever told it may mean another one, but for one of a past life, which may have been there."""
    elsewhere = client.post(EVENTS, json=event("a", 0, "w00", host="h02"))
    assert elsewhere.status_code == 422
    assert elsewhere.json()["error"]["field"] == "host"
    assert "is not where w00 is, which is on h00" in elsewhere.json()["error"]["message"]
    assert client.get(EVENTS).json()["events"] == []
    moved = event("b", 0, "w00", "worker_joined", host="h02", incarnation=2)
    assert client.post(EVENTS, json={"events": [moved, event("c", 0, "w00", host="h02")]}).status_code == 200
    for told, status in ((event("d", 1, "w00", host="h00"), 422), (event("e", 1, "w00", host="h00", incarnation=1), 200)):
        assert client.post(EVENTS, json=told).status_code == status


def test_a_speed_in_percent_is_refused_and_stored_as_little_as_any_other_slip(client, job):
    slow = event("slow", 0, "w00", "straggler", speed_ratio=0.05)
    assert client.post(EVENTS, json=slow).status_code == 200
    for kind in ("straggler", "recovered"):
        refused = client.post(EVENTS, json=event("percent", 1, "w00", kind, speed_ratio=70))
        assert (refused.status_code, refused.json()["error"]["field"]) == (422, "speed_ratio")
        assert "such as 0.7, not percent" in refused.json()["detail"]
    assert [record["event"]["id"] for record in client.get(EVENTS).json()["events"]] == ["slow"]
    assert client.post(EVENTS, json=event("back", 1, "w00", "straggler", speed_ratio=1.0)).status_code == 200


def test_among_fast_workers_a_fast_one_is_credible(client):
    cluster = {"name": "fast", "workers": [{"id": f"w{n}", "host": f"h{n}", "speed_ratio": 30.0} for n in range(4)]}
    assert client.post("/v1/jobs", json=new_job(workers=None, workers_per_host=1, cluster=cluster)).status_code == 201
    assert client.post(EVENTS, json=event("slow", 0, "w0", "straggler", speed_ratio=25.0)).status_code == 200


def test_several_failures_at_once_give_one_plan(client, job):
    answer = client.post(EVENTS, json={"events": [event("a", 0, "w00"), event("b", 0, "w03")]}).json()
    assert answer["generation"] == 1
    assert not workers_of(answer["decision"]) & {"w00", "w03"}
    assert [record["generation"] for record in client.get(EVENTS).json()["events"]] == [1, 1]
    again = client.post(EVENTS, json={"events": [event("b", 0, "w03"), event("a", 0, "w00")]}).json()
    assert again == answer


def test_several_failures_at_once_are_one_decision_for_another_process_too(settings, client, job):
    with TestClient(create_app(settings)) as other:
        assert other.get(JOB).json()["summary"]["generation"] == 0
        answer = client.post(EVENTS, json={"events": [event("a", 0, "w00"), event("b", 0, "w03")]}).json()
        assert other.get(f"{JOB}/plan").json()["generation"] == answer["generation"] == 1
        assert other.post(EVENTS, json=event("c", 1, "w01")).json()["generation"] == 2
    assert client.get(f"{JOB}/plan").json()["generation"] == 2


def test_a_batch_with_one_new_event_counts_the_new_one_alone(client, job):
    client.post(EVENTS, json=event("a", 0, "w00"))
    answer = client.post(EVENTS, json={"events": [event("a", 0, "w00"), event("b", 1, "w03")]}).json()
    assert answer["generation"] == 2
    assert [record["event"]["id"] for record in client.get(EVENTS).json()["events"]] == ["a", "b"]


def test_a_batch_that_is_repeated_gets_the_same_answer_in_whichever_order_its_events_were_first_told(client, job):
    client.post(EVENTS, json=event("a", 0, "w00"))
    batch = {"events": [event("b", 1, "w03"), event("a", 0, "w00")]}
    first = client.post(EVENTS, json=batch)
    assert first.json()["generation"] == 2
    assert client.post(EVENTS, json=batch).content == first.content


def test_a_host_takes_its_workers_along(client, job):
    answer = client.post(EVENTS, json=event("a", 0, kind="host_failed", host="h01")).json()
    assert not workers_of(answer["decision"]) & {"w02", "w03"}
    assert client.get(JOB).json()["alive"] == ["w00", "w01", "w04", "w05"]


@pytest.mark.parametrize(
    "changes",
    [
        {"kind": "link_disconnected", "link": ["h00", "h01"]},
        {"kind": "link_connected", "link": ["h00", "h01"]},
        {"kind": "straggler", "worker": "w00", "speed_ratio": 1.0},
        {"kind": "recovered", "worker": "w00"},
        {"kind": "worker_joined", "worker": "w00"},
    ],
)
def test_an_event_that_changes_nothing_is_logged_and_answered_with_the_present_plan(client, job, changes):
    answer = client.post(EVENTS, json={**event("a", 0), **changes}).json()
    assert answer["generation"] == 0
    assert answer["decision"] == job["decision"]
    assert len(client.get(EVENTS).json()["events"]) == 1


def test_a_straggler_is_planned_around(client, job):
    answer = client.post(EVENTS, json=event("a", 0, "w00", "straggler", speed_ratio=0.1)).json()
    assert answer["generation"] == 1
    assert client.get(JOB).json()["cluster"]["workers"][0]["speed_ratio"] == 0.1


def test_a_straggler_that_recovers_and_a_link_that_changes_are_planned_for_anew(client, job):
    slow = client.post(EVENTS, json=event("a", 0, "w00", "straggler", speed_ratio=0.1)).json()
    client.post(REPORTS, json=report(1))
    recovered = client.post(EVENTS, json=event("b", 1, "w00", "recovered")).json()
    assert seconds_of(recovered) == pytest.approx(seconds_of(job))
    assert seconds_of(recovered) < 0.95 * seconds_of(slow)
    client.post(REPORTS, json=report(2))
    cost = {"link": ["h00", "h01"], "alpha_seconds": 0.05, "beta_seconds_per_byte": 1e-6}
    degraded = client.post(EVENTS, json={**event("c", 2, kind="link_degraded"), **cost}).json()
    assert len(degraded["decision"]["alternatives"]) > 1, "a plan that stays has no alternatives"


def seconds_of(answer):
    return answer["decision"]["estimate"]["iteration_seconds"]


def test_a_worker_that_nobody_knew_joins(client, job):
    answer = client.post(EVENTS, json=event("a", 0, "w42", "worker_joined", host="h42")).json()
    assert answer["generation"] == 1
    assert "w42" in client.get(JOB).json()["alive"]


def test_the_next_plan_starts_from_the_one_applied_last(client, job):
    client.post(EVENTS, json=event("a", 0, "w00"))
    unapplied = client.post(EVENTS, json=event("b", 1, "w01")).json()
    assert unapplied["decision"]["previous_plan"]["generation"] == 0
    client.post(REPORTS, json=report(2))
    applied = client.post(EVENTS, json=event("c", 2, "w02")).json()
    assert applied["decision"]["previous_plan"]["generation"] == 2


def test_when_nobody_is_left_the_event_stays_and_a_later_one_goes_on_from_it(client, job):
    everybody = {"events": [event(f"lost {worker}", 0, worker) for worker in job["alive"]]}
    response = client.post(EVENTS, json=everybody)
    assert response.status_code == 409
    assert response.json()["error"]["code"] in ("infeasible", "state_lost")
    assert client.get(JOB).json()["summary"]["problem"] == response.json()["error"]
    assert client.get(JOB).json()["alive"] == []
    assert len(client.get(EVENTS).json()["events"]) == 6
    again = client.post(EVENTS, json=everybody)
    assert (again.status_code, again.json()["error"]) == (409, response.json()["error"])
    back = client.post(EVENTS, json=event("back", 0, "w00", "worker_joined"))
    assert client.get(JOB).json()["alive"] == ["w00"]
    assert back.status_code in (200, 409)


def test_events_are_listed_in_pages(client, job):
    for number in range(5):
        client.post(EVENTS, json=event(f"e{number}", 0, kind="link_connected", link=["h00", "h01"]))
    seen, cursor = [], None
    while True:
        page = client.get(EVENTS, params={"limit": 2, **({"cursor": cursor} if cursor else {})}).json()
        seen += [record["event"]["id"] for record in page["events"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert seen == [f"e{number}" for number in range(5)]


@pytest.mark.parametrize("cursor", ["x", "-1", "1.5", "²", "9" * 50])
def test_an_invented_cursor_is_refused(client, job, cursor):
    response = client.get(EVENTS, params={"cursor": cursor})
    assert response.status_code == 422
    assert response.json()["error"]["field"] == "cursor"


def test_an_idempotency_key_gives_the_first_answer_again(client, job):
    headers = {"Idempotency-Key": "k"}
    first = client.post(EVENTS, json=event("a", 0, "w00"), headers=headers)
    client.post(EVENTS, json=event("b", 1, "w01"))
    assert client.post(EVENTS, json=event("a", 0, "w00"), headers=headers).content == first.content
    assert client.post(EVENTS, json=event("c", 2, "w02"), headers=headers).status_code == 409
