"""A digest changes with every bit of what it is of, and with nothing else."""

from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kintsugi.runtime.digests import device_kind, digest_of, entries_digest
from restorer.packing import PackedState

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool]
SIZES = [1, 3, 8, 40_001]
"""Of tensors: within a word, across words, and too long for a small one on a device."""


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
def test_one_bit_that_is_another_changes_a_digest(dtype, size):
    values = torch.randint(0, 2, (size,), generator=torch.Generator().manual_seed(size)).to(dtype)
    before, content = digest_of([values]), values.view(torch.uint8)
    for at, bit in product({0, len(content) // 2, len(content) - 1}, range(1 if dtype is torch.bool else 8)):
        content[at] ^= 1 << bit
        assert digest_of([values]) != before, (at, bit)
        content[at] ^= 1 << bit
    assert digest_of([values]) == before < 2**53


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=9), st.integers(0, 63), st.data())
def test_every_bit_of_a_word_counts_whatever_is_in_it(words, bit, data):
    at = data.draw(st.integers(0, len(words) - 1))
    values = torch.tensor(words, dtype=torch.uint64).view(torch.int64)
    before = digest_of([values])
    values[at] ^= (1 << bit) - (1 << 64 if bit == 63 else 0)
    assert digest_of([values]) != before


def test_a_digest_is_of_numbers_not_of_how_they_lie():
    table = torch.arange(6.0).reshape(2, 3)
    behind_a_number = torch.cat([torch.zeros(1), table.reshape(-1)])[1:].reshape(2, 3)  # not at the beginning of a word
    same = [table, table.t().contiguous().t(), behind_a_number]
    assert len({digest_of([values]) for values in same}) == 1
    assert digest_of([table, -table]) != digest_of([-table, table])
    assert digest_of([torch.tensor(-0.0)]) != digest_of([torch.tensor(0.0)])


def test_tensors_that_change_places_change_a_digest_whatever_their_length():
    for size in SIZES:
        one, other = torch.zeros(size), torch.ones(size)
        assert digest_of([one, other]) != digest_of([other, one])


def test_what_errs_in_a_pattern_changes_a_digest():
    """Lines and rows of memory err as a whole, and signs and places of rows do not change sums."""
    values = torch.randn(512, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    negated, rolled, swapped, struck = (values.clone() for _ in range(4))
    negated[7] *= -1
    rolled.copy_(values.roll(1, 0))
    swapped[[3, 4]] = values[[4, 3]]
    struck.view(torch.int64)[10:12, 5:7] ^= 1 << 40
    assert len({digest_of([one]) for one in (values, negated, rolled, swapped, struck)}) == 5


def test_a_number_has_the_digest_that_it_has_where_it_arrives():
    sent = {("w", "scale"): np.float64(1.4)}
    arrived = PackedState.blank(PackedState(sent).header).entries
    assert type(arrived["w", "scale"]) is float
    assert entries_digest(arrived) == entries_digest(sent)


def test_a_digest_of_entries_counts_plain_values_and_not_the_order():
    entries = {("w", "parameter"): torch.ones(3), ("w", "step"): 4, ("w", "kind"): "adam"}
    assert entries_digest(entries) == entries_digest(dict(reversed(entries.items())))
    for place, value in ((("w", "step"), 5), (("w", "kind"), "sgd"), (("w", "step"), None)):
        assert entries_digest(entries | {place: value}) != entries_digest(entries)


def test_a_device_has_one_kind_which_a_number_holds_exactly():
    kind = device_kind(torch.device("cpu"))
    assert kind == device_kind(torch.device("cpu")) == int(float(kind))


def test_sums_by_another_number_of_threads_are_not_of_the_same_kind():
    kind, num_threads = device_kind(torch.device("cpu")), torch.get_num_threads()
    torch.set_num_threads(num_threads + 1)
    try:
        assert device_kind(torch.device("cpu")) != kind
    finally:
        torch.set_num_threads(num_threads)
