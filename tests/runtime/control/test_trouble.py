"""What fails while a recovery is under way, and what looks like no failure: a newer generation always supersedes."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

from kintsugi.core.cluster import Cluster
from kintsugi.core.job import Ranges
from kintsugi.core.plan import IdleWorker, Policy
from kintsugi.runtime.control.agent import Agent
from kintsugi.runtime.control.attempt import Phase
from kintsugi.runtime.control.decisions import LocalDecisions
from kintsugi.runtime.faults import Fault, FaultKind, FaultPoint, fail_at
from kintsugi.runtime.options import Governance
from kintsugi.runtime.result import RunResult
from tests.patience import PATIENCE_SECONDS, eventually
from tests.runtime.control import cut_link
from tests.runtime.gated_jobs import held_gpt
from tests.runtime.jobs import NUM_STEPS, tiny_gpt
from tests.runtime.runs import assert_same, gpt_request, leaves_nothing, options_with, run, run_struck, survivors

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[3]


def root_alone(test):
    """For tests that cut links in a network namespace of their own."""
    may = os.geteuid() == 0 and shutil.which("unshare") is not None and shutil.which("ip") is not None
    return pytest.mark.skipif(not may, reason="needs root, unshare and ip")(test)


@cache
def reference(num_steps: int = NUM_STEPS) -> RunResult:
    return run(partial(tiny_gpt, num_steps=num_steps), gpt_request(1, 1))


def observed(request, observer, *faults: Fault, num_steps: int = NUM_STEPS) -> RunResult:
    job = partial(tiny_gpt, num_steps=num_steps)
    with leaves_nothing(), Agent(job, request, LocalDecisions(), options=options_with(*faults), observer=observer) as agent:
        return agent.run()


def test_nothing_is_lost_with_the_only_holder_before_anything_was_trained():
    """One pipeline of one worker, and a spare that holds nothing: both start from the same seed."""
    request = gpt_request(1, 1)
    idle = IdleWorker(worker="w01", reason="kept for later")
    request = replace(request, cluster=Cluster.uniform(2), plan=replace(request.plan, idle_workers=(idle,)))
    result = run(tiny_gpt, request, fail_at(0, "w00", "forward"))
    assert_same(result, reference())
    assert survivors(result).workers == ("w01",)
    assert [recovery.lost for recovery in result.recoveries] == [["w00"]]


def test_a_job_that_is_concluded_is_one_of_so_many_steps():
    def conclude(agent: Agent) -> None:
        if len(agent.losses) >= NUM_STEPS:
            agent.conclude()

    result = observed(gpt_request(2, 2), conclude, num_steps=100_000)
    assert len(result.losses) >= NUM_STEPS
    assert_same(result, reference(len(result.losses)), 1e-9)


def test_a_job_that_is_concluded_trains_no_further_whoever_is_lost_then():
    """Once while it recovers, and once more when all that is left to do is to collect."""

    def conclude(agent: Agent) -> None:
        if agent.recoveries:
            agent.conclude()

    faults = [fail_at(2, "w01", "applied"), Fault(worker="w02", at=FaultPoint.COLLECT)]
    result = observed(gpt_request(2, 2), conclude, *faults, num_steps=100_000)
    assert [recovery.lost for recovery in result.recoveries] == [["w01"], ["w02"]]
    assert len(result.losses) == 3
    assert_same(result, reference(3))


def test_who_told_what_was_trained_is_not_missed():
    """Of two stages without a replica one is gone when the other has yet to tell: what it trained is known."""
    faults = [Fault(worker="w00", at=FaultPoint.COLLECTED), Fault(worker="w01", at=FaultPoint.COLLECT, how=FaultKind.FREEZE)]

    def thaw(agent: Agent) -> None:
        if "w00" not in agent.alive:
            agent.handle("w01").strike(signal.SIGCONT)

    patient = replace(options_with(*faults), stopped_timeout_seconds=PATIENCE_SECONDS)
    request = gpt_request(1, 2)
    with leaves_nothing(), Agent(tiny_gpt, request, LocalDecisions(), options=patient, observer=thaw) as agent:
        result = agent.run()
        assert agent.alive == ("w01",)
    assert_same(result, reference())
    assert not result.recoveries


def test_that_holds_for_a_second_loss_before_the_first_step_too():
    request = gpt_request(1, 2)
    idle = tuple(IdleWorker(worker=worker, reason="kept for later") for worker in ("w02", "w03"))
    request = replace(request, cluster=Cluster.uniform(4), plan=replace(request.plan, idle_workers=idle))
    faults = [Fault(worker=worker, at=FaultPoint.FORWARD) for worker in ("w00", "w01")]
    result = run(tiny_gpt, request, *faults)
    assert_same(result, reference())
    assert set(survivors(result).workers) <= {"w02", "w03"}


def test_a_worker_that_a_new_beginning_leaves_idle_has_no_step_to_settle():
    """Four stages on four workers, then one stage on two: the third is left without any, and later one of the two is lost."""
    request = gpt_request(1, 4)
    request = replace(request, settings=replace(request.settings, ranges=Ranges(min_dp=1, max_dp=2, max_pp=1)))
    result = run(tiny_gpt, request, fail_at(0, "w00"), fail_at(3, "w01"))
    assert_same(result, reference())
    assert [recovery.lost for recovery in result.recoveries] == [["w00"], ["w01"]]
    assert set(survivors(result).workers) == {"w02", "w03"}


@pytest.mark.parametrize("how", [FaultKind.KILL, FaultKind.FREEZE])
def test_a_survivor_is_struck_while_it_leaves_the_step(how):
    second = Fault(worker="w02", at=FaultPoint.QUIESCE, step=2, how=how)
    result = run(tiny_gpt, gpt_request(2, 3), fail_at(2, "w04"), second)
    assert_same(result, reference())
    assert sorted(result.recoveries[0].lost) == ["w02", "w04"]


@pytest.mark.parametrize(
    ("second", "third"),
    [("quiesce", "regroup"), ("regroup", "transfer"), ("transfer", "ready"), ("ready", "step"), ("transfer", "commit")],
)
def test_a_second_and_a_third_failure_in_one_recovery(second, third):
    is_early = second == "quiesce"  # both losses may be noticed at once, and answered by one plan
    faults = [
        fail_at(1, "w05", "backward"),
        fail_at(1, "w02", second) if is_early else Fault(worker="w02", at=FaultPoint(second), generation=1),
        *(Fault(worker="w00", at=FaultPoint(third), generation=one) for one in ((1, 2) if is_early else (2,))),
    ]
    result = run(tiny_gpt, gpt_request(4, 2), *faults)
    assert_same(result, reference())
    assert [worker for recovery in result.recoveries for worker in recovery.lost] == ["w05", "w02", "w00"]
    assert not {"w05", "w02", "w00"} & set(survivors(result).workers)


class Restored(LocalDecisions):
    """As a service whose database is a backup from before the first recovery: it never hears what was applied since."""

    def applied(self, generation: int) -> None:
        if generation == 0:
            super().applied(generation)


def test_whoever_decides_thinks_of_an_older_plan_than_runs():
    """Its plan is carried out all the same, with state from those who hold it now."""
    faults = fail_at(1, "w02", "backward"), fail_at(2, "w01", "backward")
    with leaves_nothing(), Agent(tiny_gpt, gpt_request(2, 4), Restored(), options=options_with(*faults)) as agent:
        result = agent.run()
    assert_same(result, reference())
    assert [recovery.lost for recovery in result.recoveries] == [["w02"], ["w01"]]


def test_all_workers_of_a_host_die_at_once(tmp_path):
    request = gpt_request(4, 2)
    request = replace(request, cluster=Cluster.uniform(8, workers_per_host=2))

    def strike(agent: Agent) -> None:
        for worker in request.cluster.workers_on("h01"):
            agent.handle(worker).strike()

    result = run_struck(tmp_path / "gate", NUM_STEPS, request, strike)
    assert_same(result, reference())
    assert sorted(worker for recovery in result.recoveries for worker in recovery.lost) == ["w02", "w03"]


@pytest.mark.parametrize("asleep_seconds", [0.1, 0.4, 0.5, 0.55, None])
def test_a_frozen_worker_that_wakes_up_is_one_of_the_others_or_fenced(asleep_seconds, tmp_path):
    """Before it is missed, in the moment when it is, and long after: nothing that it says or sends afterwards counts."""

    def strike(agent: Agent) -> None:
        handle = agent.handle("w04")
        descriptor = os.pidfd_open(handle.pid)
        handle.strike(signal.SIGSTOP)
        wakes.append(threading.Thread(target=wake, args=(descriptor, lambda: sleep(agent))))
        wakes[0].start()

    def sleep(agent: Agent) -> None:
        if asleep_seconds is None:  # until long after it is missed, however late that is
            assert "w04" not in eventually(lambda: agent.alive, lambda alive: "w04" not in alive)
        time.sleep(1.5 if asleep_seconds is None else asleep_seconds)

    wakes: list[threading.Thread] = []
    try:
        result = run_struck(tmp_path / "gate", 12, gpt_request(2, 3), strike)
    finally:
        for thread in wakes:
            thread.join()
    assert_same(result, reference(12), 1e-10)
    lost = [recovery.lost for recovery in result.recoveries]
    assert lost in ([], [["w04"]])
    assert ("w04" in survivors(result).workers) == (lost == [])
    if asleep_seconds is None:
        assert lost == [["w04"]]


def wake(descriptor: int, sleep: Callable[[], None]) -> None:
    try:
        sleep()
        signal.pidfd_send_signal(descriptor, signal.SIGCONT)
    except ProcessLookupError:
        pass
    finally:
        os.close(descriptor)


def test_a_worker_dies_in_every_phase_that_the_agent_is_in(tmp_path):
    """As seen from outside: whoever is left is struck once in each phase of the protocol, at a moment nobody chose."""
    gate = tmp_path / "gate"

    def strike(agent: Agent) -> None:
        if agent.phase in left and (agent.losses or agent.phase is not Phase.TRAINING):
            left.remove(agent.phase)
            agent.handle(agent.alive[-1]).strike()
        if Phase.TRAINING not in left:
            gate.touch()

    left = [Phase.PREPARING, Phase.TRAINING, Phase.QUIESCING]
    job = partial(held_gpt, gate, NUM_STEPS, 1)
    request = gpt_request(8, 1, Policy.DYNAMIC_PARALLELISM)
    with leaves_nothing(), Agent(job, request, LocalDecisions(), options=options_with(), observer=strike) as agent:
        result = agent.run()
    assert_same(result, reference())
    assert left == []
    assert set(survivors(result).workers) == {"w00", "w01", "w02", "w03", "w04"}


@cache
def with_cut_links() -> dict[str, Any]:
    """What came of jobs whose links were cut, each in another way; one process for all, as what it loads takes longer than they."""
    command = ["unshare", "--net", sys.executable, "-m", "tests.runtime.control.cut_link", *Governance, cut_link.CONNECTIONS]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def with_a_cut_link(way: str):
    """What came of a job whose link was cut; it ended as one whose link was not."""
    seen = with_cut_links()[way]
    assert seen["cuts"][0] >= 1
    assert seen["losses"] == pytest.approx(reference(cut_link.NUM_STEPS).losses, rel=1e-11, abs=0)
    return seen


@root_alone
@pytest.mark.parametrize("governance", Governance)
def test_a_link_between_two_living_workers_is_cut_in_silence(governance):
    """Nobody is dead and no connection breaks: the two find out whom they cannot reach, and one of them goes."""
    seen = with_a_cut_link(governance)
    assert [len(lost) for lost in seen["lost"]] == [1]
    assert seen["lost"][0][0] in cut_link.PAIRS[governance]


@root_alone
def test_workers_of_a_ring_whose_connections_alone_are_cut_connect_anew():
    seen = with_a_cut_link(cut_link.CONNECTIONS)
    assert seen["lost"] == []
    assert seen["workers"] == ["w00", "w01", "w02", "w03"]
