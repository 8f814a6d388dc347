"""Which layers of a job have to be measured: of those that are built alike and take tensors alike, one.

A model that no device holds at once can be measured so: the equal blocks of a decoder take the room of one.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from kintsugi.runtime.layer import Layer
from kintsugi.runtime.models import TrainingJob, model_shape
from kintsugi.runtime.ties import owner_of
from restorer.transport import TensorSpec

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """A job of some layers of another one, each of which stands for all that are like it."""

    job: TrainingJob
    """With the layers to measure, in their order."""
    stands_for: tuple[int, ...]
    """For every layer of the whole model the index in `job` of the one that is measured for it."""

    def expanded(self, measured: Sequence[T]) -> list[T]:
        """What was measured of the job's layers, for every layer of the whole model. Shape [layers of the whole model]."""
        return [measured[index] for index in self.stands_for]


def whole(job: TrainingJob) -> Selection:
    """Every layer, each for itself."""
    return Selection(job=job, stands_for=tuple(range(len(job.layers))))


def distinct_layers(job: TrainingJob) -> Selection:
    """One layer of every kind, and as few others as lead from one to the next.

    Layers are of one kind where the same callable builds them (or partials of it with the same arguments) and what they take
    is the same: fields of the micro-batch, and tensors of one shape and type. A layer that shares parameters is a kind of its
    own. O(layers^2).
    """
    boundaries = model_shape(job).boundaries
    kinds = _kinds(job, boundaries)
    kept = _shortest(kinds, boundaries)
    first = {kinds[index]: place for place, index in reversed(list(enumerate(kept)))}
    return Selection(
        job=replace(job, layers=[job.layers[index] for index in kept]), stands_for=tuple(first[kind] for kind in kinds)
    )


def distinct_job(make_job: Callable[[], TrainingJob]) -> TrainingJob:
    """The job of `distinct_layers`. A partial of this function travels to other processes where `make_job` does."""
    return distinct_layers(make_job()).job


def _kinds(job: TrainingJob, boundaries: Sequence[tuple[TensorSpec, ...]]) -> list[Hashable]:
    """What layers are told apart by. Shape [layers]."""
    names = {layer.name for layer in job.layers}
    owners = {owner_of(target, names) for layer in job.layers for target in layer.tied.values()}
    last = len(job.layers) - 1
    return [
        (_origin(layer.build), layer.inputs, boundaries[index], index == last, layer.name if _shares(layer, owners) else None)
        for index, layer in enumerate(job.layers)
    ]


def _shares(layer: Layer, owners: set[str]) -> bool:
    return bool(layer.tied) or layer.name in owners


def _origin(build: Callable[[], object]) -> Hashable:
    """What a module is built from: a partial's function and arguments; the callable itself where those cannot be compared."""
    try:
        origin = (build.func, build.args, frozenset(build.keywords.items())) if isinstance(build, partial) else build
        hash(origin)
    except TypeError:
        return id(build)
    return origin


def _shortest(kinds: Sequence[Hashable], boundaries: Sequence[tuple[TensorSpec, ...]]) -> list[int]:
    """Layers that are left when stretches go that begin and end with the same tensors and hold no kind's last layer."""
    kept, left, index = [], Counter(kinds), 0
    while index < len(kinds):
        stop = _stretch(kinds, boundaries, index, left)
        left -= Counter(kinds[index:stop])
        if stop == index:
            kept.append(index)
            index += 1
        index = max(index, stop)
    return kept


def _stretch(kinds: Sequence[Hashable], boundaries: Sequence[tuple[TensorSpec, ...]], start: int, left: Counter[Hashable]) -> int:
    """The end of the longest stretch from `start` that can go; `start` where none can."""
    longest, lost = start, Counter[Hashable]()
    for stop in range(start + 1, len(kinds) + 1):
        lost[kinds[stop - 1]] += 1
        if lost[kinds[stop - 1]] >= left[kinds[stop - 1]]:
            break
        if boundaries[stop] == boundaries[start]:
            longest = stop
    return longest
