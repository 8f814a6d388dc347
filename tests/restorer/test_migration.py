"""Migrations: complete, from holders only."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kintsugi.core.cluster import Cluster
from kintsugi.core.decision import Migration
from kintsugi.core.errors import StateLostError
from restorer.migration import plan_migration, require_state
from tests.builders import grid_plan, transformer_profile, uniform_profile

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
