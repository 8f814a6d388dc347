"""Workers that mend themselves take in others, down to one and up again; the run stays that of an undisturbed one."""

import signal
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from kintsugi.core.plan import Policy
from kintsugi.runtime.control.agent import Agent, Observer
from kintsugi.runtime.control.decisions import JobRequest, LocalDecisions
from kintsugi.runtime.faults import Fault, FaultPoint
from kintsugi.runtime.options import AgentOptions, Governance
from kintsugi.runtime.result import RunResult
from tests.runtime.control.test_joins import TOLERANCE, Inviting, has_joined
from tests.runtime.gated_jobs import slow_gpt
from tests.runtime.jobs import tiny_gpt
from tests.runtime.runs import assert_same, gpt_request, leaves_nothing, run, survivors

pytestmark = pytest.mark.processes

NUM_STEPS = 24


@cache
def reference() -> RunResult:
    """The undisturbed run."""
    return run(partial(tiny_gpt, num_steps=NUM_STEPS), gpt_request(2, 2))


@pytest.fixture
def run_with(tmp_path: Path) -> Callable[..., RunResult]:
    """Runs the slow job under an observer, without an agent that decides; it trains fast from when `is_over`."""

    def governed(request: JobRequest, observer: Observer, is_over: Callable[[Agent], bool] = has_joined) -> RunResult:
        gate = tmp_path / "gate"

        def observe(agent: Agent) -> None:
            observer(agent)
            if is_over(agent):
                gate.touch()

        options = AgentOptions(governance=Governance.RING)
        job = partial(slow_gpt, gate, NUM_STEPS)
        with leaves_nothing(), Agent(job, request, LocalDecisions(), options=options, observer=observe) as agent:
            return agent.run()

    return governed


class Replacing:
    """Stops a worker's process, a member's or an arrival's, and has another one come in its place once it is gone."""

    def __init__(self, worker: str, *, arrives: bool) -> None:
        self.worker = worker
        self.to_invite = arrives
        self.stopped: int | None = None
        """The process that was."""

    def is_replaced(self, agent: Agent) -> bool:
        return has_joined(agent) and self.worker in agent.alive and agent.handle(self.worker).pid != self.stopped

    def __call__(self, agent: Agent) -> None:
        if not agent.losses or self.is_replaced(agent):
            return
        is_here = self.worker in (*agent.alive, *agent.arriving)
        if self.to_invite and not is_here:
            agent.invite(self.worker)
            self.to_invite = False
        if self.stopped is None:
            agent.handle(self.worker).strike(signal.SIGSTOP)
            self.stopped, self.to_invite = agent.handle(self.worker).pid, True


@pytest.mark.parametrize(("worker", "arrives"), [("w03", False), ("w04", True)], ids=["member", "arrival"])
def test_a_process_that_is_stopped_makes_way_for_another_one(run_with, worker, arrives):
    """An arrival may be taken in before it is stopped: then the same recovery loses it."""
    replacing = Replacing(worker, arrives=arrives)
    result = run_with(gpt_request(2, 2), replacing, replacing.is_replaced)
    assert_same(result, reference(), TOLERANCE)
    *before, last = [recovery for recovery in result.recoveries if recovery.joined]
    assert last.joined == [worker]
    assert worker in survivors(result).workers
    assert all(recovery.joined == [worker] and worker in recovery.lost for recovery in before)


class Tide:
    """Strikes workers one after the other, and then has others come, each time once the job trains again."""

    def __init__(self, leaving: list[str], coming: list[str]) -> None:
        self.leaving = leaving
        self.coming = coming
        self.num_changes = 0

    def is_calm(self, agent: Agent) -> bool:
        is_settled = not agent.recoveries or agent.recoveries[-1].committed_at is not None
        return bool(agent.losses) and is_settled and len(agent.recoveries) == self.num_changes

    def __call__(self, agent: Agent) -> None:
        if not self.is_calm(agent):
            return
        self.num_changes += bool(self.leaving or self.coming)
        if self.leaving:
            agent.handle(self.leaving.pop(0)).strike()
        elif self.coming:
            agent.invite(self.coming.pop(0))

    def is_over(self, agent: Agent) -> bool:
        return not self.leaving and not self.coming and self.is_calm(agent)


def test_down_to_one_and_growing_again(run_with):
    """The one that serves the others goes first; of those that come one is back and one is new."""
    tide = Tide(leaving=["w00"], coming=["w00", "w02"])
    result = run_with(gpt_request(2, 1, min_dp=1), tide, tide.is_over)
    assert_same(result, reference(), TOLERANCE)
    changes = [(recovery.lost, recovery.joined) for recovery in result.recoveries]
    assert changes == [(["w00"], []), ([], ["w00"]), ([], ["w02"])]
    assert sorted(survivors(result).workers) == ["w00", "w01", "w02"]


def test_a_worker_that_joins_dies_while_it_receives_its_state(run_with):
    observer = Inviting("w04", arm=(Fault(worker="w04", at=FaultPoint.TRANSFER),))

    def is_gone(agent: Agent) -> bool:
        """Whether it came and went; both may be told at once, so that nobody saw it alive."""
        return not observer.left and "w04" not in (*agent.alive, *agent.arriving) and bool(agent.recoveries)

    result = run_with(gpt_request(2, 2), observer, is_gone)
    assert_same(result, reference(), TOLERANCE)
    assert "w04" not in survivors(result).workers


def test_the_only_holder_of_layers_leaves_once_others_have_them(run_with):
    asked: list[str] = []

    def observer(agent: Agent) -> None:
        if agent.losses and not asked:
            asked.append("w01")
            agent.handle("w01").strike(signal.SIGTERM)

    def has_left(agent: Agent) -> bool:
        return bool(agent.recoveries) and agent.recoveries[-1].left == ["w01"] and "w01" not in agent.alive

    with capture_logs() as logs:
        result = run_with(gpt_request(1, 3), observer, has_left)
    assert_same(result, reference(), TOLERANCE)
    told = [log["event"] for log in logs if log.get("worker") == "w01"]
    assert told == ["a worker leaves; its state is handed over"], "it is no loss"
    assert set(survivors(result).workers) == {"w00", "w02"}
    assert [(recovery.left, recovery.lost) for recovery in result.recoveries] == [(["w01"], [])]


def test_what_no_plan_comes_of_stops_nothing(run_with):
    """One that joins is refused by the pinned policy, and one that the plan cannot do without stays."""
    inviting = Inviting("w04")

    def observer(agent: Agent) -> None:
        if inviting.left and agent.losses:
            agent.drain("w00")
        inviting(agent)

    def is_over(agent: Agent) -> bool:
        return not inviting.left and not agent.arriving and any("no plan without it" in log["event"] for log in logs)

    with capture_logs() as logs:
        result = run_with(gpt_request(1, 1, Policy.SPARE_SUBSTITUTION), observer, is_over)
    assert_same(result, reference(), TOLERANCE)
    assert result.recoveries == ()
    assert survivors(result).workers == ("w00",)
