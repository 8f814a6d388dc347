"""How workers are dealt to pipelines where slow links lie between racks."""

from collections import Counter

import pytest

from planner.arranging.siding import apportioned, ways
from planner.pipelines.kinds import WorkerKind

FAST, SLOW = WorkerKind(1.0, 80), WorkerKind(0.5, 80)
LENGTHS = range(1, 17)


def told(way):
    """Every pipeline as text: sides in letters, of slow workers small ones."""
    return tuple("".join("abcd"[seat.side].swapcase() if seat.kind == FAST else "abcd"[seat.side] for seat in own) for own in way)


def found(sides, dp, lengths=LENGTHS):
    return {told(way) for way in ways(sides, dp, lengths)}


def test_the_replicas_of_a_stage_are_on_one_side_and_who_is_over_stays_idle():
    assert ("AAABC",) * 3 in found([(FAST,) * 10, (FAST,) * 5, (FAST,) * 4], 3)


def test_pipelines_alike_are_of_rounds_of_one_speed_or_of_one_speed_each():
    mixed = found([(FAST, FAST, FAST, SLOW, SLOW), (SLOW, FAST, SLOW, FAST)], 2)
    assert {("AaBb", "AaBb"), ("AABB", "aabb")} <= mixed


def test_of_the_fastest_first_the_slowest_are_over():
    assert ("AB", "AB", "ab") in found([(SLOW, FAST, FAST, SLOW), (SLOW, FAST, FAST, SLOW)], 3)


def test_each_side_has_pipelines_as_many_as_its_speed_is_worth_and_as_long_as_it_has_workers_for():
    options = found([(FAST,) * 8, (SLOW,) * 8, (FAST,) * 3], 4)
    assert ("AAAA", "AAAA", "bbbbbbbb", "CCC") in options


def test_as_many_pipelines_on_each_side_may_have_as_many_lengths():
    assert ("AAAAA", "BBBB", "CC") in found([(FAST,) * 5, (FAST,) * 4, (FAST,) * 2], 3)


def test_a_side_that_is_too_small_is_left_out():
    assert ("AAA", "AAA", "BBB") in found([(FAST,) * 6, (FAST,) * 3, (FAST,)], 3, range(3, 9))


@pytest.mark.parametrize("sides", [[(FAST,) * 8], [(FAST,)] * 9])
def test_one_side_or_many_are_not_looked_at(sides):
    assert not found(sides, 2)


@pytest.mark.parametrize("dp", range(1, 13))
def test_nobody_is_used_twice_and_all_lengths_are_allowed(dp):
    sides = [(FAST,) * 5 + (SLOW,) * 2, (SLOW,) * 6, (FAST, SLOW, FAST)]
    for way in ways(sides, dp, range(1, 5)):
        used = Counter(seat for own in way for seat in own)
        assert all(count <= sides[seat.side].count(seat.kind) for seat, count in used.items())
        assert len(way) == dp
        assert all(1 <= len(own) <= 4 for own in way)


def test_shares_by_weight_add_up_and_the_largest_remainders_have_one_more():
    assert apportioned((10, 6, 3), 4) == (2, 1, 1)
    assert apportioned((1.0, 1.0), 3) == (2, 1)
    assert apportioned((0.0, 2.0), 3) == (0, 3)
