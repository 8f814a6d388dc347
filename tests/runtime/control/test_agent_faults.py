"""What ends a job, and that nothing is left of it: lost state, the user's own errors, a killed agent."""

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from kintsugi.core.cluster import Cluster
from kintsugi.core.errors import InfeasibleError, InvalidInputError, StateLostError, WorkerError
from kintsugi.core.job import JobSettings
from kintsugi.core.plan import Policy
from kintsugi.runtime.control.agent import Agent
from kintsugi.runtime.control.decisions import JobRequest, LocalDecisions
from kintsugi.runtime.faults import Fault, FaultKind, FaultPoint, fail_at
from kintsugi.runtime.options import AgentOptions, WorkerOptions
from tests.builders import grid_plan, uniform_profile
from tests.patience import PATIENCE_SECONDS, eventually
from tests.processes import is_running
from tests.runtime.jobs import (
    NUM_MICROBATCHES,
    Leaving,
    crash,
    ending_job,
    exit_at_once,
    job_raising_in,
    raising_job,
    tiny_gpt,
    unbuildable_job,
)
from tests.runtime.runs import children_of, gpt_request, leaves_nothing, request_for, run

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[3]


def test_no_holder_left_says_which_layers():
    faults = (fail_at(1, "w01", "backward"), fail_at(2, "w04", "backward"))
    with pytest.raises(StateLostError, match=r"no survivor holds layers \[3, 4, 5\]") as caught:
        run(tiny_gpt, gpt_request(2, 3, Policy.DATA_REROUTING), *faults)
    assert caught.value.layers == (3, 4, 5)


def test_the_only_worker_dies():
    with pytest.raises(InfeasibleError, match="no worker is left"):
        run(tiny_gpt, gpt_request(1, 1), fail_at(1, "w00", "forward"))


def test_a_pinned_policy_that_does_not_apply_says_so():
    faults = (fail_at(1, "w01", "backward"),)
    with pytest.raises(InfeasibleError, match="no living worker is idle"):
        run(tiny_gpt, gpt_request(2, 3, Policy.SPARE_SUBSTITUTION), *faults)


def test_an_error_of_the_users_own_code_comes_with_its_traceback():
    with pytest.raises(WorkerError, match="the user's own mistake") as caught:
        run(raising_job, gpt_request(2, 3))
    assert "jobs.py" in str(caught.value)
    assert f"in layer {raising_job().layers[4].name!r}, in the forward pass of micro-batch " in str(caught.value)
    assert "ZeroDivisionError" in str(caught.value)
    assert caught.value.value in {"w01", "w04"}


@pytest.mark.parametrize(
    ("place", "told"),
    [
        ("data", r"in samples \d+, \d+ of the data set, for micro-batch \d of step 0"),
        ("backward", r"in layers '.+' to '.+', in the backward pass of micro-batch \d of step 0"),
        ("optimizer", r"in the optimizer of layer '.+', in step 0"),
    ],
)
def test_such_an_error_says_where_in_the_job_it_was_raised(place, told):
    make_job = partial(job_raising_in, place)
    with pytest.raises(WorkerError, match=f"ZeroDivisionError: the user's own mistake\n{told}"):
        run(make_job, request_for(make_job(), 1, 2))


@pytest.mark.parametrize(("end", "told"), [(exit_at_once, "exit code 3"), (crash, "SIGSEGV: its own code crashed")])
def test_how_a_process_ended_that_nobody_struck_is_told(end, told):
    with capture_logs() as logs, pytest.raises(InfeasibleError, match="no worker is left"):
        run(partial(ending_job, end), gpt_request(1, 2))
    assert [log["reason"] for log in logs if log["event"] == "a worker's process has ended"] == [told] * 2, (
        "one takes the other's place"
    )


