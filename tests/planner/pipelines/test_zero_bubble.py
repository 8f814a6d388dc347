"""Plans under ZB-H1 and ZB-H2: proven bounds, memory, and the choice among schedules."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from estimator.layers import LayerSums
from estimator.schedule import Pass, order
from estimator.split import scheduled_times
from kintsugi.core.cluster import Cluster, Worker
from kintsugi.core.job import Ranges
from kintsugi.core.plan import Policy, Schedule
from kintsugi.core.profile import LinkCost
from planner.pipelines.bounds import late_weights
from planner.pipelines.kinds import WorkerKind
from planner.pipelines.zero_bubble import ZeroBubblePartitioner
from planner.replan import replan
from tests.builders import FREE, layer, profile_of, snapshot_of, transformer_profile, uniform_profile
from tests.planner.oracle import splits

times = st.sampled_from([0.0, 0.002, 0.005, 0.011])
ZERO_BUBBLE = (Schedule.ZB_H1, Schedule.ZB_H2)


def decide(profile, cluster, microbatches, schedule, **changes):
    snapshot = snapshot_of(profile, cluster, microbatches, **changes)
    return replan(replace(snapshot, settings=replace(snapshot.settings, schedule=schedule)))


@given(
    st.lists(st.tuples(times, times, times), min_size=2, max_size=6),
    st.integers(1, 4),
    st.integers(1, 11),
    st.sampled_from(ZERO_BUBBLE),
)
@settings(max_examples=160, deadline=None)
def test_bounds_hold_and_splits_are_priced_as_they_run(layers, num_stages, microbatches, schedule):
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
        return scheduled_times(schedule, stages, delays, microbatches).pipeline_seconds

    best = min(map(seconds, splits(len(layers), num_stages)))
    partitioner = ZeroBubblePartitioner(sums, schedule, link, 1)
    kinds, tail = [WorkerKind(1.0, 10**12)] * num_stages, np.zeros(len(layers) + 1)
    attained = partitioner.attain(kinds, microbatches, tail)
    split = partitioner.best(attained)
    assert attained.seconds <= best * (1 + 1e-12)
    assert split.seconds == pytest.approx(seconds(split.cuts), rel=1e-12)


@pytest.mark.parametrize("schedule", ZERO_BUBBLE)
@pytest.mark.parametrize(("num_stages", "microbatches"), [(1, 3), (3, 1), (3, 4), (4, 3), (4, 7), (4, 12)])
def test_bounds_know_how_many_weight_parts_follow_the_last_input_part(schedule, num_stages, microbatches):
    profile = uniform_profile(num_stages)
    partitioner = ZeroBubblePartitioner(LayerSums(profile), schedule, profile.network.inter_host, 1)
    chain = partitioner.attain([WorkerKind(1.0, 10**12)] * num_stages, microbatches, np.zeros(num_stages + 1)).chain
    for stage in range(1, num_stages):
        kinds = [step.kind for step in order(schedule, stage, num_stages, microbatches)]
        assert late_weights(chain, stage) == kinds[::-1].index(Pass.BACKWARD_INPUT)
    assert late_weights(chain, 0) == 1


@given(
    st.integers(2, 8),
    st.integers(2, 6),
    st.integers(1, 12),
    st.sampled_from([80_000_000_000, 2_600_000_000]),
    st.sampled_from(ZERO_BUBBLE),
)
@settings(max_examples=80, deadline=None)
def test_plans_keep_their_promises(num_workers, num_layers, microbatches, memory_bytes, schedule):
    profile = uniform_profile(num_layers, memory_bytes=memory_bytes)
    ranges = Ranges(max_dp=min(2, microbatches), min_pp=2, max_pp=min(4, num_layers))
    decision = decide(profile, Cluster.uniform(num_workers), microbatches, schedule, ranges=ranges)
    assert decision.plan.schedule is schedule
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
        for schedule in (Schedule.ONE_F_ONE_B, Schedule.GPIPE, *ZERO_BUBBLE, Schedule.AUTO)
    }
    assert goodput[Schedule.AUTO] == max(goodput.values())
    assert goodput[Schedule.ZB_H1] > goodput[Schedule.ONE_F_ONE_B]


@pytest.mark.parametrize(("memory_bytes", "expected"), [(950_000_000, Schedule.ZB_H2), (949_999_999, Schedule.ZB_H1)])
def test_messages_are_hidden_where_every_stage_has_memory_for_more_in_flight(memory_bytes, expected):
    """Seven micro-batches of 50 MB beside 600 MB. Under eager 1F1B, which takes longer, later stages would need less."""
    profile = uniform_profile(4, inter_host=LinkCost(alpha_seconds=0.005, beta_seconds_per_byte=0.0), memory_bytes=memory_bytes)
    decision = decide(profile, Cluster.uniform(4), 12, Schedule.AUTO, ranges=Ranges(min_pp=4, max_pp=4, max_dp=1))
    assert decision.plan.schedule is expected
    bubble = {Schedule.ZB_H2: 0.010 + 0.005, Schedule.ZB_H1: 0.010 + 4 * 0.005}
    assert decision.estimate.pipeline_seconds == pytest.approx(12 * 0.030 + 3 * bubble[expected])


@pytest.mark.parametrize("schedule", ZERO_BUBBLE)
def test_unequal_workers_are_planned_for_too(schedule):
    workers = tuple(Worker(id=f"w{n:02d}", host=f"h{n}", speed_ratio=1.0 if n % 2 else 0.5) for n in range(6))
    ranges = Ranges(min_pp=2)
    decision = decide(uniform_profile(6), Cluster(name="mixed", workers=workers), 9, schedule, ranges=ranges)
    assert decision.search.lower_bound_seconds <= decision.estimate.iteration_seconds
