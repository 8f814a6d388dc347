"""Sealed chunks last as long as they are held, and damage to them is found."""

from collections import deque

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from restorer import streams
from restorer.packing import HOST, PackedState
from restorer.sealing import Sealed, Sealer


def halves(num_bytes: int) -> PackedState:
    """Bytes that count up, in two tensors."""
    values = torch.arange(num_bytes, dtype=torch.uint8)
    return PackedState({("a", "k"): values[: num_bytes // 2], ("b", "k"): values[num_bytes // 2 :]})


@given(st.lists(st.integers(0, 40), min_size=1, max_size=12), st.integers(1, 3))
@settings(deadline=None)
def test_sealed_chunks_last_as_long_as_they_are_held(sizes, num_held):
    """Buffers come round again, and none before its chunk was given up; what lies in one tensor needs none."""
    packed = halves(40)
    held = deque(maxlen=num_held)
    for size, chunk in zip(sizes, Sealer(HOST, num_held).sealed((packed, 0, size) for size in sizes), strict=True):
        held.append((size, chunk))
        for expected, earlier in held:
            assert earlier.is_whole()
            assert earlier.content.tolist() == list(range(expected))


@pytest.mark.parametrize("cut", [(3, 19), (3, 33)], ids=["of one tensor", "of two"])
def test_damage_is_found_wherever_it_is(cut):
    (chunk,) = Sealer(HOST, 1).sealed([(halves(40), *cut)])
    for part in (chunk.content, chunk.seal.view(torch.uint8)):
        for place in range(len(part)):
            part[place] ^= 64
            assert not chunk.is_whole()
            part[place] ^= 64
    assert chunk.is_whole()


def test_what_one_tensor_holds_is_not_copied():
    packed = halves(40)
    own = {value.data_ptr() + place for value in packed.entries.values() for place in range(20)}
    cuts = [(0, 20), (5, 6), (20, 40), (19, 21)]
    where = [chunk.content.data_ptr() in own for chunk in Sealer(HOST, 4).sealed((packed, *cut) for cut in cuts)]
    assert where == [True, True, True, False]


def test_a_change_after_the_seal_is_found():
    """As of state that goes on being trained while a transfer that was called off still sends it."""
    packed = halves(40)
    (chunk,) = Sealer(HOST, 1).sealed([(packed, 0, 20)])
    sent = Sealed(chunk.content.clone(), chunk.seal.clone())
    packed.entries["a", "k"].add_(1)
    assert sent.is_whole()
    assert not Sealed(chunk.content, sent.seal).is_whole()


def test_a_whole_chunk_takes_no_more_pinned_memory_than_it_is_long():
    """Torch rounds that up to the next power of two."""
    assert streams.CHUNK_BYTES.bit_count() == 1
