"""When a step waits for its device."""

from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kintsugi.runtime.devices import job_on
from tests.gpu.devices import DEVICE, needs_cuda
from tests.runtime.jobs import NUM_MICROBATCHES, counted_job, tiny_gpt
from tests.runtime.workers.test_executor import Alone, Noted, executor_of

pytestmark = needs_cuda


class Fetches(TorchDispatchMode):
    """Notes what is copied from the device to the host while this context is entered."""

    def __init__(self, seen: list[str]) -> None:
        super().__init__()
        self._seen = seen

    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        """Carry an operation out."""
        result = function(*arguments, **(named or {}))
        if function is torch.ops.aten._to_copy.default and arguments[0].is_cuda and not result.is_cuda:
            self._seen.append("fetched")
        return result


@pytest.mark.parametrize("make_job", [tiny_gpt, counted_job])
def test_the_host_waits_once_in_a_step_and_has_made_the_next_ones_first_batch_before(make_job):
    job = job_on(make_job, DEVICE, None)
    noted = Noted(job.dataset)
    executor = executor_of(replace(job, dataset=noted), Alone())
    executor.run(0)  # in which layers are looked at more closely
    for step in range(1, job.num_steps):
        noted.seen.clear()
        with Fetches(noted.seen):
            executor.run(step)
        num_ahead = 0 if step + 1 == job.num_steps else 1
        samples = ["sample"] * job.microbatch_size * (NUM_MICROBATCHES - 1 + num_ahead)
        assert noted.seen == [*samples, "fetched"]
