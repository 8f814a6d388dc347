"""The search against brute force on small problems, and the splits against every split."""

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from estimator.layers import LayerSums
from kintsugi.core.cluster import Cluster
from kintsugi.core.errors import InfeasibleError
from kintsugi.core.job import Ranges
from kintsugi.core.plan import Schedule
from kintsugi.core.profile import LinkCost
from planner.arranging.knapsack import lengths_worth
from planner.batches import distribute, distribute_alike, exchanged, trim
from planner.pipelines.kinds import WorkerKind
from planner.pipelines.partition import CLOSE, Partitioner
from planner.pipelines.relaxation import least_seconds, relaxed_worth, widest_stages
from planner.pipelines.zero_bubble import partitioner_for
from planner.replan import replan
from tests.builders import FREE, layer, profile_of, snapshot_of, uniform_profile
from tests.planner.oracle import best_pipeline_seconds, best_single_step_seconds, best_split_seconds, splits

import numpy as np  # isort: skip

FREE_GRADIENTS = {"gradient_bytes": 0, "optimizer_seconds": 0.0}
MB = 1_000_000
times = st.floats(0.001, 0.02)
memory = st.sampled_from([80_000_000_000, 3_000_000_000, 2_000_000_000])


def link(delay: float) -> LinkCost:
    return LinkCost(alpha_seconds=delay, beta_seconds_per_byte=0.0)


def outline(profile, stages, schedule=Schedule.ONE_F_ONE_B):
    delay = min(profile.network.inter_host.transfer_seconds(item.output_bytes) for item in profile.layers[:-1])
    kind = WorkerKind(1.0, profile.device.memory_bytes - profile.device.reserved_bytes)
    return Partitioner(LayerSums(profile), schedule, link(delay), 1).outline(kind, range(stages, stages + 1))


@settings(deadline=None, max_examples=60)
@given(st.integers(3, 8), st.integers(1, 4), st.integers(1, 10), st.sampled_from([0.0, 0.001, 0.005]), memory)
def test_equal_layers_are_split_best(num_layers, stages, microbatches, delay, memory_bytes):
    assume(stages <= num_layers)
    profile = uniform_profile(num_layers, inter_host=link(delay), memory_bytes=memory_bytes)
    best = best_split_seconds(profile, stages, microbatches)
    partitioner = Partitioner(LayerSums(profile), Schedule.ONE_F_ONE_B, link(delay), 1)
    kinds = [WorkerKind(1.0, memory_bytes)] * stages
    attained = partitioner.attain(kinds, microbatches, np.zeros(num_layers + 1))
    split = partitioner.best(attained)
    if split is None:
        assert best == float("inf")
        return
    assert split.seconds == pytest.approx(best, rel=1e-9)
    assert attained.seconds <= best * (1 + 1e-12)
    assert least_seconds(outline(profile, stages), stages, microbatches, np.zeros(num_layers + 1)) <= best * (1 + 1e-12)


@settings(deadline=None, max_examples=80)
@given(
    st.lists(st.tuples(times, times), min_size=3, max_size=7),
    st.integers(1, 4),
    st.integers(1, 8),
    st.sampled_from([Schedule.ONE_F_ONE_B, Schedule.EAGER_1F1B, Schedule.GPIPE]),
)
def test_bounds_hold_for_unequal_layers(layers, stages, microbatches, schedule):
    assume(stages <= len(layers))
    profile = profile_of([layer(f"l{n}", forward_seconds=f, backward_weight_seconds=b) for n, (f, b) in enumerate(layers)])
    best = best_split_seconds(profile, stages, microbatches, schedule)
    partitioner = Partitioner(LayerSums(profile), schedule, profile.network.inter_host, 1)
    kinds, tail = [WorkerKind(1.0, 10**12)] * stages, np.zeros(len(layers) + 1)
    attained = partitioner.attain(kinds, microbatches, tail)
    bound, split = attained.seconds, partitioner.best(attained)
    assert least_seconds(outline(profile, stages, schedule), stages, microbatches, tail) <= best * (1 + 1e-12)
    assert bound <= best * (1 + 1e-12)
    assert split.seconds >= best * (1 - 1e-12)
    if bound == pytest.approx(split.seconds, rel=CLOSE):
        assert split.seconds <= best * (1 + CLOSE)


