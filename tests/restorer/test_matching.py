"""Matching by kinds of ranges against matching worker by worker."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import restorer.matching
from restorer.matching import match, match_ranges, missing_bytes

RANGES = st.tuples(st.integers(0, 5), st.integers(1, 4)).map(lambda pair: (pair[0], min(6, pair[0] + pair[1])))
PREFIX = (0, 5, 7, 20, 21, 33, 40)


@pytest.mark.parametrize("most_singly", [0, 1000])
@settings(max_examples=100, deadline=None)
@given(st.lists(RANGES | st.just((0, 0)), min_size=1, max_size=9), st.data())
def test_kinds_of_ranges_move_as_few_bytes_as_single_workers(most_singly, held, data):
    wanted = data.draw(st.lists(RANGES, min_size=1, max_size=len(held)))
    cost = missing_bytes(PREFIX, held, wanted)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(restorer.matching, "MOST_SINGLY", most_singly)
        chosen = match_ranges(PREFIX, held, wanted)
    assert len(set(chosen)) == len(wanted)
    best = sum(cost[row, column] for column, row in enumerate(match(cost)))
    assert sum(cost[row, column] for column, row in enumerate(chosen)) == best


def test_a_holder_keeps_its_slot():
    assert match_ranges(PREFIX, [(3, 6), (0, 3), (0, 3)], [(0, 3), (3, 6)]) == (1, 0)


def test_missing_bytes():
    assert missing_bytes(PREFIX, [(0, 3), (3, 4)], [(0, 3), (2, 4)]).tolist() == [[0.0, 1.0], [20.0, 13.0]]
