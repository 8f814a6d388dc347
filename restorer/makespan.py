"""When the last transfer of a migration arrives.

A source sends one transfer at a time; a worker takes in no faster than over its fastest link, a host no faster than the profile
states. That is reached when all transfers run side by side, each at a constant rate until the end: then nobody is ever asked
for more than it can. (With links of one rate, so does sending whole messages in the order of a preemptive open shop; Gonzalez
and Sahni, 1976.)
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator

from kintsugi.core.cluster import Cluster
from kintsugi.core.decision import Transfer
from kintsugi.core.profile import Profile
from restorer.wires import Wires

_Port = tuple[str, str, bool]
"""What transfers share: a worker taking in or a host, by name, and whether from other hosts."""


def makespan_seconds(transfers: Iterable[Transfer], profile: Profile, cluster: Cluster) -> float:
    """From the beginning until everything has arrived, in seconds; 0 where nothing moves.

    Args:
        transfers: with bytes of all devices of a worker, which send side by side.
        profile: of the job.
        cluster: links.
    """
    wires = Wires(profile, cluster)
    sending: dict[str, float] = defaultdict(float)
    ports: dict[_Port, float] = defaultdict(float)
    for transfer in transfers:
        source, target = cluster.by_id[transfer.source].host, cluster.by_id[transfer.target].host
        link = cluster.host_link(source, target, profile.network)
        sending[transfer.source] += link.transfer_seconds(transfer.num_bytes / profile.tensor_parallel_degree)
        for port, seconds in _loads(transfer, source, target, wires):
            ports[port] += seconds
    return max([*sending.values(), *ports.values()], default=0.0)


def _loads(transfer: Transfer, source: str, target: str, wires: Wires) -> Iterator[tuple[_Port, float]]:
    """What a transfer between two hosts keeps busy besides its source, in seconds of it alone."""
    betas, is_outside = wires.intake_betas(wires.host_number(target)), source != target
    beta = betas[0] if is_outside and not wires.is_plain else betas[1]
    yield ("worker", transfer.target, is_outside), beta * transfer.num_bytes / wires.degree
    if is_outside and wires.egress is not None:
        yield ("out", source, True), transfer.num_bytes / wires.egress
    if is_outside and wires.ingress is not None:
        yield ("in", target, True), transfer.num_bytes / wires.ingress
