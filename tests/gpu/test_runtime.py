"""Workers that share one CUDA device over gloo with pinned staging: mended runs end as the uninterrupted one does."""

import math
from dataclasses import replace
from functools import cache, partial

import pytest
import torch

from kintsugi.core.plan import Policy, Schedule
from kintsugi.runtime.checkpoints.recording import CheckpointOptions, RunOptions
from kintsugi.runtime.control.agent import Agent
from kintsugi.runtime.control.decisions import LocalDecisions
from kintsugi.runtime.devices import job_on
from kintsugi.runtime.faults import Fault, FaultPoint, fail_at
from kintsugi.runtime.models import NamedParameters, TrainingJob
from kintsugi.runtime.options import AgentOptions, WorkerOptions
from kintsugi.runtime.result import RunResult
from kintsugi.runtime.train import train
from tests.gpu.devices import DEVICE, assert_same, needs_cuda
from tests.runtime.jobs import tiny_gpt
from tests.runtime.runs import gpt_request, leaves_nothing, run, survivors, under

pytestmark = [pytest.mark.processes, needs_cuda]

job = partial(job_on, tiny_gpt, DEVICE, None)


@cache
def reference() -> RunResult:
    """The uninterrupted run on the device."""
    return run(job, gpt_request(2, 3))


def test_the_device_trains_what_processors_train():
    """Without dropout: devices and processors draw other numbers from one seed."""
    on_processors = partial(tiny_gpt, dropout=0.0)
    assert_same(
        run(partial(job_on, on_processors, DEVICE, None), gpt_request(2, 3)), run(on_processors, gpt_request(2, 3)), tolerance=1e-9
    )


@pytest.mark.parametrize("policy", [Policy.DATA_REROUTING, Policy.DYNAMIC_PARALLELISM])
@pytest.mark.parametrize("point", ["forward", "backward", "reduce", "commit"])
def test_a_worker_is_killed_in_a_step(policy, point):
    result = run(job, gpt_request(2, 3, policy), fail_at(2, "w04", point))
    assert_same(result, reference())
    assert "w04" not in survivors(result).workers


@pytest.mark.parametrize("point", ["step", "applied"])
def test_a_worker_whose_memory_errs_is_found_by_its_replicas(point):
    result = run(job, gpt_request(4, 1, Policy.DATA_REROUTING), fail_at(2, "w02", point, "flip"))
    assert_same(result, reference())
    assert [recovery.lost for recovery in result.recoveries] == [["w02"]]


def test_a_job_that_is_measured_in_the_process_that_starts_its_workers_is_mended():
    """The device is in use there before: it stays so."""
    result = train(job, workers=2, dp=2, pp=1, faults=[fail_at(2, "w01", "backward")])
    assert_same(result, reference())
    assert survivors(result).workers == ("w00",)


def test_state_migrates_to_pipelines_of_other_lengths():
    result = run(job, gpt_request(4, 2, Policy.DYNAMIC_PARALLELISM), fail_at(2, "w03", "backward"))
    assert_same(result, reference())
    assert result.decisions[-1].migration.transfers
    assert len({len(pipeline.stages) for pipeline in survivors(result).pipelines}) > 1


def fused(parameters: NamedParameters) -> torch.optim.Optimizer:
    """Its counters lie on the device."""
    return torch.optim.AdamW([parameter for _, parameter in parameters], lr=0.01, fused=True)


def fused_job() -> TrainingJob:
    return replace(job(), optimizer=fused)


def test_state_of_fused_optimizers_migrates():
    result = run(fused_job, gpt_request(4, 2, Policy.DYNAMIC_PARALLELISM), fail_at(2, "w03", "backward"))
    assert_same(result, run(fused_job, gpt_request(2, 3)))
    assert result.decisions[-1].migration.transfers


@pytest.mark.parametrize("schedule", [Schedule.GPIPE, Schedule.ZB_H1])
def test_a_worker_is_killed_under_another_schedule(schedule):
    request = gpt_request(2, 3, Policy.DYNAMIC_PARALLELISM)
    assert_same(run(job, under(schedule, request), fail_at(2, "w04", "backward")), reference())


def test_a_worker_is_killed_that_recomputes_activations():
    recomputing = partial(job_on, tiny_gpt, DEVICE, None, recomputes_activations=True)
    assert_same(run(recomputing, gpt_request(2, 3, Policy.DATA_REROUTING), fail_at(2, "w04", "backward")), reference())


def test_a_second_worker_is_killed_in_the_recovery():
    second = Fault(worker="w02", at=FaultPoint.TRANSFER, generation=1)
    assert_same(run(job, gpt_request(2, 3, Policy.DYNAMIC_PARALLELISM), fail_at(2, "w04", "forward"), second), reference())


def test_a_checkpoint_is_written_and_found_again(tmp_path):
    def trained(num_steps: int) -> RunResult:
        own = partial(job_on, partial(tiny_gpt, num_steps=num_steps), DEVICE, None)
        recorded = RunOptions.of(own(), tmp_path, mtbf_seconds=3600.0, checkpoints=CheckpointOptions(every_steps=1))
        options = AgentOptions(worker=WorkerOptions(run=recorded))
        with leaves_nothing(), Agent(own, gpt_request(2, 3), LocalDecisions(), options=options) as agent:
            return agent.run()

    trained(2)
    whole = trained(4)
    assert list(map(math.isnan, whole.step_seconds)) == [True, True, False, False], "it went on, and did not begin anew"
    assert_same(whole, reference())
