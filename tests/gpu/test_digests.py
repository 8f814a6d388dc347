"""A digest of what lies on a CUDA device is that of the same bits in the host's memory."""

import pytest
import torch

from kintsugi.runtime.digests import device_kind, digest_of
from tests.gpu.devices import DEVICE, needs_cuda

pytestmark = needs_cuda


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
@pytest.mark.parametrize("size", [1, 3, 40_001])
def test_bits_have_the_same_digest_wherever_they_lie(dtype, size):
    values = torch.randint(0, 2, (size,), generator=torch.Generator().manual_seed(size)).to(dtype)
    counter = torch.tensor(3.0)  # as optimizers keep it, on the host beside what is on the device
    there = values.to(DEVICE)
    before = digest_of([there, counter])
    assert before == digest_of([values, counter])
    there.view(torch.uint8)[-1] ^= 1
    assert digest_of([there, counter]) != before


def test_a_device_is_of_another_kind_than_processors():
    assert device_kind(torch.device(DEVICE)) != device_kind(torch.device("cpu"))
