"""Sealed chunks last as long as they are held, and damage to them is found."""

from collections import deque

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from restorer import streams
from restorer.packing import HOST, PackedState
from restorer.sealing import SEAL_BYTES, Sealer, verified


@given(st.lists(st.integers(0, 40), min_size=1, max_size=12), st.integers(1, 3))
@settings(deadline=None)
def test_sealed_chunks_last_as_long_as_they_are_held(sizes, num_held):
    """Buffers come round again, and none before its message was given up."""
    packed = PackedState({("p", "k"): torch.arange(40, dtype=torch.uint8)})
    held = deque(maxlen=num_held)
    for size, message in zip(sizes, Sealer(HOST, num_held).messages((packed, 0, size) for size in sizes), strict=True):
        held.append((size, message))
        for expected, earlier in held:
            assert verified(earlier).tolist() == list(range(expected))


def test_damage_is_found_wherever_it_is():
    packed = PackedState({("p", "k"): torch.arange(40, dtype=torch.uint8)})
    (message,) = Sealer(HOST, 1).messages([(packed, 3, 33)])
    for place in range(len(message)):
        damaged = message.clone()
        damaged[place] ^= 64
        assert verified(damaged) is None


def test_a_whole_chunk_and_its_seal_take_no_more_pinned_memory_than_they_are_long():
    """Torch rounds that up to the next power of two."""
    packed = PackedState({("a", "moments"): torch.zeros(2 * streams.CHUNK_BYTES, dtype=torch.uint8)})
    (cut, *_) = streams.chunks(0, packed.num_bytes)
    (message,) = Sealer(HOST, 1).messages([(packed, *cut)])
    assert len(message) == streams.CHUNK_BYTES + SEAL_BYTES
    assert len(message).bit_count() == 1
