"""Links between hosts as matrices, for searches that look at many pairs."""

from collections.abc import Sequence

import numpy as np

from estimator.arrays import Floats
from kintsugi.core.cluster import Cluster
from kintsugi.core.profile import Network

MOST_HOSTS = 1024
"""With more no pairs are looked at: what is known of all grows with the square."""


class HostLinks:
    """Latency and seconds per byte between all hosts of a cluster. O(hosts^2) memory."""

    def __init__(self, cluster: Cluster, network: Network) -> None:
        self._index = {host: index for index, host in enumerate(cluster.hosts)}
        size = len(self._index)
        self._alphas = np.full((size, size), network.inter_host.alpha_seconds)
        self._betas = np.full((size, size), network.inter_host.beta_seconds_per_byte)
        np.fill_diagonal(self._alphas, network.intra_host.alpha_seconds)
        np.fill_diagonal(self._betas, network.intra_host.beta_seconds_per_byte)
        for link in cluster.links:
            one, other = (self._index[host] for host in link.between)
            self._alphas[one, other] = self._alphas[other, one] = link.alpha_seconds
            self._betas[one, other] = self._betas[other, one] = link.beta_seconds_per_byte

    def between(self, hosts: Sequence[str], others: Sequence[str]) -> tuple[Floats, Floats]:
        """Latency in seconds, and seconds per byte, of some hosts' links to others. Shapes [hosts, others]."""
        pairs = np.ix_([self._index[host] for host in hosts], [self._index[host] for host in others])
        return self._alphas[pairs], self._betas[pairs]

    def transfer_seconds(self, hosts: Sequence[str], others: Sequence[str], num_bytes: float) -> Floats:
        """What a message takes over these links, alpha + beta * n, in seconds. Shape [hosts, others]."""
        alphas, betas = self.between(hosts, others)
        seconds: Floats = alphas + betas * num_bytes
        return seconds
