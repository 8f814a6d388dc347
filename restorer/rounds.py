"""Gradient reductions in rounds: layers with the same holders share a bucket, buckets that share a worker take turns."""

from collections import defaultdict

import networkx as nx

from kintsugi.core.plan import Plan, Reduction, Round
from kintsugi.core.profile import Profile


def colour_rounds(plan: Plan, profile: Profile) -> tuple[Round, ...]:
    """All-reduce rounds for `plan`, in which no worker takes part in two reductions at once.

    The paper colours layers (section IV-B); buckets of layers with the same holders are coloured here, for layers on
    exactly the same workers can be reduced in one message. Greedy, largest degree first; rounds of the last layers come
    first, for their gradients are ready first. O(B^2) for B buckets.

    Args:
        plan: its pipelines say who holds which layer; its own rounds do not matter.
        profile: gradient bytes and ties; layers tied to each other are reduced over the holders of all of them.
    """
    buckets = _buckets(plan, profile)
    conflicts = nx.Graph()
    conflicts.add_nodes_from(range(len(buckets)))
    by_worker: dict[str, list[int]] = defaultdict(list)
    for index, bucket in enumerate(buckets):
        for worker in bucket.workers:
            by_worker[worker].append(index)
    for indices in by_worker.values():
        conflicts.add_edges_from((a, b) for a in indices for b in indices if a < b)
    colours = nx.greedy_color(conflicts, strategy="largest_first")
    rounds: dict[int, list[Reduction]] = defaultdict(list)
    for index, bucket in enumerate(buckets):
        rounds[colours[index]].append(bucket)
    return tuple(sorted(map(tuple, rounds.values()), key=_mean_layer, reverse=True))


def _mean_layer(reductions: Round) -> float:
    """Where in the model a round's reductions lie."""
    return sum(sum(reduction.layers) / len(reduction.layers) for reduction in reductions) / len(reductions)


def _buckets(plan: Plan, profile: Profile) -> list[Reduction]:
    """One reduction per set of holders, ordered by lowest layer; what a single worker holds needs none."""
    layers_of: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for group in profile.tie_groups:
        holders = {worker for layer in group for worker in plan.holders[layer]}
        workers = tuple(worker for worker in plan.workers if worker in holders)
        layers_of[workers].extend(group)
    buckets = [
        Reduction(
            layers=tuple(sorted(layers)),
            workers=workers,
            num_bytes=sum(profile.layers[layer].gradient_bytes for layer in layers),
        )
        for workers, layers in layers_of.items()
        if len(workers) > 1
    ]
    return sorted(buckets, key=lambda bucket: bucket.layers)
