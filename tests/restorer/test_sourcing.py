"""Who sends what: against the linear program, carried out event by event, and where it can be seen by eye."""

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest

from kintsugi.core.cluster import Cluster, HostLink
from kintsugi.core.errors import StateLostError
from kintsugi.core.profile import LinkCost
from restorer.balance import water_level
from restorer.cutting import Knife, cut
from restorer.makespan import makespan_seconds
from restorer.migration import plan_migration
from restorer.needs import needs_of
from tests.builders import grid_plan, uniform_profile
from tests.restorer.moves import best_seconds, last_arrival, overloads, random_case

CASES = range(120)
LINK = LinkCost(alpha_seconds=1e-5, beta_seconds_per_byte=1e-9)


def fast_receivers(num_layers, inter_host=LINK, **changes):
    """Links of 1 GB/s to hosts that take in as much as comes."""
    profile = uniform_profile(num_layers, inter_host=inter_host, **changes)
    return replace(profile, network=replace(profile.network, host_ingress_bytes_per_second=1e12))


PROFILE_8 = fast_receivers(8)


def migrations():
    """Random cases in which something moves, with what was lacking."""
    for seed in CASES:
        before, after, profile, cluster, survivors = random_case(seed)
        try:
            needs = needs_of(before, after, profile, survivors)
        except StateLostError:
            continue
        if needs:
            yield needs, plan_migration(before, after, profile, cluster, survivors), profile, cluster


def test_the_plan_is_within_a_twentieth_of_its_bound_and_the_bound_within_the_linear_program():
    for needs, migration, profile, cluster in migrations():
        best = best_seconds(needs, profile, cluster)
        assert migration.makespan_seconds <= 1.05 * migration.lower_bound_seconds
        assert migration.makespan_seconds >= best * (1 - 1e-6)
        assert migration.makespan_seconds <= 1.05 * best


def test_no_bound_is_above_what_any_sharing_reaches():
    """The bound counts what the program leaves out, a latency for each piece; without latencies the program is exact."""
    for seed in CASES:
        before, after, profile, cluster, survivors = random_case(seed)
        network = profile.network
        free = {name: replace(getattr(network, name), alpha_seconds=0.0) for name in ("intra_host", "inter_host")}
        profile = replace(profile, network=replace(network, **free))
        cluster = replace(cluster, links=tuple(replace(link, alpha_seconds=0.0) for link in cluster.links))
        try:
            needs = needs_of(before, after, profile, survivors)
        except StateLostError:
            continue
        if needs:
            migration = plan_migration(before, after, profile, cluster, survivors)
            assert migration.lower_bound_seconds <= best_seconds(needs, profile, cluster) * (1 + 1e-6)


def test_everybody_gets_every_byte_and_sources_have_it():
    for needs, migration, profile, _ in migrations():
        wanted = {(need.target, need.layer, need.kind): need for need in needs}
        got = defaultdict(int)
        for transfer in migration.transfers:
            key = transfer.target, transfer.layer, transfer.kind
            assert transfer.num_bytes > 0
            assert transfer.source in wanted[key].sources
            got[key] += transfer.num_bytes
        assert got == {key: need.device_bytes * profile.tensor_parallel_degree for key, need in wanted.items()}


def test_few_cuts():
    """No more pieces than needs and, for every source, one."""
    for needs, migration, _, cluster in migrations():
        assert len(migration.transfers) <= len(needs) + 3 * len(cluster.workers)


def test_the_makespan_is_reached():
    for _, migration, profile, cluster in migrations():
        assert not overloads(migration.transfers, migration.makespan_seconds, profile, cluster)
        shorter = migration.makespan_seconds * (1 - 1e-6)
        assert overloads(migration.transfers, shorter, profile, cluster)


def test_whole_messages_in_any_order_reach_it_where_receivers_are_fast():
    before, after = grid_plan(8, [2, 2, 2], [1] * 3), grid_plan(8, [3, 3], [1] * 2)
    cluster = Cluster.uniform(6)
    migration = plan_migration(before, after, PROFILE_8, cluster, set(before.workers) - {"w01"})
    for transfers in (migration.transfers, migration.transfers[::-1]):
        assert last_arrival(transfers, PROFILE_8, cluster) == pytest.approx(migration.makespan_seconds)


def test_hosts_share_their_limits_between_sources():
    profile = uniform_profile(4, inter_host=LINK)
    network = replace(profile.network, host_egress_bytes_per_second=1.2e9, host_ingress_bytes_per_second=1.5e9)
    profile = replace(profile, network=network)
    before = grid_plan(4, [1, 1, 1, 1], [1] * 4)
    cluster = Cluster.uniform(4, workers_per_host=2)
    migration = plan_migration(before, before, profile, cluster, {"w02", "w03"})
    assert not overloads(migration.transfers, migration.makespan_seconds, profile, cluster)
    assert migration.makespan_seconds == makespan_seconds(migration.transfers, profile, cluster)
    assert migration.makespan_seconds >= 4e9 / 1.2e9


