"""Workers in an order in which neighbours have fast links, where links differ."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from estimator.arrays import Floats, Ints
from estimator.costs import Costs
from restorer.rings import untangle


def along_path(workers: Sequence[str], costs: Costs) -> tuple[str, ...]:
    """Workers of one host together, and hosts so that slow links between neighbours are few and as fast as may be.

    From the first host on the nearest one that is left, then links are exchanged (`restorer.rings.untangle`); the ring is
    cut at its slowest link. As hosts come where there are more than `estimator.host_links.MOST_HOSTS`. Kept in `Costs.paths`.
    """
    workers = tuple(workers)
    if workers not in costs.paths:
        costs.paths[workers] = _path(workers, costs)
    return costs.paths[workers]


def _path(workers: Sequence[str], costs: Costs) -> tuple[str, ...]:
    on_host = costs.cluster.by_host(workers)
    hosts = list(on_host)
    if len(hosts) > 2 and costs.host_links is not None:
        seconds = costs.host_links.transfer_seconds(hosts, hosts, max(layer.output_bytes for layer in costs.profile.layers))
        ring = _nearest_first(seconds)
        untangle(seconds, ring)
        slowest = int(np.argmax(seconds[np.roll(ring, 1), ring]))
        hosts = [hosts[index] for index in np.roll(ring, -slowest).tolist()]
    return tuple(worker for host in hosts for worker in on_host[host])


def sides(path: Sequence[str], costs: Costs) -> tuple[tuple[str, ...], ...]:
    """The parts of such a path that slow links lie between: racks, where these are slow. All of it where its links are alike.

    Slow are links beyond the widest gap between their times, as a ratio. O(workers). Kept in `Costs.sides`.
    """
    path = tuple(path)
    if path not in costs.sides:
        costs.sides[path] = _sides(path, costs)
    return costs.sides[path]


def _sides(path: tuple[str, ...], costs: Costs) -> tuple[tuple[str, ...], ...]:
    on_host = costs.cluster.by_host(path)
    network, num_bytes = costs.profile.network, max(layer.output_bytes for layer in costs.profile.layers)
    links = [costs.cluster.host_link(*pair, network) for pair in pairwise(on_host)]
    seconds = [link.alpha_seconds + link.beta_seconds_per_byte * num_bytes for link in links]
    gaps = [(slower / faster if faster else np.inf, slower) for faster, slower in pairwise(sorted(set(seconds)))]
    if not gaps:
        return (path,)
    _, slow = max(gaps)
    result: list[list[str]] = [[]]
    for host, before in zip(on_host, [0.0, *seconds], strict=True):
        if before >= slow:
            result.append([])
        result[-1] += on_host[host]
    return tuple(map(tuple, result))


def _nearest_first(seconds: Floats) -> Ints:
    """From the first place on the nearest that is left. Shape [places]."""
    ring, is_left = [0], np.ones(len(seconds), dtype=bool)
    is_left[0] = False
    while is_left.any():
        ring.append(int(np.argmin(np.where(is_left, seconds[ring[-1]], np.inf))))
        is_left[ring[-1]] = False
    return np.array(ring)
