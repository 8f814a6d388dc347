"""When the last transfer of a migration arrives.

Sources send one after the other, in any order; where hosts have limits, all transfers of a source run side by side instead,
each at a constant rate from when the source is free until the end, so that no host is ever asked for more than its limit.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from kintsugi.core.cluster import Cluster
from kintsugi.core.decision import Transfer
from kintsugi.core.profile import Profile

_HALVINGS = 60


def makespan_seconds(
    transfers: Iterable[Transfer], profile: Profile, cluster: Cluster, ready_seconds: Mapping[str, float] | None = None
) -> float:
    """From the beginning until everything has arrived, in seconds; 0 where nothing moves.

    Args:
        transfers: with bytes of all devices of a worker, which send side by side.
        profile: of the job.
        cluster: links.
        ready_seconds: when a source is free to send; those that are not named are at once.
    """
    ready = ready_seconds or {}
    sending: dict[str, float] = defaultdict(float)
    leaving: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    coming: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for transfer in transfers:
        source, target = cluster.by_id[transfer.source].host, cluster.by_id[transfer.target].host
        link = cluster.host_link(source, target, profile.network)
        sending[transfer.source] += link.transfer_seconds(transfer.num_bytes / profile.tensor_parallel_degree)
        if source != target:
            leaving[source][transfer.source] += transfer.num_bytes
            coming[target][transfer.source] += transfer.num_bytes
    end = max((ready.get(source, 0.0) + seconds for source, seconds in sending.items()), default=0.0)
    network = profile.network
    for limit, hosts in ((network.host_egress_bytes_per_second, leaving), (network.host_ingress_bytes_per_second, coming)):
        if limit is not None:
            end = max([end, *(_shared_end(own, ready, limit, end) for own in hosts.values())])
    return end


def _shared_end(num_bytes: Mapping[str, int], ready: Mapping[str, float], limit: float, earliest: float) -> float:
    """When sources are through that share a rate, each sending at a constant rate from when it is free until then.

    Args:
        num_bytes: of each source.
        ready: when it is free.
        limit: bytes per second of all of them.
        earliest: no source is through later by itself.
    """
    starts = {source: ready.get(source, 0.0) for source in num_bytes}
    low, high = max(earliest, min(starts.values())), max(starts.values()) + sum(num_bytes.values()) / limit
    if len(set(starts.values())) == 1 or high <= low:
        return max(high, earliest)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        windows = [(count, middle - starts[source]) for source, count in num_bytes.items()]
        is_enough = all(window > 0 for _, window in windows) and sum(count / window for count, window in windows) <= limit
        low, high = (low, middle) if is_enough else (middle, high)
    return high
