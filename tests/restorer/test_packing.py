"""State is packed and unpacked bit for bit, whatever its types, and its parts cover it."""

import itertools
from collections import defaultdict

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kintsugi.core.decision import Migration, StateKind
from restorer.packing import HUGE_BYTES, pack, unpack
from restorer.parts import parts_of
from tests.restorer.states import DTYPES, ENTRIES, SHAPES, assert_same_bits, tensor_of, transfer


@given(ENTRIES)
@settings(deadline=None)
def test_pack_and_unpack_keep_every_bit(entries):
    assert_same_bits(entries, unpack(*pack(entries)))


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_type_and_shape(dtype):
    entries = {("p", str(n)): tensor_of(dtype, shape, n) for n, shape in enumerate(SHAPES)}
    assert_same_bits(entries, unpack(*pack(entries)))


def test_views_and_tensors_with_history_are_packed_as_they_look():
    matrix = torch.arange(6.0).reshape(2, 3)
    entries = {("t", "a"): matrix.T, ("t", "b"): matrix[:, 1], ("t", "c"): torch.nn.Parameter(matrix) * 2}
    assert_same_bits({key: value.detach().contiguous() for key, value in entries.items()}, unpack(*pack(entries)))


def test_conjugates_and_negatives_are_packed_as_they_look():
    matrix = torch.arange(6.0).reshape(2, 3)
    entries = {("t", "conjugate"): torch.complex(matrix, matrix).conj(), ("t", "negative"): torch._neg_view(matrix)}
    looks = {key: value.resolve_conj().resolve_neg() for key, value in entries.items()}
    assert_same_bits(looks, unpack(*pack(entries)))


def test_what_was_unpacked_is_its_own():
    source = torch.zeros(3)
    header, payload = pack({("p", "k"): source})
    arrived = unpack(header, payload)["p", "k"]
    payload.fill_(255)
    source.fill_(7)
    assert torch.equal(arrived, torch.zeros(3))


def test_large_tensors_are_written_as_small_ones_are():
    """Their memory is another's."""
    values = torch.arange(HUGE_BYTES // 8 + 3, dtype=torch.float64)
    assert_same_bits({("p", "k"): values}, unpack(*pack({("p", "k"): values})))


@given(
    st.lists(st.tuples(st.integers(0, 2), st.sampled_from(StateKind), st.integers(0, 10**12)), max_size=12), st.integers(0, 10**6)
)
def test_parts_meet_exactly_and_cover_everything(pieces, actual_bytes):
    transfers = tuple(transfer(f"s{n}", size, layer=layer, kind=kind) for n, (layer, kind, size) in enumerate(pieces))
    parts = defaultdict(list)
    for part in parts_of(Migration(transfers=transfers)):
        parts[part.transfer.layer, part.transfer.kind].append(part)
    for own in parts.values():
        slices = [part.slice_of(actual_bytes) for part in own]
        if any(part.transfer.num_bytes for part in own):
            assert all(one.stop == following.start for one, following in itertools.pairwise(slices))
        assert slices[0].start == 0
        assert slices[-1].stop == actual_bytes
