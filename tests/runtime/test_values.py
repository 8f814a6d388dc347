"""Plain values as JSON, and back."""

from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kintsugi.core.errors import InvalidInputError
from kintsugi.runtime.values import from_plain, to_plain

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.integers() | st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(plain)
def test_plain_values_come_back(value):
    assert from_plain(to_plain(value, "x")) == value


def test_counters_come_back_and_other_values_are_refused():
    found = from_plain(to_plain(Counter({3: 2}), "milestones"))
    assert isinstance(found, Counter)
    assert found == Counter({3: 2})
    with pytest.raises(InvalidInputError, match="holds a set"):
        to_plain({1}, "x")


def test_tensors_stand_by_their_numbers_where_somebody_takes_them():
    one, other, taken = torch.ones(2), torch.zeros(()), []
    value = {"rows": [one, None, (other, 3)]}
    found = from_plain(to_plain(value, "x", taken), taken)
    assert found["rows"][0] is one
    assert found["rows"][2] == (other, 3)
    with pytest.raises(InvalidInputError, match="holds a Tensor"):
        to_plain(value, "x")
