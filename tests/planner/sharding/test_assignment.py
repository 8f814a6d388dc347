"""Shard assignment for one newcomer: the closed form against brute force, the papers' greedy forms and their programs."""

import itertools
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.sharding.baselines import brute_force, even_assignment, num_assignments, single_source
from planner.sharding.exact import assign_shards, earliest_counts, water_level
from planner.sharding.greedy import heap_greedy, scan_greedy
from planner.sharding.milp import solve_p3, solve_p4
from planner.sharding.problem import ExactTimes, ShardProblem
from tests.core.refusals import refuses
from tests.planner.sharding.samples import FINE, TIMES, neighbor, problems, three_neighbors


def exact_makespan(problem, counts):
    """The papers' equation 1 and tau_sync in rational numbers, of all neighbours that send."""
    finishes = [
        Fraction(n.ready_seconds)
        + Fraction(n.propagation_seconds)
        + count * problem.shard_bytes * Fraction(n.beta_seconds_per_byte)
        for n, count in zip(problem.neighbors, counts, strict=True)
        if count
    ]
    return max(finishes)


def rational_greedy(problem):
    """The multi-party paper's Algorithm 1, line by line, in rational numbers."""
    p = [problem.shard_bytes * Fraction(n.beta_seconds_per_byte) for n in problem.neighbors]
    load = [Fraction(n.ready_seconds) + Fraction(n.propagation_seconds) for n in problem.neighbors]
    counts = [0] * len(p)

    def give(u):
        counts[u] += 1
        load[u] += p[u]

    for u in range(len(p)):
        for _ in range(problem.min_shards_per_neighbor):
            give(u)
    while sum(counts) < problem.num_shards:
        give(min(range(len(p)), key=lambda u: load[u] + p[u]))
    return tuple(counts)


@settings(deadline=None)
@given(problems())
def test_no_assignment_is_better(problem):
    best = brute_force(problem)
    found = assign_shards(problem)
    assert exact_makespan(problem, found.counts) == exact_makespan(problem, best.counts)


@settings(deadline=None)
@given(problems(max_neighbors=6, max_free=60))
def test_counts_are_those_of_the_published_greedy(problem):
    assert assign_shards(problem).counts == rational_greedy(problem)


@settings(deadline=None)
@given(problems(max_neighbors=6, max_free=60))
def test_scan_and_heap_are_the_published_greedy(problem):
    assert scan_greedy(problem).counts == heap_greedy(problem).counts == rational_greedy(problem)


@settings(deadline=None)
@given(problems(max_neighbors=6, max_free=60))
def test_makespan_is_rounded_once(problem):
    found = assign_shards(problem)
    assert found.makespan_seconds == float(exact_makespan(problem, found.counts))


@settings(deadline=None)
@given(problems(max_neighbors=8, max_free=10**18, times=st.one_of(TIMES, FINE.map(lambda t: t * 1e-9))))
def test_no_single_move_helps_at_any_size(problem):
    """Optimality is local here: if the last shard cannot be moved to an earlier completion, nothing can."""
    found = assign_shards(problem)
    makespan = exact_makespan(problem, found.counts)
    assert sum(found.counts) == problem.num_shards
    assert min(found.counts) >= problem.min_shards_per_neighbor
    critical = [u for u, count in enumerate(found.counts) if count and _finish(problem, u, count) == makespan]
    if any(found.counts[u] == problem.min_shards_per_neighbor for u in critical):
        return
    for u, count in enumerate(found.counts):
        if u not in critical:
            assert _finish(problem, u, count + 1) >= makespan


def _finish(problem, u, count):
    return exact_makespan(problem, [count * (v == u) for v in range(len(problem.neighbors))])


def test_hundred_million_shards_from_64_neighbors():
    neighbors = tuple(
        neighbor(f"n{n}", 8 / (1e8 + 1.4e7 * n), ready=0.01 * (n % 7), propagation=0.01 + 1e-4 * n) for n in range(64)
    )
    problem = ShardProblem(num_shards=10**8, shard_bytes=2048, neighbors=neighbors)
    found = assign_shards(problem)
    makespan = exact_makespan(problem, found.counts)
    assert sum(found.counts) == 10**8
    assert all(_finish(problem, u, count + 1) >= makespan for u, count in enumerate(found.counts))


def test_equal_neighbors_share_evenly_and_the_first_ones_take_the_rest():
    problem = ShardProblem(num_shards=11, shard_bytes=5, neighbors=tuple(neighbor(f"n{n}", 1e-9) for n in range(4)))
    assert assign_shards(problem).counts == even_assignment(problem).counts == (3, 3, 3, 2)


def test_a_neighbor_that_is_ready_too_late_sends_its_minimum():
    neighbors = (neighbor("now", 1.0), neighbor("late", 1.0, ready=100.0))
    problem = ShardProblem(num_shards=10, shard_bytes=1, neighbors=neighbors)
    assert assign_shards(problem).counts == (9, 1)
    assert assign_shards(problem).makespan_seconds == 101.0
    free = replace(problem, min_shards_per_neighbor=0)
    assert assign_shards(free).counts == (10, 0)
    assert assign_shards(free).makespan_seconds == 10.0  # who sends nothing holds nobody up


def test_a_link_that_takes_no_time_gets_what_the_others_cannot_finish_before_it():
    neighbors = (neighbor("slow", 1.0), neighbor("instant", 0.0, ready=3.5), neighbor("instant too", 0.0, ready=3.5))
    problem = ShardProblem(num_shards=10**15, shard_bytes=1, min_shards_per_neighbor=0, neighbors=neighbors)
    assert assign_shards(problem).counts == (3, 10**15 - 3, 0)
    assert assign_shards(problem).makespan_seconds == 3.5


