"""The fastest links that a plan can hope for: what lower bounds may assume."""

from collections import Counter
from collections.abc import Sequence
from functools import cached_property

from kintsugi.core.cluster import Cluster
from kintsugi.core.profile import LinkCost, Network


class Links:
    """Links among some workers of a cluster."""

    def __init__(self, workers: Sequence[str], cluster: Cluster, network: Network) -> None:
        self._network, self._cluster = network, cluster
        self._per_host = Counter(cluster.by_id[worker].host for worker in workers)
        self.most_per_host = max(self._per_host.values())
        """Of these workers."""

    @cached_property
    def between_hosts(self) -> LinkCost:
        """No link between two hosts has less latency or a better rate."""
        if len(self._per_host) == 1:
            return self._network.intra_host
        return _best([self._network.inter_host, *(link.cost for link in self._cluster.links)])

    @cached_property
    def fastest(self) -> LinkCost:
        """No link at all has less latency or a better rate."""
        shared = [self._network.intra_host] if self.most_per_host > 1 else []
        return _best([self.between_hosts, *shared])

    def pacing(self, num_workers: int) -> LinkCost:
        """No ring over so many workers is paced by a faster link: it leaves its host when the host is too small."""
        return self.fastest if num_workers <= self.most_per_host else self.between_hosts


def _best(links: Sequence[LinkCost]) -> LinkCost:
    return LinkCost(
        alpha_seconds=min(link.alpha_seconds for link in links),
        beta_seconds_per_byte=min(link.beta_seconds_per_byte for link in links),
    )
