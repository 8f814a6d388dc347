"""Gradient reductions in rounds: layers with the same holders share a bucket, buckets that share a worker take turns."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import networkx as nx

from kintsugi.core.plan import Pipeline, Plan, Reduction, Round
from kintsugi.core.profile import Profile

Shape = tuple[tuple[int, bool], ...]
"""One pipeline without names: where each stage stops and whether its slot has a worker."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """Layers whose gradients are reduced together, and who holds them: live stages of every shape."""

    layers: tuple[int, ...]
    stages: tuple[tuple[int, ...], ...]
    """Shape [shapes][stages of that shape that hold some of the layers]."""


def shape_of(pipeline: Pipeline) -> Shape:
    """What a pipeline has in common with those that reduce alike."""
    return tuple((stage.layer_stop, stage.worker is not None) for stage in pipeline.stages)


def colour_rounds(plan: Plan, profile: Profile, *, is_descending: bool = False) -> tuple[Round, ...]:
    """All-reduce rounds for `plan`, in which no worker takes part in two reductions at once.

    The paper colours layers (section IV-B); buckets of layers with the same holders are coloured here, for layers on
    exactly the same workers can be reduced in one message. Greedy, largest degree first; rounds of the last layers come
    first, for their gradients are ready first. Pipelines of one shape are coloured once: O(B^2) for B buckets and what it
    takes to name their workers.

    Args:
        plan: its pipelines say who holds which layer; its own rounds do not matter.
        profile: gradient bytes and ties; layers tied to each other are reduced over the holders of all of them.
        is_descending: every worker reduces its last layers first, in as many rounds as that takes, instead of few rounds.
    """
    order = descending_rounds if is_descending else few_rounds
    shapes = [shape_of(pipeline) for pipeline in plan.pipelines]
    distinct = tuple(dict.fromkeys(shapes))
    index_of = {shape: index for index, shape in enumerate(distinct)}
    kinds = [index_of[shape] for shape in shapes]
    ordered = order(buckets_of(distinct, profile))
    rounds = (tuple(_reduction(bucket, plan, kinds, profile) for bucket in buckets) for buckets in ordered)
    kept = (tuple(reduction for reduction in round_ if len(reduction.workers) > 1) for round_ in rounds)
    return tuple(round_ for round_ in kept if round_)


def _reduction(bucket: Bucket, plan: Plan, kinds: Sequence[int], profile: Profile) -> Reduction:
    workers = [
        worker
        for pipeline, kind in zip(plan.pipelines, kinds, strict=True)
        for stage in bucket.stages[kind]
        if (worker := pipeline.stages[stage].worker) is not None
    ]
    return Reduction(layers=bucket.layers, workers=tuple(workers), num_bytes=bucket_bytes(bucket, profile))


def bucket_bytes(bucket: Bucket, profile: Profile) -> int:
    """Gradients of a bucket's layers."""
    return sum(profile.layers[layer].gradient_bytes for layer in bucket.layers)


def few_rounds(buckets: Sequence[Bucket]) -> tuple[tuple[Bucket, ...], ...]:
    """Buckets in few rounds, those of the last layers first."""
    conflicts = nx.Graph()
    conflicts.add_nodes_from(range(len(buckets)))
    for indices in _by_stage(buckets).values():
        conflicts.add_edges_from((a, b) for a in indices for b in indices if a < b)
    colours = nx.greedy_color(conflicts, strategy="largest_first")
    return tuple(sorted(_grouped(buckets, [colours[index] for index in range(len(buckets))]), key=_mean_layer, reverse=True))


def descending_rounds(buckets: Sequence[Bucket]) -> tuple[tuple[Bucket, ...], ...]:
    """Buckets in rounds in which every worker reduces its last layers first, for their gradients are ready first."""
    buckets = sorted(buckets, key=lambda bucket: bucket.layers, reverse=True)
    following: dict[tuple[int, int], int] = defaultdict(int)
    rounds = []
    for bucket in buckets:
        places = [(shape, stage) for shape, stages in enumerate(bucket.stages) for stage in stages]
        rounds.append(max((following[place] for place in places), default=0))
        following.update(dict.fromkeys(places, rounds[-1] + 1))
    return _grouped(buckets, rounds)


def _by_stage(buckets: Sequence[Bucket]) -> dict[tuple[int, int], list[int]]:
    """Indices of the buckets that each stage of each shape takes part in."""
    result: dict[tuple[int, int], list[int]] = defaultdict(list)
    for index, bucket in enumerate(buckets):
        for shape, stages in enumerate(bucket.stages):
            for stage in stages:
                result[shape, stage].append(index)
    return result


def _grouped(buckets: Sequence[Bucket], rounds: Sequence[int]) -> tuple[tuple[Bucket, ...], ...]:
    result: dict[int, list[Bucket]] = defaultdict(list)
    for bucket, number in zip(buckets, rounds, strict=True):
        result[number].append(bucket)
    return tuple(tuple(result[number]) for number in sorted(result))


def _mean_layer(buckets: Iterable[Bucket]) -> float:
    """Where in the model a round's reductions lie."""
    means = [sum(bucket.layers) / len(bucket.layers) for bucket in buckets]
    return sum(means) / len(means)


def buckets_of(shapes: Sequence[Shape], profile: Profile) -> list[Bucket]:
    """One bucket per set of holders for pipelines of these shapes, ordered by lowest layer."""
    places = list(zip(*map(_stages_of_layers, shapes), strict=True))
    layers_at: dict[frozenset[tuple[int, ...]], list[int]] = defaultdict(list)
    for group in profile.tie_groups:
        layers_at[frozenset(places[layer] for layer in group)].extend(group)
    layers_of: dict[tuple[tuple[int, ...], ...], list[int]] = defaultdict(list)
    for stages, layers in layers_at.items():
        layers_of[tuple(map(_alive, zip(*stages, strict=True), shapes))].extend(layers)
    buckets = [Bucket(tuple(sorted(layers)), holders) for holders, layers in layers_of.items()]
    return sorted(buckets, key=lambda bucket: bucket.layers)


def _stages_of_layers(shape: Shape) -> tuple[int, ...]:
    """The stage that each layer belongs to. Shape [layers]."""
    result: list[int] = []
    for stage, (stop, _) in enumerate(shape):
        result += [stage] * (stop - len(result))
    return tuple(result)


def _alive(stages: Iterable[int], shape: Shape) -> tuple[int, ...]:
    return tuple(sorted({stage for stage in stages if shape[stage][1]}))
