"""Real processes train over channels that keep nothing but their order, struck and mended, to what they train with tags."""

from functools import partial

import pytest

from kintsugi.core.errors import InvalidInputError
from kintsugi.core.plan import Policy, Schedule
from kintsugi.runtime.control.agent import Agent
from kintsugi.runtime.control.decisions import JobRequest, LocalDecisions
from kintsugi.runtime.faults import Fault, FaultPoint, fail_at
from kintsugi.runtime.options import AgentOptions, TransportKind, WorkerOptions
from kintsugi.runtime.result import RunResult
from tests.restorer.stand_in import job_with_stand_in
from tests.runtime.jobs import odd_job, tiny_gpt
from tests.runtime.runs import assert_same, gpt_request, leaves_nothing, request_for, run, survivors
from tests.runtime.workers.test_recovery_exactness import reference

pytestmark = pytest.mark.processes


def run_over_channels(request: JobRequest, *faults: Fault, make_job=tiny_gpt) -> RunResult:
    options = AgentOptions(worker=WorkerOptions(transport=TransportKind.GLOO_CHANNELS, faults=faults))
    with leaves_nothing(), Agent(make_job, request, LocalDecisions(), options=options) as agent:
        return agent.run()


@pytest.mark.parametrize(("policy", "point"), [(Policy.DATA_REROUTING, "forward"), (Policy.DYNAMIC_PARALLELISM, "backward")])
def test_a_worker_is_killed_in_a_step(policy, point):
    result = run_over_channels(gpt_request(2, 3, policy), fail_at(2, "w04", point))
    assert_same(result, reference(2, 3))
    assert "w04" not in survivors(result).workers
    assert [recovery.policy for recovery in result.recoveries] == [policy.value]


def test_state_migrates_to_pipelines_of_other_lengths_and_a_second_worker_is_killed_meanwhile():
    second = Fault(worker="w06", at=FaultPoint.TRANSFER, generation=1)
    result = run_over_channels(gpt_request(4, 2, Policy.DYNAMIC_PARALLELISM), fail_at(2, "w03", "reduce"), second)
    assert_same(result, reference(2, 3))
    assert result.decisions[-1].migration.transfers


def test_messages_that_are_wanted_in_another_order_than_they_are_sent():
    """The survivors of an interleaved pipeline take over for the lost worker: several stages of one pair share each channel."""
    request = request_for(tiny_gpt(), 2, 3, Policy.DATA_REROUTING, stages_per_worker=2)
    result = run_over_channels(request, fail_at(1, "w04", "backward"))
    assert_same(result, reference(2, 3))
    assert survivors(result).schedule is Schedule.INTERLEAVED


def test_several_tensors_cross_and_not_all_need_gradients():
    make_job = partial(odd_job, "momentum")
    whole = run(make_job, request_for(make_job(), 1, 1))
    request = request_for(make_job(), 2, 2, Policy.DATA_REROUTING, stages_per_worker=2)
    assert_same(run_over_channels(request, fail_at(1, "w02", "backward"), make_job=make_job), whole)


@pytest.mark.parametrize(("policy", "point"), [(Policy.DATA_REROUTING, "backward"), (Policy.DYNAMIC_PARALLELISM, "reduce")])
def test_what_is_built_on_nccl_survives_a_loss(policy, point):
    """With what stands in for NCCL: all but torch's own class and the device are what they are there."""
    options = AgentOptions(worker=WorkerOptions(transport=TransportKind.NCCL, faults=(fail_at(2, "w04", point),)))
    make_job = partial(job_with_stand_in, tiny_gpt)
    with leaves_nothing(), Agent(make_job, gpt_request(2, 3, policy), LocalDecisions(), options=options) as agent:
        result = agent.run()
    assert_same(result, reference(2, 3))
    assert "w04" not in survivors(result).workers


def test_workers_refuse_nccl_for_a_job_on_processors():
    options = AgentOptions(worker=WorkerOptions(transport=TransportKind.NCCL))
    refused = pytest.raises(InvalidInputError, match="the job computes on cpu")
    with leaves_nothing(), Agent(tiny_gpt, gpt_request(1, 1), LocalDecisions(), options=options) as agent, refused:
        agent.run()