def test_of_one_that_was_struck_on_purpose_that_is_told_and_how_the_others_go_on():
    with capture_logs() as logs:
        run(tiny_gpt, gpt_request(2, 3), fail_at(1, "w01", "backward"))
    told = [log for log in logs if log["event"] in ("a worker's process has ended", "a worker is lost", "training goes on")]
    assert [log["event"] for log in told] == ["a worker is lost", "training goes on"]
    assert (told[0]["worker"], told[0]["reason"]) == ("w01", "by a fault that was asked for")
    assert (told[1]["lost"], told[1]["workers"]) == (["w01"], 5)


def test_a_script_that_ends_its_process_is_no_loss():
    with pytest.raises(WorkerError, match="SystemExit: the user's own exit"):
        run(partial(raising_job, Leaving), gpt_request(2, 3))


def test_a_job_that_cannot_be_made_says_why():
    with pytest.raises(WorkerError, match="no such data set"):
        run(unbuildable_job, gpt_request(2, 3))


@pytest.mark.parametrize(
    ("plan", "told"),
    [
        (grid_plan(7, [2], [NUM_MICROBATCHES]), "is of 7 layers where the job has 8"),
        (grid_plan(9, [1], [NUM_MICROBATCHES]), "is of 9 layers where the job has 8"),
        (grid_plan(8, [1], [NUM_MICROBATCHES - 1]), f"is of {NUM_MICROBATCHES - 1} micro-batches where the job has 8"),
    ],
)
def test_a_plan_of_another_job_is_refused_by_the_workers(plan, told):
    profile, settings = uniform_profile(plan.num_layers), JobSettings(num_microbatches=plan.num_microbatches)
    request = JobRequest(name="job", profile=profile, cluster=Cluster.uniform(2), settings=settings, plan=plan)
    with pytest.raises(InvalidInputError, match=f"plan: {told}"):
        run(tiny_gpt, request)


def test_a_worker_that_freezes_during_start_is_lost_before_the_first_step():
    fault = Fault(worker="w01", at=FaultPoint.START, how=FaultKind.FREEZE)
    options = AgentOptions(worker=WorkerOptions(faults=(fault,)))
    with leaves_nothing(), Agent(tiny_gpt, gpt_request(2, 1), LocalDecisions(), options=options) as agent:
        result = agent.run()
    assert [recovery.lost for recovery in result.recoveries] == [["w01"]]
    assert result.decisions[-1].plan.workers == ("w00",)


def test_an_error_in_the_observer_ends_everything():
    def observer(agent: Agent) -> None:
        if agent.losses:
            raise RuntimeError("the view broke")

    with (
        leaves_nothing(),
        pytest.raises(RuntimeError, match="the view broke"),
        Agent(tiny_gpt, gpt_request(2, 1), LocalDecisions(), observer=observer) as agent,
    ):
        agent.run()


SCRIPT = """
import os, signal, sys
from kintsugi.runtime.control.agent import Agent
from kintsugi.runtime.control.decisions import LocalDecisions
from tests.runtime.jobs import tiny_gpt
from tests.runtime.runs import gpt_request
from functools import partial

def show(agent):
    if len(agent.losses) >= 2 and not shown:
        shown.append(True)
        agent.handle("w01").strike(signal.SIGSTOP)
        print(*(agent.handle(worker).pid for worker in agent.alive), flush=True)

if __name__ == "__main__":
    shown = []
    with Agent(partial(tiny_gpt, num_steps=100_000), gpt_request(2, 2), LocalDecisions(), observer=show) as agent:
        agent.run()
"""


def test_a_killed_agent_leaves_no_worker_not_even_a_frozen_one():
    agent = subprocess.Popen([sys.executable, "-c", SCRIPT], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        workers = [int(pid) for pid in agent.stdout.readline().split()]
        assert len(workers) == 4
        helpers = children_of(agent.pid)
    finally:
        agent.kill()
        agent.wait(PATIENCE_SECONDS)
        agent.stdout.close()
    left = eventually(lambda: [pid for pid in (*workers, *helpers) if is_running(pid)], lambda left: not left)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left
