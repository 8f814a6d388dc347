"""Orders of reductions against brute force and CP-SAT."""

import itertools

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from ortools.sat.python import cp_model

from restorer.buckets import buckets_of
from restorer.ordering import few_rounds, short_rounds
from tests.builders import even_cuts, transformer_profile

TICK = 1e6
MOST_WORK = 5.0
"""For the solver, in its own deterministic seconds; cases that it does not prove by then are left out."""


@st.composite
def cases(draw, most_layers: int = 24, most_shapes: int = 4):
    """Buckets of pipelines of several lengths, what each takes, and when it is ready."""
    num_layers = draw(st.integers(3, most_layers))
    lengths = draw(st.lists(st.integers(1, min(6, num_layers)), min_size=1, max_size=most_shapes, unique=True))
    shapes = [tuple((stop, stage) for stage, stop in enumerate(even_cuts(num_layers, length)[1:])) for length in lengths]
    buckets = buckets_of(shapes, transformer_profile(num_layers - 2, tied=draw(st.booleans())))
    numbers = st.integers(1, 1000)
    sizes = draw(st.lists(numbers, min_size=len(buckets), max_size=len(buckets)))
    ready = draw(st.lists(st.integers(0, 2000), min_size=len(buckets), max_size=len(buckets)))
    return buckets, sizes, ready


def conflicts_of(buckets) -> list[frozenset[int]]:
    """The buckets that share a worker with each bucket."""
    stages = [{(shape, stage) for shape, own in enumerate(bucket.stages) for stage in own} for bucket in buckets]
    return [frozenset(j for j, other in enumerate(stages) if j != i and not own.isdisjoint(other)) for i, own in enumerate(stages)]


def reduced_seconds(rounds, conflicts, seconds, ready) -> float:
    """End of the last reduction, each beginning as soon as its workers are through with its layers and their reductions before."""
    start, done = list(ready), set()
    for index in itertools.chain(*rounds):
        done.add(index)
        for other in conflicts[index] - done:
            start[other] = max(start[other], start[index] + seconds[index])
    return max((begin + own for begin, own in zip(start, seconds, strict=True)), default=0.0)


def weight(rounds, sizes) -> tuple[int, int]:
    return len(rounds), sum(max(sizes[index] for index in own) for own in rounds)


def require_valid(rounds, conflicts) -> None:
    assert sorted(index for own in rounds for index in own) == list(range(len(conflicts)))
    for own in rounds:
        assert all(conflicts[index].isdisjoint(own) for index in own)


def solved(model: cp_model.CpModel, goal) -> int:
    model.minimize(goal)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.max_deterministic_time = MOST_WORK
    assume(solver.solve(model) == cp_model.OPTIMAL)
    return round(solver.objective_value)


def fewest_and_least(conflicts, sizes) -> tuple[int, int]:
    """The fewest rounds, and of those the least sum of their largest buckets, by CP-SAT."""
    count = len(sizes)
    model = cp_model.CpModel()
    placed = [[model.new_bool_var("") for _ in range(count)] for _ in range(count)]
    height = [model.new_int_var(0, max(sizes), "") for _ in range(count)]
    used = [model.new_bool_var("") for _ in range(count)]
    for index, own in enumerate(placed):
        model.add_exactly_one(own)
        for number, is_here in enumerate(own):
            model.add_implication(is_here, used[number])
            model.add(height[number] >= sizes[index]).only_enforce_if(is_here)
            for other in conflicts[index]:
                model.add_bool_or(is_here.negated(), placed[other][number].negated())
    scale = sum(sizes) + 1
    both = solved(model, scale * sum(used) + sum(height))
    return both // scale, both % scale


def least_end(conflicts, sizes, ready) -> int:
    """When the last reduction can end at the earliest, by CP-SAT."""
    model = cp_model.CpModel()
    horizon = max(ready) + sum(sizes)
    starts = [model.new_int_var(own, horizon, "") for own in ready]
    spans = [model.new_fixed_size_interval_var(start, size, "") for start, size in zip(starts, sizes, strict=True)]
    for a, others in enumerate(conflicts):
        for b in others:
            model.add_no_overlap([spans[a], spans[b]])
    end = model.new_int_var(0, horizon, "")
    model.add_max_equality(end, [start + size for start, size in zip(starts, sizes, strict=True)])
    return solved(model, end)


@settings(deadline=None, max_examples=40)
@given(cases(most_layers=12, most_shapes=3))
def test_few_rounds_are_the_fewest_and_within_a_twentieth_of_the_least(case):
    buckets, sizes, _ = case
    conflicts = conflicts_of(buckets)
    rounds = few_rounds(buckets, sizes)
    require_valid(rounds, conflicts)
    fewest, least = fewest_and_least(conflicts, sizes)
    count, total = weight(rounds, sizes)
    assert count == fewest
    assert total <= 1.05 * least


@settings(deadline=None, max_examples=40)
@given(cases())
def test_short_rounds_are_within_a_twentieth_of_the_optimum(case):
    buckets, sizes, ready = case
    conflicts = conflicts_of(buckets)
    rounds = short_rounds(buckets, sizes, sizes, ready)
    require_valid(rounds, conflicts)
    found = reduced_seconds(rounds, conflicts, sizes, ready)
    best = least_end(conflicts, sizes, ready)
    assert best <= found <= 1.05 * best


@settings(deadline=None)
@given(cases(most_layers=8, most_shapes=2))
def test_what_an_order_takes_is_what_its_workers_take(case):
    """By stages instead of conflicts: every stage of every shape reduces one bucket at a time."""
    buckets, sizes, ready = case
    rounds = short_rounds(buckets, sizes, sizes, ready)
    free: dict[tuple[int, int], float] = {}
    ends = []
    for index in itertools.chain(*rounds):
        places = [(shape, stage) for shape, stages in enumerate(buckets[index].stages) for stage in stages]
        ends.append(max([ready[index], *(free.get(place, 0) for place in places)]) + sizes[index])
        free.update(dict.fromkeys(places, ends[-1]))
    assert reduced_seconds(rounds, conflicts_of(buckets), sizes, ready) == max(ends)


def test_large_graphs_are_coloured_with_the_fewest_rounds():
    shapes = [tuple((stop, stage) for stage, stop in enumerate(even_cuts(98, length)[1:])) for length in range(3, 15)]
    buckets = buckets_of(shapes, transformer_profile(96, tied=False))
    rounds = few_rounds(buckets, [1 + index % 7 for index in range(len(buckets))])
    require_valid(rounds, conflicts_of(buckets))
    most_on_a_stage = max(
        sum(stage in bucket.stages[shape] for bucket in buckets)
        for shape, stops in enumerate(shapes)
        for stage in range(len(stops))
    )
    assert len(rounds) == most_on_a_stage


@pytest.mark.parametrize("order", [lambda b: few_rounds(b, []), lambda b: short_rounds(b, [], [], [])])
def test_nothing_to_reduce_takes_no_rounds(order):
    assert order([]) == ()
