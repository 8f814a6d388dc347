"""Plans under ZB-H1: proven bounds, memory, and the choice among schedules."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from estimator.layers import LayerSums
from estimator.split import scheduled_times
from kintsugi.core.cluster import Cluster, Worker
from kintsugi.core.job import Ranges
from kintsugi.core.plan import Policy, Schedule
from planner.pipelines.kinds import WorkerKind
from planner.pipelines.zero_bubble import ZeroBubblePartitioner
from planner.replan import replan
from tests.builders import FREE, layer, profile_of, snapshot_of, transformer_profile, uniform_profile
from tests.planner.oracle import splits

times = st.sampled_from([0.0, 0.002, 0.005, 0.011])


def decide(profile, cluster, microbatches, schedule, **changes):
    snapshot = snapshot_of(profile, cluster, microbatches, **changes)
    return replan(replace(snapshot, settings=replace(snapshot.settings, schedule=schedule)))


@given(st.lists(st.tuples(times, times, times), min_size=2, max_size=6), st.integers(1, 4), st.integers(1, 8))
@settings(max_examples=80, deadline=None)
def test_bounds_hold_and_splits_are_priced_as_they_run(layers, num_stages, microbatches):
    assume(num_stages <= len(layers))
    profile = profile_of(
        [
            layer(f"l{n}", forward_seconds=0.001 + f, backward_input_seconds=i, backward_weight_seconds=w)
            for n, (f, i, w) in enumerate(layers)
        ]
    )
    sums, link = LayerSums(profile), profile.network.inter_host

    def seconds(cuts) -> float:
        stages = [sums.times(a, b) for a, b in itertools.pairwise(cuts)]
        delays = [link.transfer_seconds(profile.layers[cut - 1].output_bytes) for cut in cuts[1:-1]]
        return scheduled_times(Schedule.ZB_H1, stages, delays, microbatches).pipeline_seconds

    best = min(map(seconds, splits(len(layers), num_stages)))
    partitioner = ZeroBubblePartitioner(sums, Schedule.ZB_H1, link, 1)
    kinds, tail = [WorkerKind(1.0, 10**12)] * num_stages, np.zeros(len(layers) + 1)
    attained = partitioner.attain(kinds, microbatches, tail)
    split = partitioner.best(attained)
    assert attained.seconds <= best * (1 + 1e-12)
    assert split.seconds == pytest.approx(seconds(split.cuts), rel=1e-12)


@given(st.integers(2, 8), st.integers(2, 6), st.integers(1, 12), st.sampled_from([80_000_000_000, 2_600_000_000]))
@settings(max_examples=40, deadline=None)
def test_plans_keep_their_promises(num_workers, num_layers, microbatches, memory_bytes):
    profile = uniform_profile(num_layers, memory_bytes=memory_bytes)
    ranges = Ranges(max_dp=min(2, microbatches), min_pp=2, max_pp=min(4, num_layers))
    decision = decide(profile, Cluster.uniform(num_workers), microbatches, Schedule.ZB_H1, ranges=ranges)
    assert decision.plan.schedule is Schedule.ZB_H1
    assert decision.search.lower_bound_seconds <= decision.estimate.iteration_seconds
    assert all(stage.peak_memory_bytes <= memory_bytes for stage in decision.estimate.stages)


@pytest.mark.parametrize("dp", [1, 2])
def test_a_grid_is_faster_than_under_1f1b_by_two_thirds_of_its_bubbles(dp):
    profile = uniform_profile(8, inter_host=FREE, intra_host=FREE)
    ranges = Ranges(min_dp=dp, max_dp=dp, min_pp=4, max_pp=4)
    seconds = {
        schedule: decide(profile, Cluster.uniform(4 * dp), 8 * dp, schedule, ranges=ranges).estimate.pipeline_seconds
        for schedule in (Schedule.ONE_F_ONE_B, Schedule.ZB_H1)
    }
    work = 8 * 2 * 0.030
    assert seconds[Schedule.ZB_H1] - work == pytest.approx((seconds[Schedule.ONE_F_ONE_B] - work) / 3)


@pytest.mark.parametrize("lost", [[], ["w02"], ["w01", "w06"]])
def test_auto_takes_the_best_schedule_there_is(lost):
    profile, cluster = transformer_profile(6), Cluster.uniform(8)
    ranges = Ranges(min_dp=2, max_dp=2, min_pp=2, max_pp=4)
    plan = decide(profile, cluster, 12, Schedule.ONE_F_ONE_B, ranges=ranges).plan
    changes = {"ranges": ranges, "plan": plan, "lost": lost, "policy": Policy.DYNAMIC_PARALLELISM} if lost else {"ranges": ranges}
    goodput = {
        schedule: decide(profile, cluster, 12, schedule, **changes).estimate.goodput_samples_per_second
        for schedule in (Schedule.ONE_F_ONE_B, Schedule.GPIPE, Schedule.ZB_H1, Schedule.AUTO)
    }
    assert goodput[Schedule.AUTO] == max(goodput.values())
    assert goodput[Schedule.ZB_H1] > goodput[Schedule.ONE_F_ONE_B]


def test_unequal_workers_are_planned_for_too():
    workers = tuple(Worker(id=f"w{n:02d}", host=f"h{n}", speed_ratio=1.0 if n % 2 else 0.5) for n in range(6))
    ranges = Ranges(min_pp=2)
    decision = decide(uniform_profile(6), Cluster(name="mixed", workers=workers), 9, Schedule.ZB_H1, ranges=ranges)
    assert decision.search.lower_bound_seconds <= decision.estimate.iteration_seconds
