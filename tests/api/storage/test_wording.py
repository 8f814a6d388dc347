"""Decisions are told whole or brief, from the same two parts."""

import json
from dataclasses import replace

import pytest

from api.storage.wording import ACCOUNT, Detail, Wording
from kintsugi.core import codec
from kintsugi.core.cluster import Cluster
from kintsugi.core.decision import Decision
from planner.contingency import accepted, after, losses
from planner.replan import replan
from tests.api.requests import EVENTS, JOB, event
from tests.builders import snapshot_of, uniform_profile

FIRST = snapshot_of(uniform_profile(4), Cluster.uniform(6), 4)
BASE = accepted(FIRST, replan(FIRST))
DECISIONS = [replan(FIRST), *(replan(after(BASE, loss)) for loss in list(losses(BASE, 0))[:3])]


@pytest.mark.parametrize("decision", DECISIONS)
def test_nothing_is_lost_between_the_two_parts(decision):
    wording = Wording.of(decision)
    assert json.loads(wording.text()) == json.loads(codec.dumps(decision))
    assert wording.decision() == decision
    assert wording.plan() == decision.plan


@pytest.mark.parametrize("decision", DECISIONS)
def test_a_brief_one_is_the_decision_without_its_account(decision):
    brief = codec.loads(Decision, Wording.of(decision).text(Detail.BRIEF))
    assert brief == replace(decision, alternatives=(), previous_plan=None)
    assert set(ACCOUNT) == {"alternatives", "previous_plan"}


@pytest.mark.usefixtures("job")
def test_every_answer_is_told_brief_when_asked(client):
    brief = client.post(f"{EVENTS}?detail=brief", json=event("a", 0, "w00")).json()
    whole = client.get(f"{JOB}/plan").json()
    assert brief["decision"] == {**whole["decision"], "alternatives": [], "previous_plan": None}
    assert whole["decision"]["alternatives"]
    assert whole["decision"]["previous_plan"]
    for path in ("plan", "plans/1", "plan?after_generation=0"):
        separator = "&" if "?" in path else "?"
        assert client.get(f"{JOB}/{path}{separator}detail=brief").json() == brief


@pytest.mark.usefixtures("job")
def test_an_unknown_detail_is_refused(client):
    response = client.get(f"{JOB}/plan?detail=some")
    assert (response.status_code, response.json()["error"]["field"]) == (422, "detail")
