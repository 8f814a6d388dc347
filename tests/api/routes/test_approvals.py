"""Plans that count once somebody approved them."""

import pytest

from tests.api.requests import EVENTS, JOB, REPORTS, event, new_job, report

PLAN = f"{JOB}/plan"


@pytest.fixture
def asked(client):
    """A job that requires approval, with a plan that waits for it."""
    client.post("/v1/jobs", json=new_job(handling={"requires_approval": True}))
    answer = client.post(EVENTS, json=event("a", 0, "w00"))
    assert answer.json()["status"] == "proposed"
    return client


def judge(client, generation, decision="approve", **changes):
    body = {"decision": decision, "by": "Ada", **changes}
    return client.post(f"{JOB}/plans/{generation}/approval", json=body)


def test_a_proposed_plan_is_not_the_one_to_go_on_with(asked):
    assert asked.get(PLAN).json()["generation"] == 0
    assert asked.get(PLAN, params={"after_generation": 0, "wait_seconds": 0.01}).status_code == 204
    assert asked.get(f"{JOB}/plans/1").json()["status"] == "proposed"
    summary = asked.get(JOB).json()["summary"]
    assert (summary["generation"], summary["current_generation"], summary["status"]) == (1, 0, "proposed")
    assert asked.post(REPORTS, json=report(1)).status_code == 409


def test_an_approved_plan_counts_and_says_by_whom(asked):
    first = asked.get(f"{JOB}/plans/1")
    record = judge(asked, 1)
    assert (record.status_code, record.json()["approval"]["by"]) == (200, "Ada")
    answer = asked.get(PLAN, params={"after_generation": 0})
    assert (answer.json()["status"], answer.json()["standing"]["by"]) == ("approved", "Ada")
    assert answer.headers["ETag"] != first.headers["ETag"]
    assert judge(asked, 1, by="Grace").json() == record.json()
    asked.post(REPORTS, json=report(1))
    assert judge(asked, 1).json() == record.json()
    assert asked.get(PLAN).json()["status"] == "applied"
    assert asked.get(f"{JOB}/approvals").json()["approvals"] == [record.json()]


def test_a_refused_plan_stays_refused_and_the_job_as_it_is(asked):
    assert judge(asked, 1, "refuse").json()["error"]["field"] == "reason"
    assert judge(asked, 1, "refuse", reason="a maintenance window begins").status_code == 200
    shown = asked.get(f"{JOB}/plans/1").json()
    assert (shown["status"], shown["standing"]["reason"]) == ("refused", "a maintenance window begins")
    assert asked.get(PLAN).json()["generation"] == 0
    assert judge(asked, 1).status_code == 409


def test_a_refused_plan_is_decided_anew_without_its_policy(asked):
    refused = asked.get(f"{JOB}/plans/1").json()["decision"]["policy"]
    record = judge(asked, 1, "refuse", reason="too slow", replan=True).json()
    assert record["generation"] == 2
    proposed = asked.get(f"{JOB}/plans/2").json()
    assert (proposed["status"], proposed["decision"]["policy"] != refused) == ("proposed", True)
    left_out = [a for a in proposed["decision"]["alternatives"] if a["policy"] == refused]
    assert [a["reason"] for a in left_out] == ["was refused for this membership"]


def test_events_may_come_from_the_plan_that_counts_and_supersede_the_proposed_one(asked):
    answer = asked.post(EVENTS, json=event("b", 0, "w01")).json()
    assert (answer["generation"], answer["status"]) == (2, "proposed")
    late = judge(asked, 1)
    assert (late.status_code, late.json()["current_generation"]) == (409, 2)
    assert asked.get(f"{JOB}/plans/1").json()["status"] == "superseded"
    assert judge(asked, 7).status_code == 404


def test_who_waits_is_given_the_plan_that_nobody_refused_in_time(client):
    handling = {"requires_approval": True, "approval_timeout_seconds": 0.01, "on_approval_timeout": "approve"}
    client.post("/v1/jobs", json=new_job(handling=handling))
    client.post(EVENTS, json=event("a", 0, "w00"))
    answer = client.get(PLAN, params={"after_generation": 0, "wait_seconds": 20}).json()
    assert (answer["generation"], answer["status"], answer["standing"]["by"]) == (1, "approved", None)


def test_a_job_that_asks_for_no_approval_has_nothing_to_approve(client, job):
    client.post(EVENTS, json=event("a", 0, "w00"))
    assert judge(client, 1).status_code == 409
