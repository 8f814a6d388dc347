"""What arrived is kept, of one version, from whoever may still bring it."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kintsugi.core.decision import StateKind
from kintsugi.core.errors import CommunicationError
from restorer.packing import PackedState
from restorer.staging import Staging
from tests.restorer.states import NUM_BYTES, VALUES, bits_of


def test_streams_that_were_left_behind_change_nothing():
    staging, key = Staging(), (0, StateKind.PARAMETER)
    first = staging.begin(3, {key})
    staging.describe(first, key, PackedState(VALUES).header, "s0")
    staging.take(first, key, 0, torch.full((NUM_BYTES,), 1, dtype=torch.uint8))
    arrived = staging.arrived()[key]["p", "k"]
    bits = bits_of(arrived)
    for over in (lambda: staging.begin(3, {key}), staging.clear):
        over()
        with pytest.raises(CommunicationError, match="called off"):
            staging.take(first, key, 0, torch.zeros(NUM_BYTES, dtype=torch.uint8))
        assert bits_of(arrived) == bits


def test_nothing_is_handed_out_before_all_of_it_arrived():
    staging, key = Staging(), (0, StateKind.PARAMETER)
    turn = staging.begin(3, {key})
    staging.describe(turn, key, PackedState(VALUES).header, "s0")
    staging.take(turn, key, 16, torch.zeros(NUM_BYTES - 16, dtype=torch.uint8))
    with pytest.raises(CommunicationError, match="parameter state of layer 0 lacks bytes 0 to 16"):
        staging.arrived()


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=8), st.integers(0, 30), st.integers(0, 30))
def test_gaps_are_what_is_not_covered(ranges, begin, end):
    staging, key = Staging(), (0, StateKind.PARAMETER)
    header = PackedState({("p", "k"): torch.zeros(30, dtype=torch.uint8)}).header
    turn = staging.begin(0, {key})
    staging.describe(turn, key, header, "s0")
    covered = set()
    for low, high in ((min(pair), max(pair)) for pair in ranges):
        staging.take(turn, key, low, torch.zeros(high - low, dtype=torch.uint8))
        covered |= set(range(low, high))
    gaps = staging.missing(key, begin, end)
    assert [place for low, high in gaps for place in range(low, high)] == [p for p in range(begin, end) if p not in covered]
    assert all(low < high for low, high in gaps)
