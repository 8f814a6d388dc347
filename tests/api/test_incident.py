"""What happened to a job is told by the service's log alone: what came, what was refused, and which decisions count."""

import pytest
from structlog.testing import capture_logs

from api import problems
from api.access.limits import Buckets
from api.jobs.headlines import headlines, said
from api.storage.database import OvertakenError
from kintsugi.core.membership import Event, EventKind
from tests.api.requests import event, report

EVENTS, REPORTS = "/v1/jobs/llama/events", "/v1/jobs/llama/reports"

pytestmark = pytest.mark.usefixtures("talkative")


@pytest.fixture(autouse=True)
def _all_refusals_are_told(monkeypatch):
    monkeypatch.setattr(problems, "_TOLD", Buckets(rate=1.0, burst=20.0, setting=""))


def told(lines, *names):
    """These fields of the lines about the job's log and of refusals, as far as they have them."""
    wanted = [line for line in lines if line["log_level"] != "debug" and line["event"] in ("logged", "refused", "no plan")]
    return [{name: line[name] for name in ("event", *names) if name in line} for line in wanted]


def test_what_comes_is_told_with_what_follows_from_it(client, job):
    with capture_logs() as lines:
        client.post(EVENTS, json=event("xid", 0, "w01", detail="XID 79"))
        client.post(EVENTS, json=event("late", 0, "w02"))
        client.post(REPORTS, json=report(1, "rejected", reason="out of memory"))
        client.post(REPORTS, json=report(1, "measured", measured={"step": 1, "iteration_seconds": 1.0}))
        client.post("/v1/jobs/llama/ending", json={"outcome": "failed", "by": "Ada", "reason": "enough"})
    assert told(lines, "what", "number", "decided", "id", "by", "reason", "code") == [
        {"event": "logged", "what": "worker_failed w01", "number": 1, "decided": True, "id": "xid", "reason": "XID 79"},
        {"event": "refused", "code": "stale_generation"},
        {"event": "logged", "what": "rejected 1", "number": 2, "decided": False, "reason": "out of memory"},
        {"event": "logged", "what": "ended: failed", "number": 4, "decided": False, "by": "Ada", "reason": "enough"},
    ]


def test_what_changes_nothing_is_told_to_do_so(client, job):
    with capture_logs() as lines:
        client.post(EVENTS, json=event("a", 0, "w01", "worker_joined", incarnation=7, deadline_seconds=9.0))
        client.post(EVENTS, json=event("b", 1, "w01", incarnation=3))
        client.post(EVENTS, json={**event("c", 1, None, "link_degraded"), "link": ["h00", "h01"], "alpha_seconds": 0.1})
    assert told(lines, "what", "of_a_past_life", "unheeded") == [
        {"event": "logged", "what": "worker_joined w01", "unheeded": ["deadline_seconds"]},
        {"event": "logged", "what": "worker_failed w01", "of_a_past_life": "worker_failed w01"},
        {"event": "logged", "what": "link_degraded h00-h01", "unheeded": ["alpha_seconds"]},
    ]


def test_events_that_leave_no_plan_are_told_with_the_reason(client, job):
    with capture_logs() as lines:
        client.post(EVENTS, json={"events": [event(f"lost{n}", 0, f"w{n:02d}") for n in range(6)]})
    assert told(lines, "what", "problem", "code") == [
        {"event": "no plan"},
        {"event": "logged", "what": ", ".join(f"worker_failed w{n:02d}" for n in range(6)), "problem": "infeasible"},
        {"event": "refused", "code": "infeasible"},
    ]


def test_a_decision_that_another_writer_overtook_is_said_not_to_count(client, job, monkeypatch):
    store = client.app.state.desk.service.store
    append, overtaken = store.append, [OvertakenError("another writer was first")]

    def once(*arguments, **named):
        if overtaken:
            raise overtaken.pop()
        append(*arguments, **named)

    monkeypatch.setattr(store, "append", once)
    with capture_logs() as lines:
        assert client.post(EVENTS, json=event("a", 0, "w01")).status_code == 200
    assert [line["event"] for line in lines if line["log_level"] == "info"] == [
        "decided",
        "another writer was first: what was decided does not count",
        "decided",
        "logged",
    ]


def test_who_is_refused_again_and_again_fills_no_log(client, job):
    with capture_logs() as lines:
        for _ in range(40):
            client.post(EVENTS, json=event("late", 7, "w02"))
        client.get("/v1/jobs/nobody")
    assert 20 <= len(told(lines)) < 40


def test_of_many_events_the_first_are_named():
    lost = [Event(kind=EventKind.HOST_FAILED, id=f"h{n}", generation=0, host=f"h{n}") for n in range(12)]
    assert headlines(lost).endswith("host_failed h9 and 2 more")
    assert said(lost) == {"id": "h0"}
