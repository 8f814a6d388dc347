"""Who asks for a plan whose search always kills its process, or fails, is not put off for ever; the job goes on being usable."""

import os
import re
import signal
from contextlib import closing

import pytest
from starlette.testclient import TestClient

from api.app import create_app
from api.decisions import planning
from api.decisions.tries import MOST_TRIES, Tries
from api.decisions.workshop import WorkLostError, Workshop
from api.replay import Replay
from api.settings import Settings
from api.storage.store import Store
from kintsugi.client.answers import require_answer
from kintsugi.core.cluster import Cluster
from kintsugi.core.errors import InfeasibleError, PlanningFailedError, UnavailableError
from tests.api.requests import EVENTS, JOB, event, new_job
from tests.builders import snapshot_of, uniform_profile

SNAPSHOTS = [snapshot_of(uniform_profile(4), Cluster.uniform(6), num_microbatches) for num_microbatches in (4, 8)]


@pytest.fixture
def patient(database_url):
    """A client that is told of the service's mistakes as others are; no plan is made ahead, which would spare a search."""
    app = create_app(Settings(database_url=database_url, plans_ahead=False))
    with TestClient(app, raise_server_exceptions=False) as client:
        assert client.post("/v1/jobs", json=new_job()).status_code == 201
        yield client


def search(tries, error, snapshot=SNAPSHOTS[0]):
    with pytest.raises(Exception) as caught, tries.of(snapshot):  # noqa: PT011 - whichever it is
        raise error
    return caught.value


@pytest.mark.parametrize("error", [WorkLostError("the process ended; try again"), MemoryError("no room")])
def test_the_last_try_says_what_is_wrong_and_who_asks_anew_has_as_many_again(error):
    tries = Tries()
    search(tries, error, SNAPSHOTS[1])
    for _ in range(2):
        *others, last = [search(tries, error) for _ in range(MOST_TRIES)]
        assert others == [error] * (MOST_TRIES - 1)
        assert isinstance(last, PlanningFailedError)
        assert re.search("3 times: (the process ended|MemoryError: no room)\\.", last.message)


@pytest.mark.parametrize("error", [UnavailableError("no process is there"), InfeasibleError("nothing fits")])
def test_what_is_an_answer_or_nobodys_mistake_is_not_counted(error):
    tries = Tries()
    assert [search(tries, error) for _ in range(2 * MOST_TRIES)] == [error] * 2 * MOST_TRIES


@pytest.mark.processes
def test_a_process_that_is_killed_over_its_work_is_told_from_one_that_is_asked_to_end(fork_server):
    with closing(Workshop(1, fork_server)) as shop:
        with pytest.raises(WorkLostError, match="killed, as where memory runs out"):
            shop.do(signal.raise_signal, signal.SIGKILL)
        with pytest.raises(WorkLostError, match="exit status 3"):
            shop.do(os._exit, 3)
        with pytest.raises(UnavailableError, match="was ended") as caught:
            shop.do(signal.raise_signal, signal.SIGTERM)
        assert not isinstance(caught.value, WorkLostError)


def test_events_are_logged_in_the_end_and_the_next_one_is_planned_for(patient, monkeypatch):
    def killed(_snapshot):
        raise WorkLostError("the process that plans ended (killed, as where memory runs out); try again")

    lost = event("a", 0, "w00")
    with monkeypatch.context() as patch:
        patch.setattr(planning, "decided", killed)
        answers = [patient.post(EVENTS, json=lost) for _ in range(MOST_TRIES + 1)]
    assert [answer.status_code for answer in answers] == [503, 503, 409, 409]
    told = answers[-1].json()["error"]
    assert told["code"] == "planning_failed"
    assert "more memory" in told["message"]
    with pytest.raises(PlanningFailedError):
        require_answer(answers[-1], "here")
    assert patient.get(JOB).json()["summary"]["problem"]["code"] == "planning_failed"
    assert patient.get(f"{JOB}/plan").json()["generation"] == 0
    assert patient.post(EVENTS, json=lost).status_code == 409  # whoever repeats it is told the same
    assert patient.post(EVENTS, json=event("b", 0, "w00")).json()["generation"] == 1


def test_a_mistake_of_ours_is_told_as_one_and_at_last_as_no_plan(patient, monkeypatch, database_url):
    def crashes(_snapshot):
        raise ZeroDivisionError("nobody expected it")

    with monkeypatch.context() as patch:
        patch.setattr(planning, "decided", crashes)
        answers = [patient.post(EVENTS, json=event("a", 0, "w00")) for _ in range(MOST_TRIES)]
        created = [patient.post("/v1/jobs", json=new_job(id="other")) for _ in range(MOST_TRIES)]
    for told in (answers, created):
        assert [answer.status_code for answer in told] == [500, 500, 409]
        assert "ZeroDivisionError: nobody expected it" in told[-1].json()["detail"]
    assert patient.post("/v1/jobs", json=new_job(id="other")).status_code == 201
    store = Store(database_url, read_only=True)
    store.open()
    with closing(store):
        assert [entry.differences for entry in Replay(store, "llama")] == [(), ()]
