"""State from a device to a device: every bit, in chunks that are read ahead, through buffers that come round again."""

import pytest
import torch

from kintsugi.core.decision import StateKind
from restorer import streams
from restorer.packing import PackedState
from restorer.sealing import Sealer
from restorer.staging import Staging
from tests.gpu.devices import DEVICE, needs_cuda

pytestmark = needs_cuda

KEY = 0, StateKind.OPTIMIZER


def state() -> PackedState:
    """Moments and a counter, a few chunks in all; the last kernels that write them may not have run yet."""
    moments = {(name, "exp_avg"): torch.randn(700_001, 3, device=DEVICE).mul_(2) for name in ("a", "b")}
    return PackedState({**moments, ("a", "step"): torch.tensor(7.0), ("b", "lr"): 0.1})


@pytest.mark.parametrize("num_held", [1, streams.MOST_IN_FLIGHT])
def test_state_arrives_bit_for_bit_and_lies_where_it_is_used(num_held):
    packed, staging = state(), Staging(torch.device(DEVICE))
    turn = staging.begin(0, {KEY})
    assert staging.describe(turn, KEY, packed.header, "source") == packed.num_bytes
    cuts = streams.chunks(0, packed.num_bytes)
    chunks = Sealer(torch.device(DEVICE), num_held).sealed((packed, begin, end) for begin, end in cuts)
    for (begin, _), chunk in zip(cuts, chunks, strict=True):
        assert chunk.content.is_pinned()
        assert chunk.is_whole()
        staging.take(turn, KEY, begin, chunk.content)
    arrived = staging.arrived()[KEY]
    assert arrived["b", "lr"] == 0.1
    for name in ("a", "b"):
        assert arrived[name, "exp_avg"].device == torch.device(DEVICE)
        assert torch.equal(arrived[name, "exp_avg"], packed.entries[name, "exp_avg"])
    assert arrived["a", "step"].device.type == "cpu"
    assert arrived["a", "step"] == 7.0
