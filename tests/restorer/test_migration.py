"""Migrations: complete, from holders only."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kintsugi.core.cluster import Cluster
from kintsugi.core.decision import Migration
from kintsugi.core.errors import StateLostError
from kintsugi.core.plan import Plan, Schedule
from kintsugi.core.profile import OptimizerSharding
from restorer.matching import missing_bytes
from restorer.migration import plan_migration, require_state
from restorer.units import StateUnits
from tests.builders import RECOVERY, grid_plan, transformer_profile, uniform_profile
from tests.restorer.moves import renamed

CLUSTER = Cluster.uniform(12)


@settings(deadline=None)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=3), st.lists(st.integers(1, 4), min_size=1, max_size=3), st.booleans())
def test_everybody_gets_what_it_lacks_from_a_survivor_that_holds_it(before, after, tied):
    profile = transformer_profile(4, tied=tied)
    previous, following = grid_plan(6, before, [1] * len(before)), grid_plan(6, after, [1] * len(after))
    survivors = set(previous.workers)
    migration = plan_migration(previous, following, profile, CLUSTER, survivors)
    got = {(transfer.target, transfer.layer) for transfer in migration.transfers}
    for worker, layers in following.layers_of.items():
        held = previous.layers_of[worker] if worker in survivors else ()
        shared = {5} if tied and 0 in layers else set()  # the tied head comes with the embedding
        assert {layer for target, layer in got if target == worker} == set(layers) - set(held) - shared
    for transfer in migration.transfers:
        assert transfer.layer in previous.layers_of[transfer.source]
    assert migration.total_bytes == sum(transfer.num_bytes for transfer in migration.transfers)
    assert migration.lower_bound_seconds <= migration.makespan_seconds * (1 + 1e-12)


@settings(deadline=None)
@given(st.lists(st.integers(1, 3), min_size=1, max_size=3), st.lists(st.integers(1, 3), min_size=1, max_size=3), st.data())
def test_workers_with_several_stages_get_what_they_lack_in_any_of_them(before, after, data):
    profile = uniform_profile(12)
    previous, following = (_staged(lengths, data.draw(st.integers(1, 4))) for lengths in (before, after))
    for kept in (set(previous.workers), set(previous.workers) - {"w00"}):
        if all(set(holders) & kept for holders in previous.holders):
            migration = plan_migration(previous, following, profile, CLUSTER, kept)
            got = {(transfer.target, transfer.layer) for transfer in migration.transfers}
            lacking = {
                (worker, layer)
                for worker, layers in following.layers_of.items()
                for layer in set(layers) - set(previous.layers_of.get(worker, ()) if worker in kept else ())
            }
            assert got == lacking
            assert all(transfer.layer in previous.layers_of[transfer.source] for transfer in migration.transfers)


def _staged(lengths: list[int], num_virtual: int) -> Plan:
    return grid_plan(12, lengths, [1] * len(lengths), schedule=Schedule.INTERLEAVED, stages_per_worker=num_virtual)


def test_moving_to_the_same_plan_moves_nothing():
    plan = grid_plan(8, [4, 4], [4, 4])
    assert plan_migration(plan, plan, uniform_profile(8), CLUSTER, set(plan.workers)) == Migration()


def test_a_worker_without_state_gets_everything_from_its_replica():
    plan = grid_plan(8, [2, 2], [4, 4])
    migration = plan_migration(plan, plan, uniform_profile(8), CLUSTER, {"w01", "w02", "w03"})
    assert {(t.source, t.target) for t in migration.transfers} == {("w02", "w00")}
    assert migration.total_bytes == 4 * 500_000_000


def test_bytes_count_all_devices_of_a_worker_and_time_does_not():
    plan = grid_plan(4, [1, 1], [1, 1])
    one, two = (
        plan_migration(plan, plan, uniform_profile(4, tensor_parallel_degree=degree), CLUSTER, {"w00"}) for degree in (1, 2)
    )
    assert two.total_bytes == 2 * one.total_bytes
    assert two.makespan_seconds == one.makespan_seconds


def test_bytes_from_a_checkpoint_count_all_devices_too_and_come_by_layer_and_worker():
    recovery = replace(RECOVERY, checkpoint_interval_seconds=1.0, checkpoint_read_bytes_per_second=1e9)
    profile = uniform_profile(
        2,
        layer_changes={"optimizer_bytes": 300_000_000},
        optimizer_sharding=OptimizerSharding.ZERO1,
        recovery=recovery,
        tensor_parallel_degree=2,
    )
    plan = grid_plan(2, [1, 1, 1], [1, 1, 1])
    reads = plan_migration(plan, plan, profile, CLUSTER, {"w02"}).from_checkpoint
    assert [(read.layer, read.target) for read in reads] == [(0, "w00"), (0, "w01"), (1, "w00"), (1, "w01")]
    assert {read.num_bytes for read in reads} == {2 * 100_000_000}


def test_sources_share_the_sending():
    previous, following = grid_plan(8, [1, 1], [1, 1]), grid_plan(8, [1, 1, 1, 1], [1, 1, 1, 1])
    migration = plan_migration(previous, following, uniform_profile(8), CLUSTER, {"w00", "w01"})
    sent = {source: sum(t.num_bytes for t in migration.transfers if t.source == source) for source in ("w00", "w01")}
    assert sent["w00"] == sent["w01"]
    assert migration.makespan_seconds == pytest.approx(migration.lower_bound_seconds)


def test_lost_layers_are_named():
    with pytest.raises(StateLostError) as caught:
        require_state(grid_plan(4, [2, 2], [1, 1]), {"w00", "w02"})
    assert caught.value.layers == (2, 3)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**6), st.booleans(), st.booleans())
def test_the_matching_counts_what_the_migration_moves(seed, tied, is_sharded):
    """What a matching costs is what moves: layers, shared weights without their owner, shares of optimizer state."""
    draw = random.Random(seed)
    sharding = OptimizerSharding.ZERO1 if is_sharded else OptimizerSharding.NONE
    recovery = replace(RECOVERY, checkpoint_interval_seconds=1.0, checkpoint_read_bytes_per_second=1e9)
    profile = transformer_profile(4, tied=tied and not is_sharded, optimizer_sharding=sharding, recovery=recovery)
    lengths = [[draw.randint(1, 4) for _ in range(draw.randint(1, 3))] for _ in range(2)]
    before, after = (grid_plan(6, own, [1] * len(own)) for own in lengths)
    names = draw.sample(list(CLUSTER.by_id), len(after.workers))
    after = renamed(after, names)
    survivors = set(before.workers)
    units = StateUnits(profile)
    sizes = units.moving_bytes(before.num_holders, after.num_holders)
    held = [units.held(before.layers_of.get(worker, ())) for worker in names]
    cost = missing_bytes(sizes, held, [units.wanted(after.layers_of[worker]) for worker in names]).trace()
    moved = plan_migration(before, after, profile, CLUSTER, survivors)
    total = moved.total_bytes + sum(read.num_bytes for read in moved.from_checkpoint)
    growth = 0
    if is_sharded:  # who keeps a layer takes over what others held of it, whoever takes which slot
        num_bytes = 400_000_000
        shares = [(-(-num_bytes // after.num_holders[n]), -(-num_bytes // before.num_holders[n])) for n in range(6)]
        growth = sum(max(0, new - old) * after.num_holders[n] for n, (new, old) in enumerate(shares))
    assert total == pytest.approx(cost + growth, abs=50)
