"""A digest of what lies on a CUDA device changes with every bit, too."""

import pytest
import torch

from kintsugi.runtime.digests import device_kind, digest_of
from tests.gpu.devices import DEVICE, needs_cuda

pytestmark = needs_cuda


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
@pytest.mark.parametrize("size", [1, 3, 40_001])
def test_one_bit_that_is_another_changes_a_digest(dtype, size):
    values = torch.randint(0, 2, (size,), generator=torch.Generator().manual_seed(size)).to(dtype)
    counter = torch.tensor(3.0)  # as optimizers keep it, on the host beside what is on the device
    there = values.to(DEVICE)
    before = digest_of([there, counter])
    assert before == digest_of([values.to(DEVICE), counter]) < 2**53
    for place in {0, there.view(torch.uint8).numel() - 1}:
        there.view(torch.uint8)[place] ^= 1
        assert digest_of([there, counter]) != before
        there.view(torch.uint8)[place] ^= 1
    assert before != digest_of([there, counter + 1])


@pytest.mark.parametrize("rows", [16, 512, 70_000])
def test_what_errs_in_a_pattern_changes_a_digest(rows):
    values = torch.randn(rows, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(5)).to(DEVICE)
    negated, swapped, struck = (values.clone() for _ in range(3))
    negated[7] *= -1
    swapped[[3, 4]] = values[[4, 3]]
    struck.view(torch.int64)[10:12, 5:7] ^= 1 << 40
    assert len({digest_of([one]) for one in (values, values.roll(1, 0), negated, swapped, struck)}) == 5


def test_tensors_that_change_places_change_a_digest():
    one, other = torch.zeros(3, device=DEVICE), torch.ones(3, device=DEVICE)
    assert digest_of([one, other]) != digest_of([other, one])


def test_a_device_is_of_another_kind_than_processors():
    assert device_kind(torch.device(DEVICE)) != device_kind(torch.device("cpu"))
