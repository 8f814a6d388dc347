"""The search against brute force on small problems, and the splits against every split."""

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from estimator.layers import LayerSums
from kintsugi.core.cluster import Cluster
from kintsugi.core.errors import InfeasibleError
from kintsugi.core.job import Ranges
from kintsugi.core.plan import Schedule
from kintsugi.core.profile import LinkCost
from planner.batches import distribute, trim
from planner.knapsack import Knapsack
from planner.partition import CLOSE, Partitioner, WorkerKind
from planner.replan import replan
from tests.builders import layer, profile_of, snapshot_of, uniform_profile
from tests.planner.oracle import best_pipeline_seconds, best_split_seconds

import numpy as np  # isort: skip

FREE_GRADIENTS = {"gradient_bytes": 0, "optimizer_seconds": 0.0}
times = st.floats(0.001, 0.02)
memory = st.sampled_from([80_000_000_000, 3_000_000_000, 2_000_000_000])


def link(delay: float) -> LinkCost:
    return LinkCost(alpha_seconds=delay, beta_seconds_per_byte=0.0)


@settings(deadline=None, max_examples=60)
@given(st.integers(3, 8), st.integers(1, 4), st.integers(1, 10), st.sampled_from([0.0, 0.001, 0.005]), memory)
def test_equal_layers_are_split_best(num_layers, stages, microbatches, delay, memory_bytes):
    assume(stages <= num_layers)
    profile = uniform_profile(num_layers, inter_host=link(delay), memory_bytes=memory_bytes)
    best = best_split_seconds(profile, stages, microbatches)
    partitioner = Partitioner(LayerSums(profile), Schedule.ONE_F_ONE_B, link(delay), 1)
    kinds = [WorkerKind(1.0, memory_bytes)] * stages
    split = partitioner.best(kinds, microbatches, np.zeros(num_layers + 1))
    if split is None:
        assert best == float("inf")
        return
    assert split.pipeline_seconds == pytest.approx(best, rel=1e-9)
    assert partitioner.bound(kinds, microbatches, np.zeros(num_layers + 1)) <= best * (1 + 1e-12)
    row = partitioner.least_seconds(stages, kinds[0], microbatches, np.zeros(num_layers + 1))
    assert row[microbatches - 1] <= best * (1 + 1e-12)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(times, times), min_size=3, max_size=7), st.integers(1, 4), st.integers(1, 8))
def test_bounds_hold_for_unequal_layers(layers, stages, microbatches):
    assume(stages <= len(layers))
    profile = profile_of([layer(f"l{n}", forward_seconds=f, backward_weight_seconds=b) for n, (f, b) in enumerate(layers)])
    best = best_split_seconds(profile, stages, microbatches)
    partitioner = Partitioner(LayerSums(profile), Schedule.ONE_F_ONE_B, profile.network.inter_host, 1)
    kinds, tail = [WorkerKind(1.0, 10**12)] * stages, np.zeros(len(layers) + 1)
    bound = partitioner.bound(kinds, microbatches, tail)
    split = partitioner.best(kinds, microbatches, tail)
    assert partitioner.least_seconds(stages, kinds[0], microbatches, tail)[-1] <= best * (1 + 1e-12)
    assert bound <= best * (1 + 1e-12)
    assert split.pipeline_seconds >= best * (1 - 1e-12)
    if bound == pytest.approx(split.pipeline_seconds, rel=CLOSE):
        assert split.pipeline_seconds <= best * (1 + CLOSE)


@settings(deadline=None, max_examples=25)
@given(st.integers(2, 6), st.integers(2, 6), st.integers(1, 6), st.integers(1, 3), memory)
def test_equal_problems_are_solved_exactly(num_layers, workers, microbatches, dp, memory_bytes):
    assume(dp <= workers and dp <= microbatches)
    profile = uniform_profile(num_layers, memory_bytes=memory_bytes, layer_changes=FREE_GRADIENTS)
    best = best_pipeline_seconds(profile, workers, microbatches, dp)
    snapshot = snapshot_of(profile, Cluster.uniform(workers), microbatches, ranges=Ranges(min_dp=dp, max_dp=dp))
    if best == float("inf"):
        with pytest.raises(InfeasibleError):
            replan(snapshot)
        return
    decision = replan(snapshot)
    assert decision.estimate.pipeline_seconds == pytest.approx(best, rel=1e-9)
    assert decision.search.lower_bound_seconds <= decision.estimate.iteration_seconds * (1 + 1e-12)
    assert decision.search.gap_ratio >= 0


@given(st.lists(st.integers(0, 9), min_size=1, max_size=5), st.integers(1, 3), st.integers(1, 9), st.integers(1, 20))
def test_the_knapsack_agrees_with_enumeration(worth, pipelines, workers, least):
    import itertools

    lengths = Knapsack(np.array(worth), 1, workers).lengths(pipelines, least)
    fitting = [
        combination
        for combination in itertools.combinations_with_replacement(range(1, len(worth) + 1), pipelines)
        if sum(combination) <= workers
        and all(worth[p - 1] > 0 for p in combination)
        and sum(worth[p - 1] for p in combination) >= least
    ]
    if lengths is None:
        assert not fitting
    else:
        assert tuple(sorted(lengths)) in fitting
        assert sum(lengths) == max(map(sum, fitting))


def test_batches():
    assert distribute(2, 6, lambda k, m: m * (1 + k)) == (4, 2)
    assert trim([4, 4], 5, lambda _, m: m) == (3, 2)
