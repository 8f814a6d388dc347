"""Shards of optimizer state: fewest bytes, from keepers only, and from a checkpoint only what nobody keeps."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kintsugi.core.cluster import Cluster
from kintsugi.core.decision import Migration, StateKind
from kintsugi.core.errors import StateLostError
from kintsugi.core.profile import OptimizerSharding
from restorer.migration import plan_migration
from restorer.shards import shard_needs
from tests.builders import RECOVERY, grid_plan, uniform_profile

WORKERS = [f"w{n:02d}" for n in range(8)]
CHECKPOINTS = replace(RECOVERY, checkpoint_interval_seconds=600.0, checkpoint_read_bytes_per_second=1e8)


def sharded(num_layers, *, copies=1, recovery=CHECKPOINTS):
    profile = uniform_profile(num_layers, optimizer_sharding=OptimizerSharding.ZERO1, recovery=recovery)
    return replace(profile, optimizer_copies=copies)


@st.composite
def groups(draw):
    """Old holders, new ones, survivors and bytes."""
    before = draw(st.lists(st.sampled_from(WORKERS), min_size=1, max_size=6, unique=True))
    after = draw(st.lists(st.sampled_from(WORKERS), min_size=1, max_size=6, unique=True))
    return before, after, draw(st.sets(st.sampled_from(WORKERS))), draw(st.integers(0, 1000))


@settings(deadline=None)
@given(groups())
def test_everybody_gets_an_equal_share_and_survivors_keep_what_they_may(case):
    before, after, survivors, num_bytes = case
    share = [num_bytes // len(before) + (index < num_bytes % len(before)) for index in range(len(before))]
    needs = shard_needs(before, after, survivors, num_bytes, 1)
    for worker in after:
        got = sum(need.num_bytes for need in needs if need.target == worker)
        held = share[before.index(worker)] if worker in before and worker in survivors else 0
        least = num_bytes // len(after)
        assert min(held, least) + got in (least, least + 1)
        assert got == 0 or held <= least
    sent = {worker: sum(need.num_bytes for need in needs if need.sources == (worker,)) for worker in before}
    for worker, num_held in zip(before, share, strict=True):
        assert sent[worker] <= (num_held if worker in survivors else 0)
    lost = sum(size for worker, size in zip(before, share, strict=True) if worker not in survivors)
    assert sum(need.num_bytes for need in needs if not need.sources) == lost


@given(st.permutations(WORKERS[:5]), st.integers(0, 1000), st.integers(1, 3))
def test_nothing_moves_where_the_holders_stay(after, num_bytes, copies):
    assert shard_needs(WORKERS[:5], after, set(WORKERS), num_bytes, copies) == []


@settings(deadline=None)
@given(groups(), st.integers(2, 4))
def test_with_copies_only_what_every_keeper_lost_is_lost(case, copies):
    before, after, survivors, num_bytes = case
    needs = shard_needs(before, after, survivors, num_bytes, copies)
    count = len(before)
    gone = [all(before[(s + c) % count] not in survivors for c in range(min(copies, count))) for s in range(count)]
    assert any(not need.sources for need in needs) <= any(gone)
    for need in needs:
        assert set(need.sources) <= set(before) & survivors - {need.target}


@pytest.mark.parametrize("num_holders", [1, 2])
def test_where_there_are_more_copies_than_holders_these_have_everything_and_get_nothing(num_holders):
    needs = shard_needs(WORKERS[:num_holders], WORKERS[:4], set(WORKERS), 120, 3)
    got = {worker: sum(need.num_bytes for need in needs if need.target == worker) for worker in WORKERS[:4]}
    assert got == {worker: 0 if worker in WORKERS[:num_holders] else 90 for worker in WORKERS[:4]}


def test_a_lost_shard_comes_from_the_checkpoint_and_nothing_else_does():
    plan = grid_plan(2, [1, 1, 1, 1], [1] * 4)
    profile = sharded(2)
    migration = plan_migration(plan, plan, profile, Cluster.uniform(4), {"w00", "w01", "w03"})
    assert {(read.target, read.layer, read.kind, read.num_bytes) for read in migration.from_checkpoint} == {
        ("w02", layer, StateKind.OPTIMIZER, 100_000_000) for layer in (0, 1)
    }
    assert {transfer.kind for transfer in migration.transfers} == {StateKind.PARAMETER}
    assert migration.total_bytes == 2 * 100_000_000
    assert migration.makespan_seconds == migration.lower_bound_seconds == pytest.approx(2.0)


def test_a_second_copy_makes_the_checkpoint_unnecessary():
    plan = grid_plan(2, [1, 1, 1, 1], [1] * 4)
    migration = plan_migration(plan, plan, sharded(2, copies=2, recovery=RECOVERY), Cluster.uniform(4), {"w00", "w01", "w03"})
    assert migration.from_checkpoint == ()
    optimizer = {(t.source, t.target): t.num_bytes for t in migration.transfers if t.kind is StateKind.OPTIMIZER}
    assert set(optimizer) == {("w03", "w02"), ("w01", "w02")}
    assert sum(t.num_bytes for t in migration.transfers if t.kind is StateKind.OPTIMIZER) == 2 * 2 * 100_000_000


def test_without_checkpoints_a_lost_shard_is_lost_state_with_its_layers_named():
    plan = grid_plan(4, [2, 2], [1, 1])
    with pytest.raises(StateLostError) as caught:
        plan_migration(plan, plan, sharded(4, recovery=RECOVERY), Cluster.uniform(4), {"w00", "w01", "w02"})
    assert caught.value.layers == (2, 3)


def test_survivors_that_keep_their_layers_take_over_the_share_of_who_is_gone():
    before, after = grid_plan(3, [1, 1, 1], [1] * 3), grid_plan(3, [1, 1], [1] * 2)
    migration = plan_migration(before, after, sharded(3), Cluster.uniform(3), {"w00", "w01", "w02"})
    assert migration.from_checkpoint == ()
    assert {(t.source, t.kind) for t in migration.transfers} == {("w02", StateKind.OPTIMIZER)}
    assert migration.total_bytes == pytest.approx(3 * 400_000_000 / 3, abs=3)


def test_nobody_reads_a_checkpoint_where_state_is_whole():
    plan = grid_plan(4, [2, 2], [1, 1])
    migration = plan_migration(plan, plan, uniform_profile(4, recovery=CHECKPOINTS), Cluster.uniform(4), {"w00", "w01", "w02"})
    assert migration != Migration()
    assert migration.from_checkpoint == ()