@settings(deadline=None, max_examples=150)
@given(
    st.lists(st.tuples(times, times, st.integers(1, 400)), min_size=3, max_size=8),
    st.integers(2, 5),
    st.integers(1, 9),
    st.integers(400, 2_400),
    st.sampled_from([Schedule.ONE_F_ONE_B, Schedule.EAGER_1F1B, Schedule.GPIPE]),
)
def test_bounds_that_know_of_memory_hold(layers, stages, microbatches, usable, schedule):
    assume(stages <= len(layers))
    sizes = {"parameter_bytes": 0, "gradient_bytes": 0, "optimizer_bytes": 0}
    items = [
        layer(f"l{n}", forward_seconds=f, backward_weight_seconds=b, activation_bytes=a * MB, **sizes)
        for n, (f, b, a) in enumerate(layers)
    ]
    profile = profile_of(items, memory_bytes=usable * MB)
    best = best_split_seconds(profile, stages, microbatches, schedule)
    assert least_seconds(outline(profile, stages, schedule), stages, microbatches, np.zeros(len(layers) + 1)) <= best * (1 + 1e-12)


def test_memory_makes_the_greatest_stage_longer():
    """Of 6 equal layers the first of 3 stages holds one: with 3 micro-batches in flight there is no room for more."""
    sizes = {"parameter_bytes": 0, "gradient_bytes": 0, "optimizer_bytes": 0, "activation_bytes": 100 * MB}
    profile = profile_of([layer(f"l{n}", **sizes) for n in range(6)], memory_bytes=500 * MB)
    known = outline(profile, 3)
    assert known.fitting[3] == pytest.approx(1.5 * known.widest[3])


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.tuples(*(st.integers(0, most) for most in (400, 900, 3_000, 200))), min_size=3, max_size=6),
    st.integers(1, 4),
    st.integers(1, 6),
    st.sampled_from([1_500, 2_200, 3_000]),
)
def test_what_passes_and_updates_take_is_counted(found, stages, microbatches, usable_millions):
    """All splits that fit are found, and none that does not; bytes in millions."""
    assume(stages <= len(found))
    names = ("activation_bytes", "temporary_bytes", "optimizer_temporary_bytes", "entry_bytes")
    amounts = [dict(zip(names, (10**6 * value for value in own), strict=True)) for own in found]
    profile = profile_of([layer(f"l{n}", **own) for n, own in enumerate(amounts)], memory_bytes=10**6 * usable_millions)
    best = best_split_seconds(profile, stages, microbatches)
    partitioner = Partitioner(LayerSums(profile), Schedule.ONE_F_ONE_B, profile.network.inter_host, 1)
    kinds = [WorkerKind(1.0, profile.device.usable_bytes)] * stages
    split = partitioner.best(partitioner.attain(kinds, microbatches, np.zeros(len(found) + 1)))
    assert (split is None) == (best == float("inf"))
    if split is not None:
        assert best * (1 - 1e-12) <= split.seconds <= best * (1 + CLOSE)


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


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(times, times), min_size=2, max_size=6), st.integers(1, 5), st.integers(1, 4))
def test_a_single_pipeline_has_the_shortest_step_with_its_updates(layers, workers, microbatches):
    """Nobody updates before everybody is through, so the largest stage's update counts wherever it is."""
    profile = profile_of([layer(f"l{n}", forward_seconds=f, optimizer_seconds=u) for n, (f, u) in enumerate(layers)])
    best = best_single_step_seconds(profile, workers, microbatches)
    decision = replan(snapshot_of(profile, Cluster.uniform(workers), microbatches, ranges=Ranges(max_dp=1)))
    assert best * (1 - 1e-9) <= decision.estimate.iteration_seconds <= best * (1 + CLOSE)
    assert decision.search.lower_bound_seconds <= best * (1 + 1e-12)


