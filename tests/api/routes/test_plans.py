"""Plans are named by generation, cached by entity tag and waited for."""

import threading

import pytest

from tests.api.requests import EVENTS, JOB, event

pytestmark = pytest.mark.both_databases

PLAN = f"{JOB}/plan"


def test_the_latest_plan_and_every_earlier_one(client, job):
    first = client.get(PLAN)
    client.post(EVENTS, json=event("a", 0, "w00"))
    assert client.get(PLAN).json()["generation"] == 1
    assert client.get(f"{JOB}/plans/0").content == first.content
    assert client.get(f"{JOB}/plans/1").content == client.get(PLAN).content


@pytest.mark.parametrize(("generation", "status"), [("1", 404), ("2147483647", 404), ("-1", 422), ("99999999999", 422), ("x", 422)])
def test_a_generation_that_is_not_there(client, job, generation, status):
    response = client.get(f"{JOB}/plans/{generation}")
    assert response.status_code == status
    assert response.json()["error"]["field"] == "generation"


def test_an_entity_tag_saves_the_body(client, job):
    tag = client.get(PLAN).headers["ETag"]
    unchanged = client.get(PLAN, headers={"If-None-Match": f'"7", W/{tag}'})
    assert (unchanged.status_code, unchanged.content) == (304, b"")
    client.post(EVENTS, json=event("a", 0, "w00"))
    assert client.get(PLAN, headers={"If-None-Match": tag}).status_code == 200


def test_without_a_newer_plan_there_is_no_content(client, job):
    response = client.get(PLAN, params={"after_generation": 0, "wait_seconds": 0.01})
    assert (response.status_code, response.content) == (204, b"")
    assert client.get(PLAN, params={"after_generation": 0}).status_code == 204


def test_who_waits_is_woken_by_a_newer_plan(client, job):
    answers = []
    waiting = [
        threading.Thread(
            target=lambda: answers.append(client.get(PLAN, params={"after_generation": 0, "wait_seconds": 30})), daemon=True
        )
        for _ in range(5)
    ]
    for thread in waiting:
        thread.start()
    client.post(EVENTS, json=event("a", 0, "w00"))
    for thread in waiting:
        thread.join(timeout=240.0)
    assert [answer.json()["generation"] for answer in answers] == [1] * 5


@pytest.mark.parametrize("seconds", ["-1", "31", "nan", "inf", "soon"])
def test_a_wait_that_cannot_be(client, job, seconds):
    response = client.get(PLAN, params={"after_generation": 0, "wait_seconds": seconds})
    assert response.status_code == 422
    assert response.json()["error"]["field"] == "wait_seconds"
