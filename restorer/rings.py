"""Rings that keep off slow links: in which order workers reduce, and in which order hosts lie beside each other.

A ring is paced by its slowest link (`estimator.communication.slowest_link`), so one slow link less often makes it no faster, but
one without any often exists: with a fifth of all links slow, for nearly every set of four hosts or more.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from estimator.arrays import Floats, Ints
from estimator.compiled import compiled
from estimator.costs import Costs
from estimator.host_links import HostLinks
from kintsugi.core.plan import Reduction

SAME_RING = 3
"""So many workers have the same neighbours in whatever order."""

MOST_SWEEPS = 32
"""Over all pairs of a ring's links; few rings are not through after five."""


def along_fast_links(reductions: Sequence[Reduction], costs: Costs) -> list[Reduction]:
    """The reductions with their workers in the order of faster rings, where there are any; those of the same workers in one order.

    The workers of a host stand together. Where no link differs all stay as they are.
    """
    if costs.host_links is None:
        return list(reductions)
    largest: dict[tuple[str, ...], int] = {}
    for reduction in reductions:
        largest[reduction.workers] = max(reduction.num_bytes, largest.get(reduction.workers, 0))
    rings = {workers: _faster(workers, num_bytes, costs, costs.host_links) for workers, num_bytes in largest.items()}
    return [replace(reduction, workers=rings[reduction.workers]) for reduction in reductions]


def _faster(workers: tuple[str, ...], num_bytes: int, costs: Costs, links: HostLinks) -> tuple[str, ...]:
    """The workers in the order of a ring over which a reduction of so many bytes is faster; as they are where none was found."""
    if len(workers) <= SAME_RING:
        return workers
    on_host = costs.cluster.by_host(workers)
    hosts = list(on_host)
    ring = np.arange(len(hosts))
    untangle(links.transfer_seconds(hosts, hosts, num_bytes / len(workers)), ring)
    ordered = tuple(worker for index in ring.tolist() for worker in on_host[hosts[index]])
    return min(workers, ordered, key=lambda option: costs.ring_seconds(option, num_bytes))


@compiled
def untangle(seconds: Floats, ring: Ints) -> None:
    """Exchange links of a ring for others as long as its slowest links become fewer or faster by that, in place.

    Two links are exchanged by turning what is between them around, three by moving one place.

    Args:
        seconds: over the link between two places, shape [places, places], symmetric.
        ring: places in order.
    """
    for _ in range(MOST_SWEEPS):
        is_turned = _turn(seconds, ring)
        if not _move(seconds, ring) and not is_turned:
            break


@compiled
def _turn(seconds: Floats, ring: Ints) -> bool:
    """Whether turning a part of the ring around made it faster, or as fast with fewer slow links."""
    size, is_better = len(ring), False
    for i in range(size - 2):
        for j in range(i + 2, size if i else size - 1):
            a, b, c, d = ring[i], ring[i + 1], ring[j], ring[(j + 1) % size]
            one, other, first, second = seconds[a, b], seconds[c, d], seconds[a, c], seconds[b, d]
            slowest, now = max(one, other), max(first, second)
            if now < slowest or (now == slowest and min(first, second) < min(one, other)):
                ring[i + 1 : j + 1] = ring[i + 1 : j + 1][::-1].copy()
                is_better = True
    return is_better


@compiled
def _move(seconds: Floats, ring: Ints) -> bool:
    """Whether putting one place between two others made slow links faster."""
    size, is_better = len(ring), False
    for i in range(size):
        for gap in range(1, size - 1):
            before, own, after = ring[i - 1], ring[i], ring[(i + 1) % size]
            left, right = ring[(i + gap) % size], ring[(i + gap + 1) % size]
            slowest = max(seconds[before, own], seconds[own, after], seconds[left, right])
            if max(seconds[before, after], seconds[left, own], seconds[own, right]) < slowest:
                for k in range(gap):
                    ring[(i + k) % size] = ring[(i + k + 1) % size]
                ring[(i + gap) % size] = own
                is_better = True
    return is_better
