"""The price of a plan: against the replay of its program, the formulas, and metamorphic properties."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimator.costs import Costs
from estimator.estimate import estimate
from estimator.program import compile_program
from estimator.replay import replay
from kintsugi.core.cluster import Cluster
from kintsugi.core.plan import Schedule
from kintsugi.core.profile import OptimizerSharding
from restorer.rounds import colour_rounds
from tests.builders import FREE, grid_plan, transformer_profile, uniform_profile


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(1, 7)), min_size=1, max_size=4),
    st.sampled_from([Schedule.ONE_F_ONE_B, Schedule.EAGER_1F1B, Schedule.GPIPE, Schedule.ZB_H1, Schedule.ZB_H2]),
    st.integers(1, 3),
    st.sampled_from([1.0, 0.5]),
)
def test_the_recurrence_equals_the_replay(pipelines, schedule, workers_per_host, speed):
    profile = transformer_profile(6)
    lengths, microbatches = zip(*pipelines, strict=True)
    cluster = Cluster.uniform(sum(lengths), workers_per_host=workers_per_host)
    slow = (replace(cluster.workers[0], speed_ratio=speed), *cluster.workers[1:])
    cluster = cluster.with_workers(slow)
    plan = grid_plan(8, lengths, microbatches, schedule=schedule)
    plan = replace(plan, rounds=colour_rounds(plan, profile))
    replayed = replay(compile_program(plan, profile, cluster), Costs(profile, cluster))
    price = estimate(plan, profile, cluster)
    assert price.pipeline_seconds == pytest.approx(replayed.pipeline_seconds, rel=1e-12)
    assert price.iteration_seconds == pytest.approx(replayed.iteration_seconds, rel=1e-12)


def test_the_parts_add_up():
    profile = uniform_profile(8, inter_host=FREE, layer_changes={"optimizer_seconds": 0.25})
    plan = grid_plan(8, [4, 4], [8, 8])
    price = estimate(plan, profile, Cluster.uniform(8), reconfiguration_seconds=2.0, mtbf_seconds=100.0)
    assert price.pipeline_seconds == pytest.approx((4 + 8 - 1) * 2 * 0.030)
    assert price.reduce_seconds == 0.0
    assert price.iteration_seconds == pytest.approx(price.pipeline_seconds + 2 * 0.25)
    assert price.throughput_samples_per_second == pytest.approx(16 * 2 / price.iteration_seconds)
    assert price.goodput_samples_per_second == pytest.approx(price.throughput_samples_per_second * 0.98)
    assert price.bubble_ratio == pytest.approx(1 - 8 / 11)


@pytest.mark.parametrize(("added", "beyond"), [(0.05, 0.2), (0.25, 0.0), (0.3, 0.0)])
def test_a_step_adds_to_gradients_once_less_than_it_has_microbatches(added, beyond):
    """Where an update takes less than adding does, nothing is taken off the passes."""
    times = {"optimizer_seconds": 0.25, "accumulation_seconds": added}
    profile = uniform_profile(8, inter_host=FREE, layer_changes=times)
    price = estimate(grid_plan(8, [4, 4], [8, 8]), profile, Cluster.uniform(8))
    assert price.iteration_seconds == pytest.approx(price.pipeline_seconds + 2 * beyond)


def test_memory_counts_the_microbatches_in_flight():
    price = estimate(grid_plan(8, [4], [2]), uniform_profile(8), Cluster.uniform(4))
    assert [stage.num_in_flight for stage in price.stages] == [2, 2, 2, 1]
    assert [stage.peak_memory_bytes for stage in price.stages] == [
        2 * (600_000_000 + 2 * 50_000_000),
        2 * (600_000_000 + 2 * 50_000_000),
        2 * (600_000_000 + 2 * 50_000_000),
        2 * (600_000_000 + 50_000_000),
    ]


def test_zero1_divides_the_optimizer_state():
    plan = grid_plan(4, [2, 2], [1, 1])
    whole = estimate(plan, uniform_profile(4), Cluster.uniform(4)).stages[0].peak_memory_bytes
    shared = estimate(plan, uniform_profile(4, optimizer_sharding=OptimizerSharding.ZERO1), Cluster.uniform(4))
    assert whole - shared.stages[0].peak_memory_bytes == 2 * 200_000_000


def test_a_stage_with_the_tied_head_alone_holds_the_shared_weights():
    profile = transformer_profile(2)
    price = estimate(grid_plan(4, [4], [1]), profile, Cluster.uniform(4))
    assert price.stages[3].peak_memory_bytes == 600_000_000 + 50_000_000
