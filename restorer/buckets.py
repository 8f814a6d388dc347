"""Layers that are reduced together: those with the same holders, for pipelines without names."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kintsugi.core.plan import Pipeline
from kintsugi.core.profile import Profile

Shape = tuple[tuple[int, int | None], ...]
"""One pipeline without names: where each stage stops, and the first stage of the worker that holds it; None for a dead slot."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """Layers whose gradients are reduced together, and who holds them: live workers of every shape."""

    layers: tuple[int, ...]
    stages: tuple[tuple[int, ...], ...]
    """Shape [shapes][workers of that shape that hold some of the layers, each named by its first stage]."""


def shape_of(pipeline: Pipeline) -> Shape:
    """What a pipeline has in common with those that reduce alike."""
    first: dict[str, int] = {}
    return tuple(
        (stage.layer_stop, None if stage.worker is None else first.setdefault(stage.worker, index))
        for index, stage in enumerate(pipeline.stages)
    )


def bucket_bytes(bucket: Bucket, profile: Profile) -> int:
    """Gradients of a bucket's layers."""
    return sum(profile.layers[layer].gradient_bytes for layer in bucket.layers)


def buckets_of(shapes: Sequence[Shape], profile: Profile) -> list[Bucket]:
    """One bucket per set of holders for pipelines of these shapes, ordered by lowest layer.

    Where workers hold several stages each stage has buckets of its own: those of the last stages are reduced beside the
    passes of the others.
    """
    is_round = any(seat not in (None, index) for shape in shapes for index, (_, seat) in enumerate(shape))
    places = list(zip(*map(_stages_of_layers, shapes), strict=True))
    layers_at: dict[frozenset[tuple[int, ...]], list[int]] = defaultdict(list)
    for group in profile.tie_groups:
        layers_at[frozenset(places[layer] for layer in group)].extend(group)
    layers_of: dict[tuple[tuple[tuple[int, ...], ...], object], list[int]] = defaultdict(list)
    for stages, layers in layers_at.items():
        holders = tuple(map(_alive, zip(*stages, strict=True), shapes))
        layers_of[holders, stages if is_round else None].extend(layers)
    buckets = [Bucket(tuple(sorted(layers)), holders) for (holders, _), layers in layers_of.items()]
    return sorted(buckets, key=lambda bucket: bucket.layers)


def _stages_of_layers(shape: Shape) -> tuple[int, ...]:
    """The stage that each layer belongs to. Shape [layers]."""
    result: list[int] = []
    for stage, (stop, _) in enumerate(shape):
        result += [stage] * (stop - len(result))
    return tuple(result)


def _alive(stages: Iterable[int], shape: Shape) -> tuple[int, ...]:
    return tuple(sorted({first for stage in stages if (first := shape[stage][1]) is not None}))
