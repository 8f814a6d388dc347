"""Jobs whose workers mend themselves end on the losses and parameters of the undisturbed run, whatever fails when."""

import os
import signal
from functools import cache, partial
from multiprocessing.connection import wait

import pytest
from structlog.testing import capture_logs

from kintsugi.client import Client
from kintsugi.core import codec
from kintsugi.core.errors import StateLostError
from kintsugi.runtime.control.agent import Agent, Observer
from kintsugi.runtime.control.attempt import Phase
from kintsugi.runtime.control.decisions import LocalDecisions, ServiceDecisions
from kintsugi.runtime.control.preparation import is_same_work
from kintsugi.runtime.faults import Fault, FaultKind, FaultPoint, fail_at
from kintsugi.runtime.options import AgentOptions, Governance, WorkerOptions
from kintsugi.runtime.result import RunResult
from kintsugi.runtime.ring.messages import Agreement
from kintsugi.runtime.ring.options import RingOptions
from tests.patience import PATIENCE_SECONDS
from tests.runtime.jobs import NUM_STEPS, tiny_gpt
from tests.runtime.runs import assert_same, gpt_request, leaves_nothing, survivors
from tests.services import service

pytestmark = pytest.mark.processes

SHORT_PATIENCE = RingOptions(heartbeat_seconds=0.2, heartbeat_timeout_seconds=3.0)
"""For workers that freeze; whoever is starved by other tests must not be taken for one."""


def governed(
    dp: int,
    pp: int,
    *faults: Fault,
    num_steps: int = NUM_STEPS,
    ring: RingOptions | None = None,
    observer: Observer | None = None,
    **patience: float,
) -> RunResult:
    worker = WorkerOptions(faults=faults, ring=ring or RingOptions())
    options = AgentOptions(governance=Governance.RING, worker=worker, **patience)
    job = partial(tiny_gpt, num_steps=num_steps)
    with leaves_nothing(), Agent(job, gpt_request(dp, pp, min_dp=1), LocalDecisions(), options=options, observer=observer) as agent:
        return agent.run()


@cache
def reference(num_steps: int = NUM_STEPS) -> RunResult:
    """The undisturbed run."""
    return governed(4, 1, num_steps=num_steps)


def test_nothing_happens():
    assert reference().recoveries == ()
    assert len(reference().losses) == NUM_STEPS


@pytest.mark.parametrize("point", ["forward", "commit", "applied"])
def test_a_worker_is_killed_in_a_step(point):
    with capture_logs() as logs:
        result = governed(4, 1, fail_at(2, "w01", point))
    assert_same(result, reference())
    assert [recovery.lost for recovery in result.recoveries] == [["w01"]]
    told = [log["event"] for log in logs if log["event"] in ("a worker is lost", "training goes on")]
    assert sorted(told) == ["a worker is lost", "training goes on"]
    assert "w01" not in survivors(result).workers


@pytest.mark.parametrize("point", ["regroup", "ready"])
def test_a_second_loss_in_the_recovery_from_the_first(point):
    second = Fault(worker="w04", at=FaultPoint(point), generation=1)
    result = governed(4, 2, fail_at(2, "w01", "backward"), second)
    assert_same(result, reference())
    assert sorted(worker for recovery in result.recoveries for worker in recovery.lost) == ["w01", "w04"]


def test_two_workers_are_lost_at_once_and_a_third_later():
    result = governed(4, 2, fail_at(1, "w00", "forward"), fail_at(1, "w03", "forward"), fail_at(3, "w02", "backward"))
    assert_same(result, reference())


def test_a_layer_whose_only_holder_is_lost_ends_the_job():
    with pytest.raises(StateLostError):
        governed(1, 3, fail_at(2, "w01", "forward"))


def test_a_layer_whose_only_holder_is_lost_before_anything_is_trained_costs_nothing():
    result = governed(1, 3, Fault(worker="w01", at=FaultPoint.START))
    assert_same(result, reference())
    assert set(survivors(result).workers) == {"w00", "w02"}


def test_a_worker_that_is_asked_to_leave_before_the_others_are_found_leaves_once_they_train():
    asked: list[Phase] = []

    def observer(agent: Agent) -> None:
        if not asked:
            asked.append(agent.phase)
            agent.drain("w01")

    result = governed(4, 1, num_steps=24, observer=observer)
    assert_same(result, reference(24))
    assert asked == [Phase.STARTING]
    assert [(recovery.left, recovery.lost) for recovery in result.recoveries] == [(["w01"], [])]


class Thaw:
    """Has a frozen worker go on once the others did without it, and sees what becomes of it."""

    def __init__(self, worker: str) -> None:
        self._worker = worker
        self.exit_code: int | None = None

    def __call__(self, agent: Agent) -> None:
        if self.exit_code is None and agent.recoveries and agent.recoveries[0].resumed_at is not None:
            handle = agent.handle(self._worker)
            os.kill(handle.pid, signal.SIGCONT)
            wait([handle.process.sentinel], PATIENCE_SECONDS)
            self.exit_code = handle.process.exitcode


def test_a_frozen_worker_that_returns_ends_itself():
    """By the ring's protocol alone: the agent has more patience with stopped processes here than it lasts."""
    thaw = Thaw("w01")
    strike = fail_at(2, "w01", "backward", "freeze")
    result = governed(4, 1, strike, ring=SHORT_PATIENCE, observer=thaw, stopped_timeout_seconds=PATIENCE_SECONDS)
    assert_same(result, reference())
    assert thaw.exit_code == 0


def test_the_agent_ends_a_member_that_is_stopped():
    """The ring has more patience here than the agent with it."""
    ring, strike = RingOptions(heartbeat_timeout_seconds=2 * PATIENCE_SECONDS), fail_at(2, "w01", "backward", "freeze")
    result = governed(4, 1, strike, ring=ring, prepare_timeout_seconds=PATIENCE_SECONDS)
    assert_same(result, reference())
    assert [recovery.lost for recovery in result.recoveries] == [["w01"]]


def test_a_worker_that_is_stopped_at_its_start_is_gone_on_without():
    result = governed(4, 1, Fault(worker="w01", at=FaultPoint.START, how=FaultKind.FREEZE), start_timeout_seconds=PATIENCE_SECONDS)
    assert_same(result, reference())
    assert "w01" not in survivors(result).workers


def test_workers_are_lost_one_by_one_down_to_one_and_the_service_accepts_it(tmp_path):
    """A majority decides first, then half of the members, by the lease; the service learns of both, and holds them."""
    lost = ("w00", "w02", "w03")
    faults = tuple(fail_at(step, worker, "backward") for step, worker in enumerate(lost, start=1))
    options = AgentOptions(governance=Governance.RING, worker=WorkerOptions(faults=faults))
    with leaves_nothing(), service(tmp_path / "kintsugi.sqlite3") as running, Client(running.url) as client:
        with Agent(tiny_gpt, gpt_request(4, 1, min_dp=1), ServiceDecisions(client), options=options) as agent:
            result = agent.run()
        view = client.job("job")
        held = [codec.loads(Agreement, client.lease("job", generation).agreement) for generation in (1, 2, 3)]
    assert_same(result, reference())
    assert survivors(result).workers == view.alive == held[-1].members == ("w01",)
    assert is_same_work(view.decision.plan, survivors(result))
    assert [agreement.generation for agreement in held] == [1, 2, 3]
