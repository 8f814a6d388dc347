"""Plans for more workers than are looked at one by one, some of them slower or smaller than others."""

import random
from dataclasses import replace

import pytest

from kintsugi.core.cluster import Cluster
from kintsugi.core.job import Ranges
from kintsugi.core.plan import Schedule
from planner.legality import violations
from planner.pipelines.kinds import WorkerKind, levels
from planner.replan import replan
from tests.builders import layer, profile_of, snapshot_of, transformer_profile, uniform_profile

RANGES = Ranges(max_pp=8)


def with_changed(cluster, changes):
    """The cluster with other fields of some workers, by place."""
    return cluster.with_workers(tuple(replace(worker, **changes.get(n, {})) for n, worker in enumerate(cluster.workers)))


def plan_for(profile, cluster, microbatches, ranges=RANGES):
    asked = snapshot_of(profile, cluster, microbatches, ranges=ranges)
    decision = replan(asked)
    assert violations(asked, decision) == ()
    assert decision.search.lower_bound_seconds <= decision.estimate.iteration_seconds
    return decision


def instance(chance):
    """A random job of 18 to 40 workers, up to three of them slow: profile, cluster, places of the slow ones, micro-batches."""
    count = chance.choice([18, 24, 31, 40])
    profile = chance.choice([uniform_profile(12), transformer_profile(12), transformer_profile(22, tied=False)])
    slow = chance.sample(range(count), chance.randint(1, 3))
    speed = chance.choice([0.2, 0.5, 0.8, 0.95])
    cluster = with_changed(Cluster.uniform(count), {n: {"speed_ratio": speed} for n in slow})
    return profile, cluster, slow, count * chance.choice([1, 2, 4])


def test_slow_workers_cost_no_more_than_their_absence_and_no_less_than_if_they_were_fast():
    chance, better = random.Random(5), 0
    for _ in range(24):
        profile, cluster, slow, microbatches = instance(chance)
        step = plan_for(profile, cluster, microbatches).estimate.iteration_seconds
        others = cluster.with_workers(tuple(worker for n, worker in enumerate(cluster.workers) if n not in slow))
        without = plan_for(profile, others, microbatches).estimate.iteration_seconds
        fast = plan_for(profile, Cluster.uniform(len(cluster.workers)), microbatches)
        assert fast.search.lower_bound_seconds * (1 - 1e-9) <= step <= without * (1 + 1e-9)
        better += step < without * 0.999
    assert better >= 8


def test_bounds_hold_for_plans_of_faster_workers():
    chance = random.Random(6)
    for _ in range(8):
        profile, cluster, _, microbatches = instance(chance)
        slowed = with_changed(cluster, {n: {"speed_ratio": worker.speed_ratio * 0.9} for n, worker in enumerate(cluster.workers)})
        bound = plan_for(profile, cluster, microbatches).search.lower_bound_seconds
        assert bound <= plan_for(profile, slowed, microbatches).estimate.iteration_seconds


@pytest.mark.parametrize("speed", [0.1, 0.3, 0.7])
def test_the_bound_is_at_least_the_work_divided_by_all_speeds(speed):
    profile = transformer_profile(22, tied=False)
    cluster = with_changed(Cluster.uniform(128), {n: {"speed_ratio": speed} for n in range(0, 128, 2)})
    work = sum(layer.forward_seconds + layer.backward_seconds for layer in profile.layers) * 128
    assert plan_for(profile, cluster, 128).search.lower_bound_seconds >= work / (64 + 64 * speed) * (1 - 1e-9)


@pytest.mark.parametrize("count", [48, 200])
def test_of_many_workers_that_all_differ_a_little_every_one_is_used(count):
    chance = random.Random(count)
    speeds = [1 - 0.02 * chance.random() for _ in range(count)]
    profile, slowest = uniform_profile(16), min(speeds)
    various = with_changed(Cluster.uniform(count), {n: {"speed_ratio": speed} for n, speed in enumerate(speeds)})
    alike = with_changed(Cluster.uniform(count), {n: {"speed_ratio": slowest} for n in range(count)})
    plan, other = plan_for(profile, various, 2 * count), plan_for(profile, alike, 2 * count)
    assert plan.estimate.iteration_seconds <= other.estimate.iteration_seconds * (1 + 1e-9)
    assert len(plan.plan.workers) >= 0.95 * count


def test_small_workers_are_spread_where_a_pipeline_of_them_alone_would_not_fit():
    layers = {"parameter_bytes": 0, "gradient_bytes": 0, "optimizer_bytes": 10**10}
    profile = uniform_profile(16, layer_changes=layers)  # 7 layers fit one worker, 3 fit a small one: 16 do not fit 4 small ones
    cluster = with_changed(Cluster.uniform(20), {n: {"memory_bytes": 40 * 10**9} for n in range(5)})
    found, roomy = (plan_for(profile, cluster, 40, Ranges(min_dp=5, max_dp=5)) for cluster in (cluster, Cluster.uniform(20)))
    assert found.estimate.iteration_seconds < roomy.estimate.iteration_seconds * 1.1


