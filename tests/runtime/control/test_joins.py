"""Workers that come back or are new take part, with the state that the others send them; the run stays exact."""

import time
from dataclasses import replace
from functools import cache, partial
from itertools import count
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from kintsugi.core.errors import ConflictError, InfeasibleError, InvalidInputError
from kintsugi.core.membership import EventKind
from kintsugi.core.plan import Policy
from kintsugi.runtime.control.agent import Agent
from kintsugi.runtime.control.decisions import LocalDecisions
from kintsugi.runtime.faults import Fault, FaultPoint, fail_at
from kintsugi.runtime.messages import Arm
from kintsugi.runtime.models import TrainingJob
from kintsugi.runtime.options import AgentOptions, Governance
from kintsugi.runtime.result import RunResult
from tests.runtime.gated_jobs import slow_averaging, slow_gpt
from tests.runtime.jobs import odd_job, tiny_gpt
from tests.runtime.runs import assert_same, gpt_request, leaves_nothing, request_for, run, run_slowly, survivors

pytestmark = pytest.mark.processes

NUM_STEPS, PAUSE_SECONDS = 24, 0.025
TOLERANCE = 1e-9
"""AdamW divides rounding differences by tiny second moments, step by step."""


def has_recovered(agent: Agent) -> bool:
    return bool(agent.recoveries) and agent.recoveries[-1].committed_at is not None


def has_joined(agent: Agent) -> bool:
    return has_recovered(agent) and bool(agent.recoveries[-1].joined)


@cache
def reference() -> RunResult:
    return run(partial(tiny_gpt, num_steps=NUM_STEPS), gpt_request(2, 2))


class Inviting:
    """Invites workers once, when `is_time` says so, and strikes those that `arm` names before they have a slot."""

    def __init__(self, *workers: str, is_time=lambda agent: bool(agent.losses), arm: tuple[Fault, ...] = ()) -> None:
        self.left = list(workers)
        self.is_time = is_time
        self.arm = list(arm)
        self.seen: set[str] = set()

    def __call__(self, agent: Agent) -> None:
        self.seen |= set(agent.alive)
        if self.left and self.is_time(agent):
            for worker in self.left:
                agent.invite(worker)
            self.left.clear()
        for fault in [fault for fault in self.arm if fault.worker in (*agent.alive, *agent.arriving)]:
            agent.handle(fault.worker).send(Arm((fault,)))
            self.arm.remove(fault)


@pytest.fixture
def run_with(tmp_path):
    """Runs the slow job under an observer; it trains fast from when `is_over`."""

    def run(request, observer, *faults: Fault, is_over=has_joined) -> RunResult:
        return run_slowly(tmp_path / "gate", NUM_STEPS, request, observer, *faults, is_over=is_over, pause_seconds=PAUSE_SECONDS)

    return run


def test_a_lost_worker_comes_back(run_with):
    observer = Inviting("w03", is_time=lambda agent: "w03" not in agent.alive)
    result = run_with(gpt_request(2, 2), observer, fail_at(1, "w03"))
    assert_same(result, reference(), TOLERANCE)
    assert [(recovery.lost, recovery.joined) for recovery in result.recoveries] == [(["w03"], []), ([], ["w03"])]
    assert survivors(result).workers.count("w03") == 1
    assert all(counts == (1,) * 8 for counts in result.microbatches)


def test_what_an_optimizer_keeps_in_its_groups_comes_back_too(tmp_path):
    job = partial(odd_job, "averaging", num_steps=NUM_STEPS)
    result = run_slowly(
        tmp_path / "gate",
        NUM_STEPS,
        request_for(job(), 2, 2),
        Inviting("w03", is_time=lambda agent: "w03" not in agent.alive),
        fail_at(1, "w03"),
        is_over=has_joined,
        make_job=slow_averaging,
    )
    assert_same(result, run(job, request_for(job(), 2, 2)))
    assert [(recovery.lost, recovery.joined) for recovery in result.recoveries] == [(["w03"], []), ([], ["w03"])]