def test_a_link_that_takes_no_time_comes_before_equal_completions_of_later_neighbors():
    neighbors = (neighbor("before", 1.0), neighbor("instant", 0.0, ready=2.0), neighbor("after", 1.0))
    problem = ShardProblem(num_shards=9, shard_bytes=1, min_shards_per_neighbor=0, neighbors=neighbors)
    assert assign_shards(problem).counts == scan_greedy(problem).counts == (2, 6, 1)


def test_numbers_that_floating_point_cannot_add_are_told_apart():
    """In floating point both offsets plus a cost of 1e-12 are the same number."""
    neighbors = (neighbor("a", 3e-13, ready=1e6), neighbor("b", 1e-13, ready=1e6))
    problem = ShardProblem(num_shards=4, shard_bytes=1, neighbors=neighbors)
    assert assign_shards(problem).counts == (1, 3)


def test_extreme_numbers_are_computed_with():
    neighbors = (neighbor("tiny", 5e-324), neighbor("huge", 1e200, ready=1e200), neighbor("none", 0.0, ready=1e200))
    problem = ShardProblem(num_shards=2**63 - 1, shard_bytes=2**63 - 1, neighbors=neighbors)
    found = assign_shards(problem)
    assert sum(found.counts) == 2**63 - 1
    assert found.makespan_seconds == pytest.approx(9.223372036854775807e218)


@settings(max_examples=30, deadline=None)
@given(problems(max_minimum=1, max_free=5, times=st.integers(1, 50).map(lambda t: t / 8)))
def test_integer_programs_find_nothing_better(problem):
    best = assign_shards(problem).makespan_seconds
    for solved in (solve_p3(problem), solve_p4(problem)):
        assert solved.proven
        assert sum(solved.assignment.counts) == problem.num_shards
        if problem.min_shards_per_neighbor:  # else the programs also wait for neighbours that send nothing
            assert solved.assignment.makespan_seconds == pytest.approx(best)
        assert solved.assignment.makespan_seconds >= best * (1 - 1e-6)


@settings(deadline=None)
@given(problems(max_free=50))
def test_even_and_single_source_are_never_better(problem):
    free = replace(problem, min_shards_per_neighbor=0)
    best = assign_shards(free).makespan_seconds
    assert even_assignment(problem).makespan_seconds >= assign_shards(problem).makespan_seconds
    assert single_source(problem).makespan_seconds >= best


def test_several_neighbors_beat_the_fastest_one():
    problem = ShardProblem(num_shards=10, shard_bytes=1, min_shards_per_neighbor=0, neighbors=three_neighbors())
    assert single_source(problem).makespan_seconds == 80.0
    assert assign_shards(problem).counts == (7, 2, 1)
    assert assign_shards(problem).makespan_seconds == 62.0


def test_single_source_is_the_fastest_link_and_of_equals_the_one_ready_first():
    neighbors = (neighbor("slow", 2.0), neighbor("late", 1.0, ready=1.0), neighbor("first", 1.0))
    problem = ShardProblem(num_shards=6, shard_bytes=1, neighbors=neighbors)
    assert single_source(problem).counts == (0, 0, 6)


@settings(deadline=None)
@given(problems())
def test_brute_force_tries_every_assignment(problem):
    allowed = range(problem.min_shards_per_neighbor, problem.num_shards + 1)
    every = [c for c in itertools.product(allowed, repeat=len(problem.neighbors)) if sum(c) == problem.num_shards]
    assert num_assignments(problem) == len(every)
    assert exact_makespan(problem, brute_force(problem).counts) == min(exact_makespan(problem, counts) for counts in every)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 5)), min_size=1, max_size=5), st.integers(0, 200))
def test_water_level_is_the_highest_that_holds_the_volume(vessels, volume):
    def held(level):
        return sum(max(0, level - bottom) * width for bottom, width in vessels)

    level = water_level(vessels, volume)
    assert held(level) <= volume < held(level + 1) or (volume == 0 and held(level) == 0)


@settings(deadline=None)
@given(problems(max_neighbors=5, max_free=30), st.integers(0, 30))
def test_earliest_counts_grow_with_the_shards(problem, num_shards):
    times = ExactTimes.of(problem)
    fewer, more = earliest_counts(times, num_shards), earliest_counts(times, num_shards + 1)
    assert sum(more) - sum(fewer) == 1
    assert all(a <= b for a, b in zip(fewer, more, strict=True))


GOOD = {"num_shards": 4, "shard_bytes": 8, "neighbors": three_neighbors()}


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"num_shards": 0}, "num_shards"),
        ({"num_shards": 2}, "num_shards"),
        ({"min_shards_per_neighbor": 2}, "num_shards"),
        ({"min_shards_per_neighbor": -1}, "min_shards_per_neighbor"),
        ({"shard_bytes": 0}, "shard_bytes"),
        ({"neighbors": ()}, "neighbors"),
        ({"neighbors": (neighbor("a", 1.0), neighbor("b", 1.0), neighbor("a", 2.0))}, "neighbors[2].id"),
    ],
)
def test_problem_refuses(changes, field):
    with refuses(field):
        ShardProblem(**{**GOOD, **changes})


@pytest.mark.parametrize("field", ["propagation_seconds", "ready_seconds", "beta_seconds_per_byte"])
@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf"), 1e300])
def test_neighbor_refuses(field, value):
    with refuses(field):
        replace(three_neighbors()[0], **{field: value})


def test_shards_arrive_once_their_source_is_ready_and_all_bytes_are_through():
    timed = replace(neighbor("n", 0.25), ready_seconds=2.0, propagation_seconds=0.5)
    assert timed.arrival_seconds(4) == 3.5


def test_neighbor_refuses_no_name():
    with refuses("id"):
        neighbor("", 1.0)
