"""Decisions for jobs whose replicas share optimizer state."""

from dataclasses import replace

import pytest

from kintsugi.core.cluster import Cluster
from kintsugi.core.errors import StateLostError
from kintsugi.core.job import Ranges
from kintsugi.core.plan import Policy
from kintsugi.core.profile import OptimizerSharding
from planner.replan import replan
from tests.builders import RECOVERY, snapshot_of, uniform_profile

CHECKPOINTS = replace(RECOVERY, checkpoint_interval_seconds=600.0, checkpoint_read_bytes_per_second=1e9)
GRID = Ranges(min_dp=4, max_dp=4, min_pp=2, max_pp=2)
SHARD_BYTES = 400_000_000 // 4


def profile_of(*, copies=1, recovery=CHECKPOINTS, sharding=OptimizerSharding.ZERO1):
    return replace(uniform_profile(8, optimizer_sharding=sharding, recovery=recovery), optimizer_copies=copies)


def decide(profile, policy):
    cluster = Cluster.uniform(8)
    plan = replan(snapshot_of(profile, cluster, 16, ranges=GRID)).plan
    return plan, replan(snapshot_of(profile, cluster, 16, plan=plan, lost=["w03"], policy=policy))


def why(decision):
    return next(other.reason for other in decision.alternatives if other.policy is decision.policy)


@pytest.mark.parametrize("policy", [Policy.DATA_REROUTING, Policy.DYNAMIC_PARALLELISM])
def test_only_the_lost_shards_come_from_the_checkpoint_and_that_is_priced(policy):
    plan, decision = decide(profile_of(), policy)
    lost = plan.layers_of["w03"]
    assert {read.layer for read in decision.migration.from_checkpoint} == set(lost)
    read_bytes = sum(read.num_bytes for read in decision.migration.from_checkpoint)
    assert read_bytes == len(lost) * SHARD_BYTES
    assert decision.migration.makespan_seconds >= read_bytes / 1e9
    regroup = CHECKPOINTS.detect_seconds + CHECKPOINTS.regroup_seconds
    assert decision.estimate.reconfiguration_seconds == pytest.approx(regroup + decision.migration.makespan_seconds)


def test_a_second_copy_moves_between_workers():
    _, decision = decide(profile_of(copies=2, recovery=RECOVERY), Policy.DATA_REROUTING)
    assert decision.migration.from_checkpoint == ()
    assert decision.migration.total_bytes >= 4 * SHARD_BYTES
    assert why(decision).endswith("and shards of optimizer state alone move")


def test_without_copies_and_checkpoints_a_loss_is_lost_state():
    with pytest.raises(StateLostError) as caught:
        decide(profile_of(recovery=RECOVERY), None)
    assert caught.value.layers == (4, 5, 6, 7)


def test_whole_replicas_reroute_without_moving_anything():
    _, decision = decide(profile_of(sharding=OptimizerSharding.NONE), Policy.DATA_REROUTING)
    assert decision.migration.transfers == decision.migration.from_checkpoint == ()
    assert why(decision).endswith("and nothing moves")


def test_copies_take_memory():
    peaks = []
    for copies in (1, 2, 9):
        decision = replan(snapshot_of(profile_of(copies=copies), Cluster.uniform(8), 16, ranges=GRID))
        peaks.append(max(stage.peak_memory_bytes for stage in decision.estimate.stages))
    assert peaks[1] - peaks[0] == 4 * SHARD_BYTES
    assert peaks[2] - peaks[0] == 4 * 3 * SHARD_BYTES
