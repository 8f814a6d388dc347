"""Invariants of clusters, and which link joins two workers."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kintsugi.core.cluster import Cluster, HostLink, Worker, host_name, worker_name
from kintsugi.core.profile import LinkCost, Network
from tests.core import samples
from tests.core.refusals import refuses

NEAR = LinkCost(alpha_seconds=1e-6, beta_seconds_per_byte=1e-12)
FAR = LinkCost(alpha_seconds=1e-5, beta_seconds_per_byte=1e-11)
NETWORK = Network(intra_host=NEAR, inter_host=FAR)


def test_names_have_two_or_more_digits():
    assert [worker_name(n) for n in (0, 7, 99, 100)] == ["w00", "w07", "w99", "w100"]
    assert host_name(3) == "h03"


def test_uniform_cluster_fills_hosts_in_order():
    cluster = Cluster.uniform(5, workers_per_host=2)
    assert [(w.id, w.host) for w in cluster.workers] == [
        ("w00", "h00"),
        ("w01", "h00"),
        ("w02", "h01"),
        ("w03", "h01"),
        ("w04", "h02"),
    ]
    assert cluster.hosts == ("h00", "h01", "h02")
    assert cluster.workers_on("h01") == ("w02", "w03")
    assert cluster.workers_on("h99") == ()


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"id": ""}, "id"),
        ({"host": "\n"}, "host"),
        ({"speed_ratio": 0.0}, "speed_ratio"),
        ({"speed_ratio": -0.5}, "speed_ratio"),
        ({"speed_ratio": 1e-300}, "speed_ratio"),
        ({"speed_ratio": float("nan")}, "speed_ratio"),
        ({"memory_bytes": 0}, "memory_bytes"),
        ({"memory_bytes": 80}, "memory_bytes"),
        ({"failure_domains": ("rack0", "")}, "failure_domains[1]"),
        ({"failure_domains": ("rack0", "rack0")}, "failure_domains[1]"),
    ],
)
def test_worker_refuses(changes, field):
    with refuses(field):
        Worker(**{"id": "w00", "host": "h00", **changes})


def test_cluster_refuses_bad_workers_and_links():
    two = Cluster.uniform(2)
    with refuses("workers", [], "at least one"):
        Cluster(name="c", workers=())
    with refuses("workers[1]", "w00", "twice"):
        Cluster(name="c", workers=(two.workers[0], two.workers[0]))
    with refuses("name", ""):
        Cluster(name="", workers=two.workers)
    with refuses("schema_version", 2):
        Cluster(schema_version=2, name="c", workers=two.workers)
    with refuses("links[0].between", "h09", "no host"):
        replace(two, links=(replace(samples.LINK, between=("h00", "h09")),))
    with refuses("links[1].between", fragment="twice"):
        replace(two, links=(samples.LINK, replace(samples.LINK, between=("h01", "h00"))))
    apart = tuple(Worker(id=f"w{n}", host=host) for n, host in enumerate(("a", "b-c", "a-b", "c")))
    links = tuple(replace(samples.LINK, between=between) for between in (("a", "b-c"), ("a-b", "c")))
    assert len(Cluster(name="c", workers=apart, links=links).links) == 2
    with refuses("num_workers", 0):
        Cluster.uniform(0)
    with refuses("workers_per_host", 0):
        Cluster.uniform(1, workers_per_host=0)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"between": ("h00", "h00")}, "between[1]"),
        ({"alpha_seconds": -1}, "alpha_seconds"),
        ({"beta_seconds_per_byte": 1e9}, "beta_seconds_per_byte"),
    ],
)
def test_host_link_refuses(changes, field):
    with refuses(field):
        HostLink(**{"between": ("h00", "h01"), "alpha_seconds": 0, "beta_seconds_per_byte": 0, **changes})


def test_link_is_the_listed_one_in_either_direction_else_the_profiles():
    cluster = replace(Cluster.uniform(6, workers_per_host=2), links=(samples.LINK,))
    assert cluster.link("w00", "w01", NETWORK) is NEAR
    assert cluster.link("w00", "w02", NETWORK) == samples.LINK.cost == cluster.link("w03", "w01", NETWORK)
    assert cluster.link("w00", "w04", NETWORK) is FAR


def test_clusters_are_as_fast_where_links_and_common_workers_are():
    cluster = Cluster.uniform(3)
    slow = cluster.with_workers((*cluster.workers[:2], replace(cluster.workers[2], speed_ratio=0.5)))
    link = HostLink(between=("h00", "h01"), alpha_seconds=1.0, beta_seconds_per_byte=0.0)
    everybody = ("w00", "w01", "w02")
    assert cluster.is_as_fast_as(Cluster.uniform(3), everybody)
    assert not slow.is_as_fast_as(cluster, everybody)
    assert slow.is_as_fast_as(cluster, ("w00", "w01"))
    assert slow.is_as_fast_as(Cluster.uniform(2), everybody)
    assert not replace(cluster, links=(link,)).is_as_fast_as(cluster, everybody)


def test_removing_a_host_drops_its_links():
    cluster = replace(Cluster.uniform(3), links=(samples.LINK,))
    assert cluster.with_workers(cluster.workers[:2]).links == (samples.LINK,)
    assert cluster.with_workers(cluster.workers[1:]).links == ()


@pytest.mark.parametrize(
    ("cluster", "uniform"),
    [
        (Cluster.uniform(4), True),
        (Cluster.uniform(4, workers_per_host=4), True),
        (Cluster.uniform(4, workers_per_host=2), False),
        (replace(Cluster.uniform(2), links=(samples.LINK,)), False),
        (Cluster(name="c", workers=(Worker(id="a", host="x"), Worker(id="b", host="y", speed_ratio=0.5))), False),
        (Cluster(name="c", workers=(Worker(id="a", host="x"), Worker(id="b", host="y", memory_bytes=10**9))), False),
    ],
)
def test_uniform_means_equal_workers_and_equal_links(cluster, uniform):
    assert cluster.is_uniform is uniform


@given(samples.CLUSTERS, st.data())
def test_views_agree_with_the_workers(cluster, data):
    worker = data.draw(st.sampled_from(cluster.workers))
    assert cluster.by_id[worker.id] is worker
    assert cluster.workers[cluster.order[worker.id]] is worker
    assert worker.id in cluster.workers_on(worker.host)
    assert set(cluster.hosts) == {entry.host for entry in cluster.workers}
