"""What the profiler measures of a CUDA device."""

import pytest
import torch

from kintsugi.runtime.devices import job_on, precision_of
from kintsugi.runtime.measuring.machine import device_of
from kintsugi.runtime.measuring.sweeper import Sweeper
from tests.gpu.devices import DEVICE, needs_cuda
from tests.runtime.jobs import tiny_gpt

pytestmark = needs_cuda


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_layers_take_time_and_memory(precision):
    job = job_on(tiny_gpt, DEVICE, precision_of(precision))
    before = torch.cuda.memory_allocated(DEVICE)
    samples = Sweeper(job).run(3, None)
    assert all(min(sample.forward) > 0 and min(sample.backward) > 0 for sample in samples)
    assert sum(sample.parameter_bytes for sample in samples) > 0
    assert torch.cuda.max_memory_allocated(DEVICE) > before


def test_the_device_is_described():
    device = device_of(DEVICE, 1)
    assert device.name == torch.cuda.get_device_name(DEVICE)
    assert 0 <= device.reserved_bytes < device.memory_bytes
