"""When the last transfer of a migration arrives.

A source sends one transfer at a time; a worker takes in no faster than over its fastest link, a host no faster than the profile
states. That is reached when all transfers of a source run side by side, each at a constant rate from when the source is free
until the end: then nobody is ever asked for more than it can. (With links of one rate, so does sending whole messages in the
order of a preemptive open shop; Gonzalez and Sahni, 1976.)
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from kintsugi.core.cluster import Cluster
from kintsugi.core.decision import Transfer
from kintsugi.core.profile import Profile
from restorer.wires import Wires

_HALVINGS = 60

_Port = tuple[str, str, bool]
"""What transfers share: a worker taking in or a host, by name, and whether from other hosts."""


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
    wires = Wires(profile, cluster)
    sending: dict[str, float] = defaultdict(float)
    ports: dict[_Port, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for transfer in transfers:
        source, target = cluster.by_id[transfer.source].host, cluster.by_id[transfer.target].host
        link = cluster.host_link(source, target, profile.network)
        sending[transfer.source] += link.transfer_seconds(transfer.num_bytes / profile.tensor_parallel_degree)
        for port, seconds in _loads(transfer, source, target, wires):
            ports[port][transfer.source] += seconds
    end = max((ready.get(source, 0.0) + seconds for source, seconds in sending.items()), default=0.0)
    return max([end, *(_shared_end(own, ready, end) for own in ports.values())])


def _loads(transfer: Transfer, source: str, target: str, wires: Wires) -> Iterator[tuple[_Port, float]]:
    """What a transfer between two hosts keeps busy besides its source, in seconds of it alone."""
    betas, is_outside = wires.intake_betas(wires.host_number(target)), source != target
    beta = betas[0] if is_outside and not wires.is_plain else betas[1]
    yield ("worker", transfer.target, is_outside), beta * transfer.num_bytes / wires.degree
    if is_outside and wires.egress is not None:
        yield ("out", source, True), transfer.num_bytes / wires.egress
    if is_outside and wires.ingress is not None:
        yield ("in", target, True), transfer.num_bytes / wires.ingress


def _shared_end(seconds: Mapping[str, float], ready: Mapping[str, float], earliest: float) -> float:
    """When sources are through with a port that they share, each using it evenly from when it is free until then.

    Args:
        seconds: of the port that each source needs.
        ready: when it is free.
        earliest: no source is through later by itself.
    """
    starts = {source: ready.get(source, 0.0) for source in seconds}
    low, high = max(earliest, min(starts.values())), max(starts.values()) + sum(seconds.values())
    if len(set(starts.values())) == 1 or high <= low:
        return max(high, earliest)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        windows = [(own, middle - starts[source]) for source, own in seconds.items() if own]
        is_enough = all(window > 0 for _, window in windows) and sum(own / window for own, window in windows) <= 1.0
        low, high = (low, middle) if is_enough else (middle, high)
    return high