def test_two_sources_take_half_the_time_of_one():
    profile, cluster = fast_receivers(4), Cluster.uniform(3)
    before, after = grid_plan(4, [1, 1, 1], [1] * 3), grid_plan(4, [1], [1])
    one, two = (plan_migration(before, after, profile, cluster, alive) for alive in ({"w01"}, {"w01", "w02"}))
    assert one.makespan_seconds / two.makespan_seconds == pytest.approx(2.0, rel=1e-4)


def test_one_source_suffices_where_the_receiver_is_no_faster():
    plan, cluster = grid_plan(4, [1, 1, 1, 1], [1] * 4), Cluster.uniform(4)
    migration = plan_migration(plan, plan, uniform_profile(4, inter_host=LINK), cluster, {"w01", "w02", "w03"})
    assert len(migration.transfers) <= 8 + 2
    assert migration.makespan_seconds == pytest.approx(2.0, rel=1e-3)
    assert migration.makespan_seconds <= migration.lower_bound_seconds * (1 + 1e-3)


def test_a_faster_link_brings_more():
    links = (HostLink(between=("h00", "h01"), alpha_seconds=0.0, beta_seconds_per_byte=0.25e-9),)
    cluster = replace(Cluster.uniform(3), links=links)
    plan = grid_plan(4, [1, 1, 1], [1] * 3)
    migration = plan_migration(plan, plan, fast_receivers(4), cluster, {"w01", "w02"})
    assert sum(t.num_bytes for t in migration.transfers if t.source == "w01") == pytest.approx(0.8 * 2e9, rel=1e-3)
    assert migration.makespan_seconds == pytest.approx(0.4, rel=1e-3)


@pytest.mark.parametrize(("num_bytes", "num_sources"), [(10_000, 1), (19_999, 1), (20_001, 2), (45_000, 4)])
def test_nothing_is_cut_where_latency_dominates(num_bytes, num_sources):
    """A link of 10 us and 1 GB/s sends 10 kB in the time that it takes to announce them."""
    profile = fast_receivers(1, layer_changes={"parameter_bytes": num_bytes, "optimizer_bytes": 0})
    plan = grid_plan(1, [1] * 9, [1] * 9)
    survivors = set(plan.workers) - {"w00"}
    migration = plan_migration(plan, plan, profile, Cluster.uniform(9), survivors)
    assert len(migration.transfers) == num_sources
    assert migration.makespan_seconds == pytest.approx(migration.lower_bound_seconds, rel=1e-4)


def test_links_without_cost_need_no_cutting():
    free = LinkCost(alpha_seconds=0.0, beta_seconds_per_byte=0.0)
    plan = grid_plan(2, [1] * 3, [1] * 3)
    migration = plan_migration(plan, plan, uniform_profile(2, inter_host=free), Cluster.uniform(3), {"w01", "w02"})
    assert migration.makespan_seconds == migration.lower_bound_seconds == 0.0
    assert migration.total_bytes == 2 * 500_000_000


def test_a_latency_next_to_none_is_as_good_as_none():
    plan = grid_plan(2, [1] * 3, [1] * 3)
    shortest, none = (
        plan_migration(plan, plan, fast_receivers(2, inter_host=link), Cluster.uniform(3), {"w01", "w02"})
        for link in (replace(LINK, alpha_seconds=alpha) for alpha in (1e-320, 0.0))
    )
    assert shortest == none


def test_cutting_fills_bins_and_leaves_no_crumbs():
    parts = list(cut([("a", 10), ("b", 10), ("c", 3)], [8.0, 8.0, 7.0], Knife(least_bytes=2)))
    assert [(part.bin, part.item, part.num_bytes) for part in parts] == [
        (0, "a", 8),
        (1, "a", 2),
        (1, "b", 6),
        (2, "b", 4),
        (2, "c", 3),
    ]
    whole = list(cut([("a", 3), ("b", 3), ("c", 3)], [4.5, 4.5], Knife(least_bytes=2)))
    assert [(part.bin, part.item, part.num_bytes) for part in whole] == [(0, "a", 3), (0, "b", 3), (1, "c", 3)]


def test_water_level():
    assert water_level(np.array([0.0, 2.0, 9.0]), np.array([1.0, 2.0, 1.0]), 8.0) == pytest.approx(4.0)
    assert water_level(np.array([1.0, 3.0]), np.array([0.0, 2.0]), 4.0) == pytest.approx(5.0)
