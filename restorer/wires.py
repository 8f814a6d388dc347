"""What messages between workers take, looked up for many of them at once."""

from collections.abc import Mapping
from functools import cached_property

import numpy as np

from estimator.arrays import Floats, Ints
from kintsugi.core.cluster import Cluster
from kintsugi.core.profile import LinkCost, Profile


class Wires:
    """Links between hosts by number. Where all links are alike and nothing is shared, all workers count as of one host."""

    def __init__(self, profile: Profile, cluster: Cluster) -> None:
        self._cluster, self._network = cluster, profile.network
        self.degree = profile.tensor_parallel_degree
        self.egress = profile.network.host_egress_bytes_per_second
        self.ingress = profile.network.host_ingress_bytes_per_second
        self.is_plain = cluster.is_uniform and self.egress is None and self.ingress is None
        self.num_hosts = 1 if self.is_plain else len(cluster.hosts)
        self._intakes: dict[int, tuple[float, float]] = {}

    def host_of(self, worker: str) -> int:
        """Number of a worker's host."""
        return self.host_number(self._cluster.by_id[worker].host)

    def host_number(self, host: str) -> int:
        """Number of a host."""
        return 0 if self.is_plain else self._host_index[host]

    def costs(self, sources: Ints, target: int) -> tuple[Floats, Floats]:
        """Latency and seconds per byte from hosts to a host. Two of shape [sources]."""
        if self.is_plain:
            hosts = self._cluster.hosts
            link = self._cluster.host_link(hosts[0], hosts[-1], self._network)
            return np.full(len(sources), link.alpha_seconds), np.full(len(sources), link.beta_seconds_per_byte)
        own = self._own_links(target)
        if not own:
            return self._common_costs(sources, target)
        alpha, beta = self._common_costs(np.arange(self.num_hosts), target)
        for host, link in own.items():
            source = self._host_index[host]
            alpha[source], beta[source] = link.alpha_seconds, link.beta_seconds_per_byte
        return alpha[sources], beta[sources]

    def intake_betas(self, target: int) -> tuple[float, float]:
        """Seconds per byte that a worker of a host takes at least to take in, from other hosts and from its own.

        As fast as its fastest link. What is stated for whole hosts stands instead of what follows from links between them.
        """
        if target not in self._intakes:
            self._intakes[target] = self._intake(target)
        return self._intakes[target]

    @cached_property
    def least_intake_beta(self) -> float:
        """No worker takes in a byte in less time, from its own and other hosts at once."""
        inner = self._network.intra_host.beta_seconds_per_byte
        if self.is_plain:
            return self.intake_betas(0)[1]
        own = [link.beta_seconds_per_byte for link in self._cluster.links]
        fastest = min([self._network.inter_host.beta_seconds_per_byte, *own])
        return both_ways(fastest if self.ingress is None else self.degree / self.ingress, inner)

    @cached_property
    def _host_index(self) -> Mapping[str, int]:
        return {host: index for index, host in enumerate(self._cluster.hosts)}

    def _own_links(self, host: int) -> Mapping[str, LinkCost]:
        """Those that the cluster states for a host, by the host at the other end."""
        return self._cluster.links_of.get(self._cluster.hosts[host], {})

    def _common_costs(self, sources: Ints, target: int) -> tuple[Floats, Floats]:
        """`costs` over the profile's links."""
        inner, outer = self._network.intra_host, self._network.inter_host
        alpha = np.where(sources == target, inner.alpha_seconds, outer.alpha_seconds)
        return alpha, np.where(sources == target, inner.beta_seconds_per_byte, outer.beta_seconds_per_byte)

    def _intake(self, target: int) -> tuple[float, float]:
        if self.is_plain:
            return 0.0, float(self.costs(np.zeros(1, dtype=np.int64), 0)[1][0])
        outer = [link.beta_seconds_per_byte for link in self._own_links(target).values()]
        if len(outer) < self.num_hosts - 1:
            outer.append(self._network.inter_host.beta_seconds_per_byte)
        from_others = min(outer, default=0.0) if self.ingress is None else 0.0
        return from_others, self._network.intra_host.beta_seconds_per_byte


def both_ways(one: float, other: float) -> float:
    """Seconds per byte of two ways side by side."""
    return one * other / (one + other) if one + other else 0.0