def test_new_workers_widen_the_job(run_with):
    observer = Inviting("w04", "w05")
    result = run_with(gpt_request(2, 2), observer, is_over=lambda agent: {"w04", "w05"} <= set(agent.decision.plan.workers))
    assert_same(result, reference(), TOLERANCE)
    assert {"w04", "w05"} <= set(survivors(result).workers)
    assert [recovery.lost for recovery in result.recoveries] == [[] for _ in result.recoveries]


def test_a_worker_that_joins_dies_while_it_receives_its_state(run_with):
    observer = Inviting("w04", arm=(Fault(worker="w04", at=FaultPoint.TRANSFER),))
    result = run_with(gpt_request(2, 2), observer)
    assert_same(result, reference(), TOLERANCE)
    assert [(recovery.lost, recovery.joined) for recovery in result.recoveries] == [(["w04"], ["w04"])]
    assert "w04" not in survivors(result).workers


def test_a_source_dies_while_a_worker_joins(run_with):
    observer = Inviting("w04", arm=(Fault(worker="w01", at=FaultPoint.TRANSFER),))
    result = run_with(gpt_request(2, 2, min_dp=1), observer)
    assert_same(result, reference(), TOLERANCE)
    assert "w04" in survivors(result).workers
    assert "w01" not in survivors(result).workers


def test_a_worker_that_joins_and_dies_before_it_knows_its_model_is_forgotten(run_with):
    def observer(agent: Agent) -> None:
        if agent.losses and not invited:
            invited.append("w04")
            agent.invite("w04")
            with pytest.raises(ConflictError, match="is here already"):
                agent.invite("w04")
            agent.handle("w04").strike()

    invited: list[str] = []
    result = run_with(gpt_request(2, 2), observer, is_over=lambda agent: bool(invited) and not agent.arriving)
    assert_same(result, reference(), TOLERANCE)
    assert result.recoveries == ()
    assert len(result.decisions) == 1


def test_a_joining_that_the_pinned_policy_refuses_stops_nothing(run_with):
    observer = Inviting("w04")
    request = gpt_request(2, 2, Policy.SPARE_SUBSTITUTION)
    result = run_with(request, observer, is_over=lambda agent: "w04" in agent.alive)
    assert_same(result, reference(), TOLERANCE)
    assert "w04" in observer.seen
    assert result.recoveries == ()


class Unwelcoming(LocalDecisions):
    """Answers nothing as long as somebody is there who joined."""

    def after(self, events):
        last = {event.worker: event.kind for event in events}
        if EventKind.WORKER_JOINED in last.values():
            raise InfeasibleError("no room", field="worker")
        return super().after(events)


def test_a_joining_that_no_plan_comes_of_does_not_stand_in_the_way_of_a_loss(tmp_path):
    gate = tmp_path / "gate"
    inviting = Inviting("w04")

    def observe(agent: Agent) -> None:
        inviting(agent)
        if "w04" in agent.alive and not struck:
            struck.append("w01")
            agent.handle("w01").strike()
        if has_recovered(agent):
            gate.touch()

    struck: list[str] = []
    with (
        leaves_nothing(),
        Agent(partial(slow_gpt, gate, NUM_STEPS, PAUSE_SECONDS), gpt_request(2, 2), Unwelcoming(), observer=observe) as agent,
    ):
        result = agent.run()
        assert "w04" not in agent.alive
    assert_same(result, reference(), TOLERANCE)
    assert [recovery.lost for recovery in result.recoveries] == [["w01"]]


def test_an_idle_worker_that_joined_is_no_silent_one(tmp_path):
    """It was never called off, so it has no step to leave."""
    gate = tmp_path / "gate"
    idle_since: list[float] = []
    inviting = Inviting("w04")

    def observe(agent: Agent) -> None:
        inviting(agent)
        if "w04" in agent.alive:
            idle_since.append(time.monotonic())
        if idle_since and time.monotonic() - idle_since[0] > 1.0:
            gate.touch()

    request = gpt_request(2, 2, Policy.DATA_REROUTING)
    options = AgentOptions(quiesce_timeout_seconds=0.2)
    with (
        leaves_nothing(),
        Agent(
            partial(slow_gpt, gate, NUM_STEPS, PAUSE_SECONDS), request, LocalDecisions(), options=options, observer=observe
        ) as agent,
    ):
        agent.run()
        assert "w04" in agent.alive


