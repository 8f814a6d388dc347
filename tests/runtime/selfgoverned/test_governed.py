"""Jobs whose workers mend themselves end on the losses and parameters of the undisturbed run, whatever fails when."""

from functools import cache, partial

import pytest

from kintsugi.core.errors import StateLostError
from kintsugi.runtime.agent import Agent
from kintsugi.runtime.decisions import LocalDecisions
from kintsugi.runtime.faults import Fault, FaultPoint, fail_at
from kintsugi.runtime.options import AgentOptions, Governance, WorkerOptions
from kintsugi.runtime.result import RunResult
from tests.runtime.jobs import NUM_STEPS, tiny_gpt
from tests.runtime.runs import assert_same, gpt_request, leaves_nothing, survivors

pytestmark = pytest.mark.processes


def governed(dp: int, pp: int, *faults: Fault, num_steps: int = NUM_STEPS) -> RunResult:
    options = AgentOptions(governance=Governance.RING, worker=WorkerOptions(faults=faults))
    job = partial(tiny_gpt, num_steps=num_steps)
    with leaves_nothing(), Agent(job, gpt_request(dp, pp, min_dp=1), LocalDecisions(), options=options) as agent:
        return agent.run()


@cache
def reference(num_steps: int = NUM_STEPS) -> RunResult:
    """The undisturbed run."""
    return governed(4, 1, num_steps=num_steps)


def test_nothing_happens():
    assert reference().recoveries == ()
    assert len(reference().losses) == NUM_STEPS


@pytest.mark.parametrize("point", ["step", "forward", "reduce", "commit", "applied"])
def test_a_worker_is_killed_in_a_step(point):
    result = governed(4, 1, fail_at(2, "w01", point))
    assert_same(result, reference())
    assert [recovery.lost for recovery in result.recoveries] == [["w01"]]
    assert "w01" not in survivors(result).workers


@pytest.mark.parametrize("point", ["regroup", "transfer", "ready"])
def test_a_second_loss_in_the_recovery_from_the_first(point):
    second = Fault(worker="w04", at=FaultPoint(point), generation=1)
    result = governed(4, 2, fail_at(2, "w01", "backward"), second)
    assert_same(result, reference())
    assert sorted(worker for recovery in result.recoveries for worker in recovery.lost) == ["w01", "w04"]


def test_two_workers_are_lost_at_once_and_a_third_later():
    result = governed(4, 2, fail_at(1, "w00", "forward"), fail_at(1, "w03", "forward"), fail_at(3, "w02", "backward"))
    assert_same(result, reference())


def test_workers_are_lost_one_by_one_down_to_one():
    faults = [fail_at(step, worker, "backward") for step, worker in ((1, "w00"), (2, "w02"), (3, "w03"))]
    result = governed(4, 1, *faults)
    assert_same(result, reference())
    assert survivors(result).workers == ("w01",)


def test_before_the_first_step_everything_comes_from_the_seed():
    result = governed(1, 3, Fault(worker="w01", at=FaultPoint.REGROUP))
    assert_same(result, reference())


def test_a_layer_whose_only_holder_is_lost_ends_the_job():
    with pytest.raises(StateLostError):
        governed(1, 3, fail_at(2, "w01", "forward"))
