"""The fastest links that a plan can hope for: what lower bounds may assume."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from functools import cached_property

import numpy as np
from scipy.sparse.csgraph import minimum_spanning_tree

from estimator.arrays import Floats
from estimator.costs import Costs
from kintsugi.core.profile import LinkCost


class Links:
    """Links among some workers of a cluster."""

    def __init__(self, workers: Sequence[str], costs: Costs) -> None:
        self._costs, self._network = costs, costs.profile.network
        self._per_host = Counter(costs.cluster.by_id[worker].host for worker in workers)
        self.most_per_host = max(self._per_host.values())
        """Of these workers."""

    @cached_property
    def between_hosts(self) -> LinkCost:
        """No link between two hosts has less latency or a better rate."""
        if len(self._per_host) == 1:
            return self._network.intra_host
        return _best([self._network.inter_host, *(link.cost for link in self._costs.cluster.links)])

    @cached_property
    def fastest(self) -> LinkCost:
        """No link at all has less latency or a better rate."""
        shared = [self._network.intra_host] if self.most_per_host > 1 else []
        return _best([self.between_hosts, *shared])

    def pacing(self, num_workers: int) -> LinkCost:
        """No ring over so many workers is paced by a faster link: it leaves its host when the host is too small."""
        return self.fastest if num_workers <= self.most_per_host else self.pacing_apart(num_workers)

    def pacing_apart(self, num_workers: int) -> LinkCost:
        """No ring over so many workers, not all of one host, is paced by a faster link: those that faster ones join are too few."""
        if self._costs.host_links is None:
            return self.between_hosts
        alpha, beta = (amounts[min(bisect_left(sizes, num_workers), len(sizes) - 1)] for sizes, amounts in self.joining)
        return LinkCost(alpha_seconds=alpha, beta_seconds_per_byte=beta)

    @cached_property
    def joining(self) -> tuple[tuple[tuple[int, ...], tuple[float, ...]], ...]:
        """Of latency, and of seconds per byte: how many workers hang together by links of no more than an amount, and the amounts.

        Both ascend. Only the best link is told of where nothing is known of pairs (`Costs.host_links`).
        """
        links, hosts, best = self._costs.host_links, tuple(self._per_host), self.between_hosts
        workers = tuple(self._per_host.values())
        if links is None or len(hosts) == 1:
            return (((sum(workers),), (best.alpha_seconds,)), ((sum(workers),), (best.beta_seconds_per_byte,)))
        return tuple(_joined(amounts, workers) for amounts in links.between(hosts, hosts))


def _joined(amounts: Floats, workers: Sequence[int]) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """How many workers hang together by links of no more than an amount, and the amounts, both ascending.

    Args:
        amounts: of the links between hosts, shape [hosts, hosts].
        workers: on each host.
    """
    values, ranks = np.unique(amounts, return_inverse=True)
    ranks = ranks.reshape(amounts.shape) + 1
    np.fill_diagonal(ranks, 0)
    tree = minimum_spanning_tree(ranks).tocoo()
    edges = sorted(zip(tree.data.astype(int).tolist(), tree.row.tolist(), tree.col.tolist(), strict=True))
    part, sizes, largest, most = list(range(len(workers))), list(workers), dict[int, int](), 0
    for rank, one, other in edges:
        parts = _root(part, one), _root(part, other)
        part[parts[1]], sizes[parts[0]] = parts[0], sizes[parts[0]] + sizes[parts[1]]
        largest[rank] = most = max(most, sizes[parts[0]])
    return tuple(largest.values()), tuple(float(values[rank - 1]) for rank in largest)


def _root(part: Sequence[int], place: int) -> int:
    while part[place] != place:
        place = part[place]
    return place


def _best(links: Sequence[LinkCost]) -> LinkCost:
    return LinkCost(
        alpha_seconds=min(link.alpha_seconds for link in links),
        beta_seconds_per_byte=min(link.beta_seconds_per_byte for link in links),
    )
