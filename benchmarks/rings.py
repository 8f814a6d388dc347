"""Reductions over links of which some are slow: in the order of the workers' names, and around the slow ones.

Processes reduce with gloo over emulated links (network namespaces; needs root). The estimator predicts what a ring takes.
"""

import argparse
import itertools
import os
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace

import torch

from benchmarks.arguments import at_least
from benchmarks.links import UnevenLinks, unavailable_reason
from benchmarks.members import Member, Members
from estimator.costs import Costs
from kintsugi.core.cluster import Cluster, HostLink
from kintsugi.core.plan import Reduction
from kintsugi.core.profile import Device, LayerProfile, LinkCost, Network, Profile, Provenance, ProvenanceKind, Recovery
from restorer.rings import along_fast_links

NUM_BYTES = 4_000_000
PAYLOAD_BYTES_PER_SECOND, SLOWER = 25e6, 10.0
USUAL = LinkCost(alpha_seconds=5e-4, beta_seconds_per_byte=1 / PAYLOAD_BYTES_PER_SECOND)


def uneven_costs(num_workers: int, num_slow: int, seed: int) -> Costs:
    """Workers on hosts of their own, of whose links so many are slow: the first two workers' and random others."""
    cluster = Cluster.uniform(num_workers)
    first, *pairs = itertools.combinations(cluster.hosts, 2)
    slow = [first, *random.Random(seed).sample(pairs, num_slow - 1)]
    links = (HostLink(between=pair, alpha_seconds=5e-4, beta_seconds_per_byte=SLOWER / PAYLOAD_BYTES_PER_SECOND) for pair in slow)
    return Costs(_profile(), replace(cluster, links=tuple(links)))


def _profile() -> Profile:
    """One layer, and the emulated links' own settings; nothing is measured."""
    layer = LayerProfile(
        name="layer",
        forward_seconds=1e-3,
        backward_input_seconds=1e-3,
        backward_weight_seconds=1e-3,
        parameter_bytes=NUM_BYTES,
        gradient_bytes=NUM_BYTES,
        optimizer_bytes=NUM_BYTES,
        activation_bytes=0,
        output_bytes=0,
    )
    return Profile(
        name="emulated",
        microbatch_size=1,
        provenance=Provenance(kind=ProvenanceKind.ANALYTICAL, detail="the emulation's own settings"),
        layers=(layer,),
        device=Device(name="emulated", memory_bytes=10**10),
        network=Network(intra_host=USUAL, inter_host=USUAL),
        recovery=Recovery(detect_seconds=0.0, regroup_seconds=0.0, restart_seconds=0.0),
    )


def reduced_seconds(member: Member, ring: tuple[str, ...]) -> float:
    """What one reduction takes a member, once all have come to it."""
    assert member.groups is not None
    member.groups.all_reduce(torch.zeros(1), ring)
    gradients = torch.ones(NUM_BYTES // 4)
    began = time.perf_counter()
    member.groups.all_reduce(gradients, ring)
    seconds = time.perf_counter() - began
    assert gradients.eq(len(ring)).all()
    return seconds


def run(costs: Costs, rings: Sequence[tuple[str, ...]], repeats: int) -> list[float]:
    """The median over repeats of the slowest member's seconds, ring by ring; both take turns."""
    names = tuple(costs.cluster.by_id)
    slower = {link.between: 1 / link.beta_seconds_per_byte for link in costs.cluster.links}
    worker_on = {worker.host: worker.id for worker in costs.cluster.workers}
    pairs = {(worker_on[one], worker_on[other]): rate for (one, other), rate in slower.items()}
    measured: list[list[float]] = [[] for _ in rings]
    with UnevenLinks(dict.fromkeys(names, PAYLOAD_BYTES_PER_SECOND), pairs) as links, Members(links) as members:
        members.connect(names, rings)
        for _ in range(repeats):
            for own, ring in zip(measured, rings, strict=True):
                own.append(max(members.call(reduced_seconds, ring).values()))
    return [statistics.median(own) for own in measured]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=at_least(4), default=6)
    parser.add_argument("--repeats", type=at_least(1), default=5)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if (reason := unavailable_reason()) is not None:
        print(f"Nothing was run: {reason}.")
        return
    rates = f"{SLOWER:g} times less than {PAYLOAD_BYTES_PER_SECOND / 1e6:g} MB/s over slow links"
    print(f"{NUM_BYTES / 1e6:g} MB over {arguments.workers} workers, {rates}\n")
    print("| slow links | order | predicted (s) | median (s) | over | times faster |\n|---|---|---|---|---|---|")
    for num_slow in (1, arguments.workers // 2, arguments.workers):
        costs = uneven_costs(arguments.workers, num_slow, arguments.seed)
        reduction = Reduction(layers=(0,), workers=tuple(costs.cluster.by_id), num_bytes=NUM_BYTES)
        rings = [own.workers for own in (reduction, *along_fast_links([reduction], costs))]
        seconds = run(costs, rings, arguments.repeats)
        for name, ring, median in zip(("by name", "around slow links"), rings, seconds, strict=True):
            predicted = costs.ring_seconds(ring, NUM_BYTES)
            over, faster = median / predicted - 1, seconds[0] / median
            print(f"| {num_slow} | {name} | {predicted:.3f} | {median:.3f} | {over:+.1%} | {faster:.2f} |", flush=True)
    print(f"\nLoad of the machine at the end: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores.")


if __name__ == "__main__":
    main()
