"""What reductions take: the alpha-beta model over the cluster's links."""

from collections.abc import Sequence

from kintsugi.core.cluster import Cluster
from kintsugi.core.profile import LinkCost, Network


def ring_all_reduce_seconds(link: LinkCost, num_workers: int, num_bytes: float) -> float:
    """Ring all-reduce of n bytes over k workers: 2 * (k - 1) * (alpha + n / k * beta), in seconds.

    A reduce-scatter and an all-gather of k - 1 steps each, every step moving one k-th (Patarasuk and Yuan, 2009).
    """
    if num_workers < 2:
        return 0.0
    return 2 * (num_workers - 1) * link.transfer_seconds(num_bytes / num_workers)


def slowest_link(workers: Sequence[str], cluster: Cluster, network: Network) -> LinkCost:
    """The link that paces a ring over `workers` in this order: the worst latency and the worst rate on it."""
    hosts = [cluster.by_id[worker].host for worker in workers]
    neighbours = set(zip(hosts, (*hosts[1:], hosts[0]), strict=True)) if len(workers) > 1 else set()
    if not cluster.links:
        links = [network.intra_host if is_within else network.inter_host for is_within in {a == b for a, b in neighbours}]
    else:
        links = [cluster.host_link(source, target, network) for source, target in neighbours]
    return LinkCost(
        alpha_seconds=max((link.alpha_seconds for link in links), default=0.0),
        beta_seconds_per_byte=max((link.beta_seconds_per_byte for link in links), default=0.0),
    )
