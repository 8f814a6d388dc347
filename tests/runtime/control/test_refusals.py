"""Who joins ends no job and holds no recovery up, also where somebody has to approve every plan."""

import threading
from dataclasses import replace

import pytest
from starlette.testclient import TestClient

from api.app import create_app
from api.settings import Settings
from kintsugi.client import Client
from kintsugi.core.errors import InfeasibleError
from kintsugi.core.handling import Handling, PlanStatus
from kintsugi.core.membership import Event, EventKind
from kintsugi.runtime.control.decisions import ServiceDecisions
from tests.runtime.control.crews import Ensemble
from tests.runtime.runs import gpt_request

REQUEST = gpt_request(2, 2)


@pytest.fixture
def client(tmp_path):
    with (
        TestClient(
            create_app(Settings(database_url=f"sqlite:///{tmp_path}/kintsugi.sqlite3", planning_processes=0, plans_ahead=False))
        ) as served,
        Client("http://testserver", transport=served._transport) as client,
    ):
        yield client


class Operator:
    """Says what is to become of proposed plans; the job is named as in `REQUEST`."""

    def __init__(self, client: Client, ensemble: Ensemble) -> None:
        self._client, self._ensemble = client, ensemble
        self._num_looks, look = 0, client.plan_at

        def plan_at(*arguments, **keywords):
            self._num_looks += threading.current_thread().name.startswith("decider")
            return look(*arguments, **keywords)

        client.plan_at = plan_at

    def refuse(self, generation: int, *, replan: bool = False) -> None:
        self.await_proposal(generation)
        self._client.refuse(REQUEST.name, generation, by="Ada", reason="not with w04", replan=replan)

    def approve(self, generation: int) -> None:
        self.await_proposal(generation)
        self._client.approve(REQUEST.name, generation, by="Ada")

    def await_looks(self) -> None:
        """Until the job's agent has looked at its plan since, unless it carries out one already."""
        num_looks = self._num_looks + 2
        self._ensemble.until(lambda: self._num_looks >= num_looks or self._ensemble.generation > 0)

    def await_proposal(self, generation: int) -> None:
        def is_proposed() -> bool:
            is_there = self._client.job(REQUEST.name).summary.generation >= generation
            return is_there and self._client.plan_at(REQUEST.name, generation).status is PlanStatus.PROPOSED

        self._ensemble.until(is_proposed)


def test_a_service_hears_that_who_joined_is_gone_again(client, monkeypatch):
    """It has heard that w04 joined, and forgets nothing: whoever approves plans wants none with it, also when w01 is lost."""
    monkeypatch.setattr("kintsugi.runtime.control.decisions._LOOK_SECONDS", 0.05)
    request = replace(REQUEST, handling=Handling(requires_approval=True))
    with Ensemble(request, ServiceDecisions(client)) as ensemble:
        operator = Operator(client, ensemble)
        ensemble.conductor.invite("w04", None)
        operator.refuse(1)
        ensemble.until(ensemble.trains)
        ensemble.lose("w01")
        operator.refuse(2)
        operator.approve(3)
        ensemble.until(lambda: ensemble.generation == 3 and ensemble.trains())
        assert ensemble.here == {"w00", "w02", "w03"}
        told = [(record.event.kind, record.event.worker) for record in client.events(request.name).events]
    assert told == [
        (EventKind.WORKER_JOINED, "w04"),
        (EventKind.WORKER_FAILED, "w01"),
        (EventKind.WORKER_FAILED, "w04"),
    ]
    plan = ensemble.conductor.decision.plan
    assert {*plan.workers, *(idle.worker for idle in plan.idle_workers)} == {"w00", "w02", "w03"}


def test_a_loss_does_not_wait_for_a_word_on_the_plan_before_it(client, monkeypatch):
    """Nobody has said yet whether w04 is to join when w01 is lost: the service learns of it, and proposes a plan for both."""
    monkeypatch.setattr("kintsugi.runtime.control.decisions._LOOK_SECONDS", 0.05)
    request = replace(REQUEST, handling=Handling(requires_approval=True))
    with Ensemble(request, ServiceDecisions(client)) as ensemble:
        operator = Operator(client, ensemble)
        ensemble.conductor.invite("w04", None)
        operator.await_proposal(1)
        ensemble.lose("w01")
        operator.approve(2)
        ensemble.until(lambda: ensemble.generation == 2 and ensemble.trains())
        assert client.plan_at(request.name, 1).status is PlanStatus.SUPERSEDED
        assert ensemble.here == {"w00", "w02", "w03", "w04"}


def test_a_plan_that_is_refused_for_another_one_is_not_carried_out(client, monkeypatch):
    monkeypatch.setattr("kintsugi.runtime.control.decisions._LOOK_SECONDS", 0.05)
    request = replace(REQUEST, handling=Handling(requires_approval=True))
    with Ensemble(request, ServiceDecisions(client)) as ensemble:
        operator = Operator(client, ensemble)
        ensemble.lose("w01")
        operator.refuse(1, replan=True)
        operator.await_looks()
        operator.approve(2)
        ensemble.until(ensemble.trains)
        assert [decision.plan.generation for decision in ensemble.decider.decisions] == [0, 2]
        assert ensemble.conductor.decision.policy is not client.plan_at(request.name, 1).decision.policy


def test_nor_is_one_in_whose_place_another_was_proposed_for_what_somebody_else_told(client, monkeypatch):
    monkeypatch.setattr("kintsugi.runtime.control.decisions._LOOK_SECONDS", 0.05)
    request = replace(REQUEST, handling=Handling(requires_approval=True))
    with Ensemble(request, ServiceDecisions(client)) as ensemble:
        operator = Operator(client, ensemble)
        ensemble.lose("w01")
        operator.await_proposal(1)
        slow = Event(kind=EventKind.STRAGGLER, id="slow", generation=1, worker="w02", speed_ratio=0.5)
        client.post_event(request.name, slow)
        operator.await_looks()
        operator.approve(2)
        ensemble.until(ensemble.trains)
        assert [decision.plan.generation for decision in ensemble.decider.decisions] == [0, 2]


def test_a_plan_that_is_refused_though_nobody_joined_ends_the_job(client, monkeypatch):
    monkeypatch.setattr("kintsugi.runtime.control.decisions._LOOK_SECONDS", 0.05)
    with Ensemble(replace(REQUEST, handling=Handling(requires_approval=True)), ServiceDecisions(client)) as ensemble:
        ensemble.lose("w01")
        Operator(client, ensemble).refuse(1)
        with pytest.raises(InfeasibleError, match="was not approved: not with w04"):
            ensemble.until(ensemble.trains)
