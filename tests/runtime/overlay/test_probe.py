"""The rate of a link, seen by a receiver that has to wait for a processor now and then."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kintsugi.runtime.overlay.probe import seconds_per_byte

COUNT, PIECE_BYTES, TRUE = 24, 32_768, 1e-8


def arrivals(delays) -> list[tuple[float, int]]:
    return [(100.0 + index * PIECE_BYTES * TRUE + delay, PIECE_BYTES) for index, delay in enumerate(delays)]


@given(
    st.lists(st.floats(0.0, 0.5), min_size=COUNT, max_size=COUNT),
    st.integers(0, COUNT // 2 - 1),
    st.integers(COUNT // 2, COUNT - 1),
)
def test_what_is_seen_late_does_not_count_while_one_piece_of_either_half_is_seen_in_time(delays, one, other):
    delays[one] = delays[other] = 0.0
    assert seconds_per_byte(arrivals(delays)) == pytest.approx(TRUE, rel=1e-4)


def test_pieces_that_were_read_at_once_after_a_stall_are_no_fast_link():
    stall = [0.0] * 4 + [(15 - index) * PIECE_BYTES * TRUE for index in range(4, 15)] + [0.0] * 9
    assert seconds_per_byte(arrivals(stall)) == pytest.approx(TRUE, rel=1e-6)


def test_two_pieces_tell_a_rate():
    assert seconds_per_byte([(1.0, 10), (3.0, 10)]) == pytest.approx(0.2)