def test_an_idle_worker_that_is_lost_stops_nothing(run_with):
    """What the pinned policy left idle dies; then a member does, which has to be mended without it."""
    observer = Inviting("w04", is_time=lambda agent: bool(agent.losses))

    def strike(agent: Agent) -> None:
        observer(agent)
        if "w04" in agent.alive and not struck:
            struck.append("w04")
            agent.handle("w04").strike()

    struck: list[str] = []
    fault = fail_at(NUM_STEPS - 2, "w01")
    is_over = lambda agent: bool(struck) and "w04" not in agent.alive  # noqa: E731
    result = run_with(gpt_request(2, 2, Policy.DATA_REROUTING), strike, fault, is_over=is_over)
    assert_same(result, reference(), TOLERANCE)
    assert [recovery.lost for recovery in result.recoveries] == [["w01"]]
    assert survivors(result).workers == ("w00", "w02", "w03")


def refused(flag: Path) -> TrainingJob:
    if flag.exists():
        raise OSError("the data set is not there")
    return tiny_gpt()


def test_a_worker_that_joins_may_fail_and_end_before_the_agent_looks(tmp_path):
    """As on a busy machine: its last words and its end are heard in one go."""
    flag = tmp_path / "flag"

    def observer(agent: Agent) -> None:
        if agent.losses and not flag.exists():
            flag.touch()
            agent.invite("w04")
            agent.handle("w04").process.join(120.0)

    with leaves_nothing(), Agent(partial(refused, flag), gpt_request(2, 2), LocalDecisions(), observer=observer) as agent:
        result = agent.run()
        assert agent.arriving == ()
    assert flag.exists()
    assert result.recoveries == ()


def clipped_later(flag: Path, gate: Path) -> TrainingJob:
    """The slow decoder, clipped otherwise once a flag is there."""
    job = slow_gpt(gate, NUM_STEPS, PAUSE_SECONDS)
    return replace(job, max_grad_norm=0.25) if flag.exists() else job


@pytest.mark.parametrize("governance", Governance)
def test_a_worker_that_joins_with_another_job_is_refused_by_name_and_stops_nothing(tmp_path, governance):
    flag, gate = tmp_path / "flag", tmp_path / "gate"

    def observer(agent: Agent) -> None:
        if agent.losses and not flag.exists():
            flag.touch()
            agent.invite("w04")
        elif flag.exists() and not agent.arriving:
            gate.touch()

    make_job, options = partial(clipped_later, flag, gate), AgentOptions(governance=governance)
    with (
        capture_logs() as logs,
        leaves_nothing(),
        Agent(make_job, gpt_request(2, 2), LocalDecisions(), options=options, observer=observer) as agent,
    ):
        result = agent.run()
    assert_same(result, reference(), TOLERANCE)
    assert result.recoveries == ()
    [refusal] = [log for log in logs if log["event"] == "refused a worker that joined: its job differs"]
    assert refusal["worker"] == "w04"
    assert "max_grad_norm is 0.25, not 1.0" in refusal["differences"]


def differing(flags: Path) -> TrainingJob:
    """Every worker's job is of another length."""
    number = next(number for number in count(1) if not (flags / str(number)).exists())
    (flags / str(number)).touch()
    return tiny_gpt(num_steps=number)


def test_workers_whose_jobs_differ_from_the_start_are_named(tmp_path):
    with (
        leaves_nothing(),
        Agent(partial(differing, tmp_path), gpt_request(2, 1), LocalDecisions()) as agent,
        pytest.raises(
            InvalidInputError, match=r"make_job: makes another job for w0\d, unlike that of w0\d: num_steps is \d, not \d"
        ),
    ):
        agent.run()
