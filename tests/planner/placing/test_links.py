"""What rings and paths can hope for of links that differ, against all rings of small clusters."""

import itertools
import random
from dataclasses import replace

import pytest

from estimator.communication import slowest_link
from estimator.costs import Costs
from kintsugi.core.cluster import Cluster, HostLink, Worker
from planner.placing.links import Links
from planner.placing.paths import along_path, sides
from tests.builders import uniform_profile

PROFILE = uniform_profile(4)
NETWORK = PROFILE.network


def link_of(between, factor):
    usual = NETWORK.inter_host
    return HostLink(
        between=between,
        alpha_seconds=usual.alpha_seconds * factor,
        beta_seconds_per_byte=usual.beta_seconds_per_byte * factor,
    )


def racks_of(racks, *, factor=20.0):
    """A worker on each host; links between racks are slower."""
    workers = tuple(Worker(id=f"w{n:02d}", host=f"h{n:02d}") for n in range(len(racks)))
    pairs = itertools.combinations(range(len(racks)), 2)
    links = tuple(link_of((f"h{a:02d}", f"h{b:02d}"), factor) for a, b in pairs if racks[a] != racks[b])
    return Cluster(name="racks", workers=workers, links=links)


def rings_over(workers):
    return ((workers[0], *rest) for rest in itertools.permutations(workers[1:]))


@pytest.mark.parametrize("seed", range(30))
def test_no_ring_is_paced_by_a_faster_link_than_is_hoped_for(seed):
    chance = random.Random(seed)
    num_hosts, per_host = chance.choice([(5, 1), (3, 2), (2, 3)])
    cluster = Cluster.uniform(num_hosts * per_host, workers_per_host=per_host)
    pairs = itertools.combinations(cluster.hosts, 2)
    links = tuple(link_of(pair, chance.choice([0.2, 5.0, 30.0])) for pair in pairs if chance.random() < 0.6)
    costs = Costs(PROFILE, replace(cluster, links=links))
    hoped = Links(tuple(cluster.by_id), costs)
    for size in range(2, len(cluster.workers) + 1):
        for chosen in itertools.combinations(cluster.by_id, size):
            is_apart = len({cluster.by_id[worker].host for worker in chosen}) > 1
            bounds = [hoped.pacing(size), *([hoped.pacing_apart(size)] if is_apart else [])]
            paces = [slowest_link(ring, costs.cluster, NETWORK) for ring in rings_over(chosen)]
            for bound in bounds:
                assert bound.alpha_seconds <= min(pace.alpha_seconds for pace in paces)
                assert bound.beta_seconds_per_byte <= min(pace.beta_seconds_per_byte for pace in paces)


def test_a_ring_that_is_too_large_for_a_rack_is_paced_by_a_link_between_racks():
    cluster = racks_of("aababbb")
    links = Links(tuple(cluster.by_id), Costs(PROFILE, cluster))
    assert [links.pacing_apart(size) for size in (2, 4)] == [NETWORK.inter_host] * 2
    assert links.pacing_apart(5).beta_seconds_per_byte == 20 * NETWORK.inter_host.beta_seconds_per_byte
    assert links.pacing_apart(99) == links.pacing_apart(7)
    fewer = Links(("w00", "w01", "w02", "w04"), Costs(PROFILE, cluster))
    assert fewer.pacing_apart(4).beta_seconds_per_byte == 20 * NETWORK.inter_host.beta_seconds_per_byte


def test_workers_of_one_host_need_no_link_between_hosts():
    cluster = replace(Cluster.uniform(4, workers_per_host=2), links=(link_of(("h00", "h01"), 3.0),))
    links = Links(("w00", "w01"), Costs(PROFILE, cluster))
    assert links.pacing(2) == links.pacing_apart(2) == NETWORK.intra_host


def test_a_path_leaves_a_rack_when_it_has_seen_all_of_it():
    racks = "abcabccbaabc"
    path = along_path(tuple(racks_of(racks).by_id), Costs(PROFILE, racks_of(racks)))
    order = [racks[int(worker[1:])] for worker in path]
    assert sorted(path) == sorted(racks_of(racks).by_id)
    assert len([rack for rack, _ in itertools.groupby(order)]) == 3


def test_the_sides_of_a_path_are_its_racks_and_found_once_however_often_they_are_asked_for():
    racks = "abcabccbaabc"
    costs = Costs(PROFILE, racks_of(racks))
    path = along_path(tuple(racks_of(racks).by_id), costs)
    found = sides(path, costs)
    assert {frozenset(racks[int(worker[1:])] for worker in side) for side in found} == {
        frozenset("a"),
        frozenset("b"),
        frozenset("c"),
    }
    assert [worker for side in found for worker in side] == list(path)
    assert sides(list(path), costs) is found
    assert sides(path[:3], costs) != found


def test_a_path_keeps_hosts_together_and_off_slow_links():
    cluster = Cluster.uniform(12, workers_per_host=3)
    mixed = cluster.with_workers(tuple(cluster.workers[n] for n in (0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11)))
    slow = replace(mixed, links=tuple(link_of(pair, 9.0) for pair in (("h00", "h01"), ("h01", "h02"), ("h02", "h03"))))
    hosts = [slow.by_id[worker].host for worker in along_path(tuple(slow.by_id), Costs(PROFILE, slow))]
    visited = [host for host, _ in itertools.groupby(hosts)]
    assert sorted(visited) == ["h00", "h01", "h02", "h03"]
    network = [slow.host_link(a, b, NETWORK) for a, b in itertools.pairwise(visited)]
    assert network == [NETWORK.inter_host] * 3


def test_a_path_is_the_clusters_own_order_where_that_is_as_good():
    fast = replace(Cluster.uniform(6), links=(link_of(("h02", "h03"), 0.5),))
    assert along_path(tuple(fast.by_id), Costs(PROFILE, fast)) == tuple(fast.by_id)