@pytest.mark.parametrize("memory_bytes", [10**6, 10**9, 3 * 10**9, 40 * 10**9])
@pytest.mark.parametrize("count", [4, 7, 20])
def test_a_small_worker_costs_no_more_than_its_absence(count, memory_bytes):
    profile = transformer_profile(12)
    for microbatches in (count - 1, 2 * count):
        small = with_changed(Cluster.uniform(count), {0: {"memory_bytes": memory_bytes}})
        without = plan_for(profile, small.with_workers(small.workers[1:]), microbatches).estimate.iteration_seconds
        assert plan_for(profile, small, microbatches).estimate.iteration_seconds <= without * (1 + 1e-9)


@pytest.mark.parametrize("schedule", Schedule, ids=lambda item: item.value)
def test_more_memory_on_one_worker_never_lengthens_a_step(schedule):
    profile = transformer_profile(12, memory_bytes=8_000_000_000)
    for count, microbatches in ((5, 4), (8, 8), (11, 12)):
        steps = []
        for memory in ({}, {"memory_bytes": 9_000_000_000}, {"memory_bytes": 24_000_000_000}):
            asked = snapshot_of(profile, with_changed(Cluster.uniform(count), {count // 2: memory}), microbatches, ranges=RANGES)
            steps.append(replan(replace(asked, settings=replace(asked.settings, schedule=schedule))).estimate.iteration_seconds)
        assert max(steps[1:]) <= steps[0] * (1 + 1e-9), (count, microbatches, steps)


def test_levels_are_few_and_never_above_what_they_stand_for():
    chance = random.Random(7)
    kinds = {WorkerKind(chance.uniform(0.2, 1.0), chance.randrange(10**10, 10**11)) for _ in range(300)}
    counted = levels(kinds)
    assert counted.keys() == kinds
    assert all(level.speed_ratio <= kind.speed_ratio and level.usable_bytes <= kind.usable_bytes for kind, level in counted.items())
    assert len({level.speed_ratio for level in counted.values()}) <= 8
    assert len({level.usable_bytes for level in counted.values()}) <= 8
    few = {WorkerKind(1.0, 10), WorkerKind(0.5, 10), WorkerKind(0.5, 20)}
    assert levels(few) == {kind: kind for kind in few}


def fitting(layers, sizes, microbatches, **asked):
    """The plan of a job on workers of these sizes, each alone on its host; it is checked."""
    cluster = with_changed(Cluster.uniform(len(sizes)), {n: {"memory_bytes": size} for n, size in enumerate(sizes)})
    snapshot = snapshot_of(profile_of(layers), cluster, microbatches, ranges=Ranges(min_dp=asked.pop("min_dp", 1)))
    snapshot = replace(snapshot, settings=replace(snapshot.settings, **asked))
    decision = replan(snapshot)
    assert violations(snapshot, decision) == ()
    return decision.plan


def test_a_roomy_worker_holds_the_layers_that_need_it_wherever_they_are():
    large = layer("large", optimizer_bytes=3_000_000_000)
    roomy_last = fitting([*(layer(f"l{n}") for n in range(4)), large], [2_700_000_000, 4_000_000_000], 5)
    assert roomy_last.workers == ("w00", "w01")
    between = fitting([layer("l0"), large, layer("l1")], [1_000_000_000, 4_000_000_000, 1_000_000_000], 4, schedule=Schedule.GPIPE)
    assert [pipeline.stages[1].worker for pipeline in between.pipelines] == ["w01"]


def test_shares_that_do_not_fit_memory_are_not_come_back_to():
    layers = [layer(f"l{n}", activation_bytes=300_000_000) for n in range(4)]
    memory = 4 * 600_000_000 + 2 * 4 * 300_000_000
    cluster = with_changed(Cluster.uniform(2), {0: {"speed_ratio": 0.5}, 1: {"speed_ratio": 0.8}})
    asked = snapshot_of(profile_of(layers, memory_bytes=memory), cluster, 4, ranges=Ranges(min_dp=2))
    asked = replace(asked, settings=replace(asked.settings, schedule=Schedule.GPIPE))
    assert [pipeline.num_microbatches for pipeline in replan(asked).plan.pipelines] == [2, 2]


@pytest.mark.parametrize("sizes", [[3, 1, 1, 1], [1, 1, 3, 1], [4, 2, 2], [6, 4, 1, 1]])
def test_workers_of_little_memory_are_put_together(sizes):
    layers = [layer(f"l{n}", activation_bytes=0, optimizer_bytes=800_000_000) for n in range(sum(sizes) // 2)]
    plan = fitting(layers, [1_100_000_000 * size for size in sizes], 2, min_dp=2)
    assert sorted(pipeline.num_workers for pipeline in plan.pipelines) == [1, len(sizes) - 1]
