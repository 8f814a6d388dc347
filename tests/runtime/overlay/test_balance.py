"""Which bytes go over from a slow source to a fast one, and that nobody ends later for it."""

from hypothesis import given
from hypothesis import strategies as st

from kintsugi.runtime.overlay.balance import AHEAD_SECONDS, Pace, move

MEGABYTE = 10**6


def pace(bytes_per_second: float, left_bytes: int, *, is_whole: bool = True) -> Pace:
    """Of a source that has sent for a second."""
    made = Pace(is_whole=is_whole)
    made.assign(left_bytes + int(bytes_per_second) + 1)
    made.count(1, 0.0)
    made.count(int(bytes_per_second), 1.0)
    return made


rates = st.integers(MEGABYTE, 200 * MEGABYTE)
lefts = st.integers(0, 400 * MEGABYTE)


@given(st.lists(st.tuples(rates, lefts, st.booleans()), min_size=1, max_size=5))
def test_a_move_makes_the_last_end_sooner_and_takes_only_what_is_not_on_its_way(told):
    paces = {f"s{index}": pace(rate, left, is_whole=is_whole) for index, (rate, left, is_whole) in enumerate(told)}
    found = move(paces, 1.0)
    if found is None:
        return
    giver, taker = paces[found.giver], paces[found.taker]
    assert taker.is_whole
    assert found.giver != found.taker
    assert 0 < found.num_bytes <= giver.left_bytes - giver.bytes_per_second(1.0) * AHEAD_SECONDS
    before = max(one.seconds_left(1.0) for one in paces.values())
    giver_end = (giver.left_bytes - found.num_bytes) / giver.bytes_per_second(1.0)
    taker_end = max(taker.seconds_left(1.0), AHEAD_SECONDS) + found.num_bytes / taker.bytes_per_second(1.0)
    assert max(giver_end, taker_end) < before


@given(st.integers(MEGABYTE, 50 * MEGABYTE), rates, st.integers(100 * MEGABYTE, 400 * MEGABYTE))
def test_both_end_together_where_much_is_left(slow, fast, left):
    found = move({"slow": pace(slow, left), "fast": pace(fast, 0)}, 1.0)
    assert found is not None
    ends = (left - found.num_bytes) / slow, AHEAD_SECONDS + found.num_bytes / fast
    assert abs(ends[0] - ends[1]) < 1e-5


def test_nothing_moves_where_it_does_not_pay():
    busy, soon, idle = pace(100 * MEGABYTE, 50 * MEGABYTE), pace(100 * MEGABYTE, 10 * MEGABYTE), pace(100 * MEGABYTE, 0)
    assert move({"busy": busy, "too_busy_to_help": pace(100 * MEGABYTE, 20 * MEGABYTE)}, 1.0) is None
    assert move({"nearly_through": soon, "idle": idle}, 1.0) is None
    assert move({"busy": busy, "without_the_rest": pace(100 * MEGABYTE, 0, is_whole=False)}, 1.0) is None
    assert move({"busy": busy}, 1.0) is None
    assert move({"busy": busy, "never_sent": Pace(is_whole=True)}, 1.0) is None
    found = move({"busy": busy, "idle": idle}, 1.0)
    assert found is not None
    assert (found.giver, found.taker) == ("busy", "idle")


def test_silence_slows_a_source_down():
    silent = pace(100 * MEGABYTE, MEGABYTE)
    assert silent.bytes_per_second(1.0) == 100 * MEGABYTE
    assert silent.bytes_per_second(2.0) == 50 * MEGABYTE
    idle = pace(100 * MEGABYTE, 0)
    assert idle.bytes_per_second(9.0) == 100 * MEGABYTE


def test_half_of_what_a_source_that_never_sent_should_send_goes_to_another():
    begun = Pace(is_whole=True)
    begun.assign(8 * MEGABYTE)
    found = move({"begun": begun, "idle": pace(100 * MEGABYTE, 0)}, 1.0)
    assert found is not None
    assert (found.giver, found.num_bytes) == ("begun", 4 * MEGABYTE)
