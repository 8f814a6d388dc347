"""Shard sizes: the edge paper's binary search and the multi-party paper's divisibility chain."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.sharding.exact import assign_shards
from planner.sharding.greedy import scan_greedy
from planner.sharding.sizing import divisibility_chain, search_shard_size, solve_along_chain
from tests.core.refusals import refuses
from tests.planner.sharding.samples import neighbor, problems, three_neighbors

LAYERS = st.lists(st.integers(1, 60), min_size=1, max_size=6)


def published_search(layer_bytes, neighbors):
    """Algorithm 1 of the edge paper, the state cut as a whole, with Algorithm 2 in place; returns sizes as tried, and the best."""
    low, high, best, tried = min(layer_bytes), max(layer_bytes), (float("inf"), None), []
    while low <= high:
        size = (low + high) // 2
        tried.append(size)
        load = [n.propagation_seconds + n.ready_seconds for n in neighbors]
        done = [0.0] * len(load)
        for _ in range(-(-sum(layer_bytes) // size)):
            u = min(range(len(load)), key=lambda u: load[u] + size * neighbors[u].beta_seconds_per_byte)
            load[u] += size * neighbors[u].beta_seconds_per_byte
            done[u] = load[u]
        if max(done) < best[0]:
            best, high = (max(done), size), size - 1
        else:
            low = size + 1
    return tried, best[1]


@settings(deadline=None)
@given(LAYERS, problems(times=st.integers(0, 5).map(float)))
def test_search_tries_the_published_sizes(layer_bytes, problem):
    tried = []

    def noting(sized):
        tried.append(sized.shard_bytes)
        return scan_greedy(sized)

    found = search_shard_size(layer_bytes, problem.neighbors, solve=noting)
    assert (tried, found.shard_bytes) == published_search(layer_bytes, problem.neighbors)


@settings(deadline=None)
@given(LAYERS, problems())
def test_search_finds_the_same_with_the_closed_form(layer_bytes, problem):
    by_loop = search_shard_size(layer_bytes, problem.neighbors)
    assert search_shard_size(layer_bytes, problem.neighbors, solve=assign_shards) == by_loop
    assert by_loop.problem.num_shards * by_loop.shard_bytes >= sum(layer_bytes)
    assert min(layer_bytes) <= by_loop.shard_bytes <= max(layer_bytes)


@settings(deadline=None)
@given(LAYERS, problems(max_minimum=2))
def test_makespan_never_falls_along_the_chain(layer_bytes, problem):
    solved = solve_along_chain(layer_bytes, problem.neighbors, min_shards_per_neighbor=problem.min_shards_per_neighbor)
    makespans = [sized.assignment.makespan_seconds for sized in solved]
    assert makespans == sorted(makespans)
    assert all(sized.problem.num_shards * sized.shard_bytes == sum(layer_bytes) for sized in solved)


@settings(deadline=None)
@given(LAYERS, st.integers(0, 8))
def test_chain_doubles_and_divides(layer_bytes, min_shards):
    chain = divisibility_chain(layer_bytes, min_shards)
    total = sum(layer_bytes)
    assert all(total % size == 0 and total // size >= min_shards for size in chain)
    assert all(b == 2 * a for a, b in itertools.pairwise(chain))
    if chain and 2 * chain[-1] <= total and total % (2 * chain[-1]) == 0:
        assert total // (2 * chain[-1]) < min_shards


def test_atomic_size_is_the_smallest_tensor_where_it_divides():
    assert divisibility_chain([8, 32, 24], 1) == (8, 16, 32, 64)
    assert divisibility_chain([8, 12], 1) == (4,)
    assert divisibility_chain([8, 32, 24], 3) == (8, 16)
    assert divisibility_chain([3, 5], 9) == ()


def test_too_few_atomic_shards_give_no_assignment():
    assert solve_along_chain([4], three_neighbors()) == ()
    assert len(solve_along_chain([4], (neighbor("a", 1.0),))) == 1


@pytest.mark.parametrize(("layer_bytes", "field"), [([], "layer_bytes"), ([4, 0], "layer_bytes[1]"), ([-1], "layer_bytes[0]")])
def test_layers_without_bytes_are_refused(layer_bytes, field):
    for function in (search_shard_size, solve_along_chain):
        with refuses(field):
            function(layer_bytes, three_neighbors())
