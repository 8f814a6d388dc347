"""Leases: of all who ask for the right to decide a generation the first gets it; and plans made ahead, for workers to hold."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from api.app import create_app
from kintsugi.core import codec
from kintsugi.core.decision import Decision
from kintsugi.core.leases import MOST_AGREEMENT_LETTERS
from planner.contingency import after, fingerprint, losses
from tests.api.requests import EVENTS, JOB, REPORTS, event, new_job, report

LEASE = f"{JOB}/generations/1/lease"


def claim(holder: str, agreement: str = "ours") -> dict[str, Any]:
    return {"holder": holder, "agreement": agreement}


@pytest.mark.both_databases
def test_the_first_that_asks_holds_the_generation(client, job):
    assert client.get(LEASE).status_code == 404
    first = client.post(LEASE, json=claim("w00"))
    assert (first.status_code, first.json()["agreement"], first.json()["generation"]) == (201, "ours", 1)
    again = client.post(LEASE, json=claim("w01"))
    assert (again.status_code, again.json()) == (200, first.json())
    other = client.post(LEASE, json=claim("w02", "theirs"))
    assert (other.status_code, other.json()["error"]["code"]) == (409, "conflict")
    assert "w00" in other.json()["detail"]
    assert client.get(LEASE).json() == first.json()


@pytest.mark.both_databases
def test_of_many_who_ask_at_once_one_wins(client, job):
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda n: client.post(LEASE, json=claim(f"w{n:02d}", f"of {n}")), range(8)))
    held = client.get(LEASE).json()["agreement"]
    assert sorted(answer.status_code for answer in answers) == [201, *[409] * 7]
    assert [answer.json()["agreement"] for answer in answers if answer.status_code == 201] == [held]


def test_a_lease_outlives_the_service(settings, job, client):
    client.post(LEASE, json=claim("w00"))
    with TestClient(create_app(settings)) as later:
        assert later.post(LEASE, json=claim("w01", "theirs")).status_code == 409
        assert later.get(LEASE).json()["holder"] == "w00"


def test_who_looks_may_ask_for_the_latest(client, job):
    for generation in (2, 5):
        client.post(f"{JOB}/generations/{generation}/lease", json=claim("w00", f"of {generation}"))
    assert client.get(LEASE, params={"latest": True}).json()["agreement"] == "of 5"
    assert client.get(f"{JOB}/generations/2/lease").json()["agreement"] == "of 2"
    assert client.get(f"{JOB}/generations/6/lease", params={"latest": True}).status_code == 404


def test_each_job_holds_generations_of_its_own(client, job):
    client.post("/v1/jobs", json=new_job(id="other"))
    assert client.post("/v1/jobs/other/generations/3/lease", json=claim("w05", "of the other")).status_code == 201
    assert client.get(f"{JOB}/generations/3/lease").status_code == 404
    assert client.get(f"{JOB}/generations/0/lease", params={"latest": True}).status_code == 404
    assert client.post(f"{JOB}/generations/3/lease", json=claim("w00")).status_code == 201
    assert client.get("/v1/jobs/other/generations/3/lease").json()["agreement"] == "of the other"
    assert client.get("/v1/jobs/other/generations/3/lease", params={"latest": True}).json()["holder"] == "w05"


AGREEMENTS = ("", "x" * MOST_AGREEMENT_LETTERS + "x", "\ud800", "a\x00")


@pytest.mark.parametrize("body", [claim(""), {"holder": "w00"}, *(claim("w00", agreement) for agreement in AGREEMENTS)])
def test_what_is_no_claim_is_refused(app: FastAPI, client, job, body):
    response = client.post(LEASE, content=json.dumps(body), headers={"content-type": "application/json"})
    assert response.status_code in (413, 422)
    assert client.get(LEASE).status_code == 404


def test_a_job_that_is_not_there_holds_nothing(client):
    assert client.post("/v1/jobs/none/generations/1/lease", json=claim("w00")).status_code == 404
    assert client.get("/v1/jobs/none/contingencies").status_code == 404


def test_plans_made_ahead_are_found_by_what_happened(app: FastAPI, client, job):
    desk = app.state.desk
    assert desk.service.decider._ahead.wait_until_idle(240.0)
    pages, cursor = [], None
    while not pages or cursor is not None:
        pages.append(client.get(f"{JOB}/contingencies", params={"limit": 5, **({"cursor": cursor} if cursor else {})}).json())
        cursor = pages[-1]["next_cursor"]
    found = {told["fingerprint"]: codec.decode(Decision, told["decision"]) for page in pages for told in page["contingencies"]}
    base = desk.service.snapshot(desk.service.state("llama"), desk.service.state("llama").history)
    lost = next(loss for loss in losses(base) if loss.workers == {"w03"})
    answer = client.post(EVENTS, json=event("e1", 0, "w03")).json()
    assert found[fingerprint(after(base, lost))].plan == codec.decode(Decision, answer["decision"]).plan
    assert {page["generation"] for page in pages} == {1}
    client.post(REPORTS, json=report(1))
    assert desk.service.decider._ahead.wait_until_idle(240.0)
    later = client.get(f"{JOB}/contingencies").json()
    assert later["generation"] == 2
    assert not found.keys() & {told["fingerprint"] for told in later["contingencies"]}
