"""A worker without descriptors ends, and the others go on."""

import os
import resource
from contextlib import suppress
from dataclasses import replace
from functools import partial

import pytest
from torch import Tensor

from kintsugi.runtime.control.agent import Agent
from kintsugi.runtime.control.decisions import LocalDecisions
from kintsugi.runtime.faults import fail_at
from kintsugi.runtime.models import Activations, Batch, TrainingJob
from kintsugi.runtime.options import AgentOptions, Governance, WorkerOptions
from tests.runtime.jobs import tiny_gpt
from tests.runtime.runs import assert_same, gpt_request, leaves_nothing, survivors
from tests.runtime.workers.test_recovery_exactness import reference

pytestmark = pytest.mark.processes


def loss_that_takes_the_rest(flag: str, loss, outputs: Activations, batch: Batch) -> Tensor:
    """From its first call on the first worker that makes one has no more descriptors than it uses."""
    if outputs[0].device.type != "meta":
        with suppress(FileExistsError):
            os.close(os.open(flag, os.O_CREAT | os.O_EXCL))
            _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")), most))
    return loss(outputs, batch)


def job_without_descriptors(flag: str) -> TrainingJob:
    job = tiny_gpt()
    return replace(job, loss=partial(loss_that_takes_the_rest, flag, job.loss))


@pytest.mark.parametrize("governance", list(Governance))
def test_a_worker_that_has_none_for_the_next_groups_ends_and_the_others_go_on(tmp_path, governance):
    options = AgentOptions(governance=governance, worker=WorkerOptions(faults=(fail_at(2, "w00", "forward"),)))
    make_job = partial(job_without_descriptors, str(tmp_path / "taken"))
    with leaves_nothing(), Agent(make_job, gpt_request(2, 2, min_dp=1), LocalDecisions(), options=options) as agent:
        result = agent.run()
    assert_same(result, reference(2, 2))
    assert sum(name in survivors(result).workers for name in ("w01", "w03")) == 1
