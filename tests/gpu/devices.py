"""Which CUDA devices are at hand, and how many NCCL ranks they carry; the tests of this package say so where there are too few."""

import os

import pytest
import torch
import torch.distributed as dist

from kintsugi.runtime.result import RunResult
from restorer.nccl_requirements import SHARING, SHARING_VERSION, may_share_devices
from tests.runtime import runs

DEVICE = "cuda:0"
NUM_DEVICES = torch.cuda.device_count()
IS_EMULATED = "EMULATED_CUDA" in os.environ
"""Not asked of the device: whoever imports this has not put it in use."""
HAS_NCCL = NUM_DEVICES > 0 and dist.is_nccl_available()

if NUM_DEVICES == 1 and HAS_NCCL and torch.cuda.nccl.version() >= SHARING_VERSION:
    os.environ.setdefault(SHARING, "1")

TOLERANCE = 1e-10
"""Of parameters that Adam trained along two ways on a device. A key's bias has no gradient but what rounding leaves, which Adam
scales up until it is 1e-12 of the largest entry, by sums in another order as much as by other kernels."""


def assert_same(result: RunResult, reference: RunResult, tolerance: float = TOLERANCE) -> None:
    """Losses, parameters and buffers equal within `tolerance` of their largest entry; replicas bitwise equal."""
    runs.assert_same(result, reference, tolerance)


def most_ranks() -> int:
    """How many workers NCCL can connect here."""
    return 4 if HAS_NCCL and may_share_devices() else NUM_DEVICES


def device_of(rank: int) -> str:
    """The device of the worker of a rank."""
    return f"cuda:{rank % NUM_DEVICES}"


def needs_ranks(count: int) -> pytest.MarkDecorator:
    """Skip where NCCL cannot connect so many workers, with the reason."""
    reason = f"{NUM_DEVICES} CUDA devices are found, and NCCL asks for one for each of {count} workers"
    if HAS_NCCL:
        reason += f" (version {'.'.join(map(str, torch.cuda.nccl.version()))}; from 2.30 on they could share)"
    return pytest.mark.skipif(most_ranks() < count, reason=reason)


needs_cuda = pytest.mark.skipif(
    NUM_DEVICES == 0,
    reason="no CUDA device is found" if torch.version.cuda else "this build of torch is for CPUs alone",
)
needs_nccl = pytest.mark.skipif(not HAS_NCCL, reason="no CUDA device is found, or this build of torch has no NCCL")