def most_worth(worth, first, workers, pipelines):
    times = lengths_worth(np.array(worth), first, workers, pipelines, 1)
    return int(np.array(worth) @ times) if len(times) else -1


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=5), st.integers(1, 3), st.integers(1, 5), st.integers(1, 20))
def test_the_knapsack_agrees_with_enumeration(worth, first, pipelines, workers):
    assume(pipelines * first <= workers)
    most = most_worth(worth, first, workers, pipelines)
    fitting = {
        combination: sum(worth[length - first] for length in combination)
        for combination in itertools.combinations_with_replacement(range(first, first + len(worth)), pipelines)
        if sum(combination) <= workers and all(worth[length - first] > 0 for length in combination)
    }
    if not fitting:
        assert most < 0
        return
    assert not len(lengths_worth(np.array(worth), first, workers, pipelines, most + 1))
    times = lengths_worth(np.array(worth), first, workers, pipelines, most)
    lengths = tuple(np.repeat(np.arange(first, first + len(worth)), times).tolist())
    assert fitting[lengths] == max(fitting.values()) == most


@given(st.lists(st.integers(0, 60), min_size=2, max_size=13), st.integers(2, 6), st.integers(50, 400), st.data())
@settings(max_examples=50, deadline=None)
def test_the_knapsack_agrees_with_a_table_over_all_workers(worth, first, workers, data):
    pipelines = data.draw(st.integers(1, workers // first))
    table = [[-1] * (workers + 1) for _ in range(pipelines + 1)]
    table[0][0] = 0
    for k in range(pipelines):
        for used, value in enumerate(table[k]):
            for index, gain in enumerate(worth):
                if value >= 0 and gain > 0 and used + first + index <= workers:
                    table[k + 1][used + first + index] = max(table[k + 1][used + first + index], value + gain)
    assert most_worth(worth, first, workers, pipelines) == max(table[pipelines])


@given(st.lists(st.floats(0.001, 1.0), min_size=1, max_size=9))
def test_the_least_greatest_stage(layers):
    prefix = np.cumsum([0.0, *layers])
    widest = widest_stages(prefix)
    for stages in range(1, len(layers) + 1):
        options = [max(prefix[b] - prefix[a] for a, b in itertools.pairwise(cuts)) for cuts in splits(len(layers), stages)]
        assert widest[stages] == pytest.approx(min(options))


@given(st.integers(1, 5), st.integers(1, 6), st.integers(1, 8), st.floats(0.5, 4.0), st.data())
def test_no_multiset_is_worth_more_than_the_relaxation(first, kinds, pipelines, mean, data):
    worth = np.array(data.draw(st.lists(st.integers(0, 30), min_size=kinds, max_size=kinds)))
    workers = int(pipelines * (first + mean))
    exact = most_worth(worth, first, workers, pipelines)
    assert relaxed_worth(worth, first, workers, pipelines) >= exact * (1 - 1e-12) or exact < 0


@pytest.mark.parametrize(
    "schedule", [Schedule.ONE_F_ONE_B, Schedule.EAGER_1F1B, Schedule.GPIPE, Schedule.ZB_H1, Schedule.ZB_H2, Schedule.INTERLEAVED]
)
@pytest.mark.parametrize("seconds", [0.01, 1e-12, 1e-300])
def test_weight_parts_alone_take_time(schedule, seconds):
    """However little: a search that begins at no time at all, and doubles it, would never end."""
    times = {"forward_seconds": 0.0, "backward_input_seconds": 0.0, "optimizer_seconds": 0.0, "backward_weight_seconds": seconds}
    asked = snapshot_of(uniform_profile(4, layer_changes=times, inter_host=FREE), Cluster.uniform(3), 6)
    decision = replan(replace(asked, settings=replace(asked.settings, schedule=schedule)))
    assert 0 < decision.search.lower_bound_seconds <= decision.estimate.iteration_seconds


def test_batches():
    assert distribute(2, 6, lambda k, m: m * (1 + k)) == (4, 2)
    assert trim({(2, 4): 2}, 5, lambda _, m: m) == {(2, 3): 1, (2, 2): 1}


@given(st.dictionaries(st.tuples(st.integers(1, 4), st.integers(1, 9)), st.integers(1, 3), min_size=1), st.data())
def test_trimming_takes_from_the_slowest(caps, data):
    pipelines = [(length, count) for (length, count), times in caps.items() for _ in range(times)]
    total = data.draw(st.integers(len(pipelines), sum(count for _, count in pipelines)))
    groups = trim(caps, total, lambda length, count: count / length)
    assert sum(count * times for (_, count), times in groups.items()) == total
    assert sum(groups.values()) == len(pipelines)
    slowest = max((count / length, length) for length, count in groups)
    best = [list(pipeline) for pipeline in pipelines]
    for _ in range(sum(count for _, count in pipelines) - total):
        max((p for p in best if p[1] > 1), key=lambda p: p[1] / p[0])[1] -= 1
    assert slowest[0] == pytest.approx(max(count / length for length, count in best))


@pytest.mark.parametrize("schedule", [Schedule.ONE_F_ONE_B, Schedule.ZB_H1])
def test_a_partitioner_afresh_finds_what_a_new_one_does_whatever_others_came_upon(schedule):
    profile = profile_of([layer(f"l{n}", forward_seconds=0.01 + 0.003 * (n % 5)) for n in range(16)])
    kinds, tail = [WorkerKind(speed, 10**12) for speed in (1.0, 0.5, 1.0, 0.8, 1.0)], np.linspace(0.0, 0.1, 17)
    asked = LayerSums(profile), schedule, profile.network.inter_host, 1
    used = partitioner_for(schedule)(*asked)
    for count in (40, 20, 9):
        used.best(used.attain(kinds, count, tail))
    new, afresh = partitioner_for(schedule)(*asked), used.afresh()
    for count in (10, 11):
        assert afresh.best(afresh.attain(kinds, count, tail)) == new.best(new.attain(kinds, count, tail))


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 3), st.integers(1, 12)), min_size=1, max_size=4), st.data())
def test_alike_pipelines_get_what_is_dealt_out_one_by_one(kinds, data):
    """To the first of those that are through at once; what fits nobody, to the first of all."""
    alike = data.draw(
        st.lists(st.integers(0, len(kinds) - 1), min_size=len(kinds), max_size=9).map(lambda rest: [*range(len(kinds)), *rest])
    )
    num_microbatches = data.draw(st.integers(len(alike), 60))

    def seconds(kind, count):
        begun, each, most = kinds[kind]
        return begun + each * count if count <= most else math.inf

    groups = [[k for k, kind in enumerate(alike) if kind == one] for one in range(len(kinds))]
    dealt = distribute(len(alike), num_microbatches, lambda k, count: seconds(alike[k], count))
    assert distribute_alike(groups, num_microbatches, seconds, [1] * len(kinds)) == dealt


@given(st.lists(st.lists(st.integers(0, 5), min_size=40, max_size=40), min_size=1, max_size=5), st.data())
@settings(deadline=None)
def test_shares_near_those_dealt_out_one_by_one_come_to_them(steps, data):
    times = [list(itertools.accumulate(own)) for own in steps]
    near = data.draw(st.lists(st.integers(1, 7), min_size=len(steps), max_size=len(steps)))
    asked = []

    def seconds(k, count):
        asked.append((k, count))
        return times[k][count]

    dealt = distribute(len(steps), sum(near), seconds)
    assert exchanged(near, seconds) == dealt
    asked.clear()
    assert exchanged(dealt, seconds) == dealt
    assert len(set(asked)) <= 2 * len(steps)
