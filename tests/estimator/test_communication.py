"""Alpha-beta costs against their formulas."""

import pytest

from estimator.communication import ring_all_reduce_seconds, slowest_link
from kintsugi.core.cluster import Cluster, HostLink
from kintsugi.core.profile import LinkCost, Network
from tests.builders import ETHERNET, FAST

LINK = LinkCost(alpha_seconds=0.001, beta_seconds_per_byte=1e-9)


def test_a_ring_takes_two_rounds_of_parts():
    assert ring_all_reduce_seconds(LINK, 4, 4e6) == pytest.approx(2 * 3 * 0.002)
    assert ring_all_reduce_seconds(LINK, 1, 4e6) == 0.0


def test_the_slowest_link_of_a_ring_paces_it():
    network = Network(intra_host=FAST, inter_host=ETHERNET)
    cluster = Cluster.uniform(4, workers_per_host=2)
    slow = HostLink(between=("h00", "h01"), alpha_seconds=0.1, beta_seconds_per_byte=1e-8)
    assert slowest_link(["w00", "w01"], cluster, network) == FAST
    assert slowest_link(["w00", "w01", "w02"], cluster, network) == ETHERNET
    assert slowest_link(["w00", "w02"], Cluster(name="slow", workers=cluster.workers, links=(slow,)), network) == slow.cost
