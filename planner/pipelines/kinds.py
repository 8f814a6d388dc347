"""What the search knows of workers: those of one kind are interchangeable."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeVar

import numpy as np

from estimator.arrays import Floats, Ints
from kintsugi.core.cluster import Cluster, Worker
from kintsugi.core.profile import Profile

Number = TypeVar("Number", int, float)

MOST_LEVELS = 8
"""Of speed, and of memory, that are told apart."""

MOST_CREWS = 4
"""All workers, and those without the slowest, or without the smallest, that arrangements are looked for."""


class WorkerKind(NamedTuple):
    """Speed and memory of a worker."""

    speed_ratio: float
    usable_bytes: int


def kind_of(worker: Worker, profile: Profile) -> WorkerKind:
    """What the search knows of a worker."""
    return WorkerKind(worker.speed_ratio, worker.usable_bytes(profile.device))


def kinds_of(workers: Iterable[str], cluster: Cluster, profile: Profile) -> tuple[WorkerKind, ...]:
    """What the search knows of workers (ids); reckoned once for those that are alike."""
    named = [cluster.by_id[worker] for worker in workers]
    alike = {(one.speed_ratio, one.memory_bytes): one for one in named}
    known = {key: kind_of(one, profile) for key, one in alike.items()}
    return tuple([known[one.speed_ratio, one.memory_bytes] for one in named])


def fastest_first(kinds: Iterable[WorkerKind]) -> tuple[WorkerKind, ...]:
    """Sorted by speed, and by memory where speeds are equal."""
    return tuple(sorted(kinds, key=lambda kind: (-kind.speed_ratio, -kind.usable_bytes)))


def levels(kinds: Collection[WorkerKind]) -> Mapping[WorkerKind, WorkerKind]:
    """What each kind may count as, so that there are no more than `MOST_LEVELS` speeds and sizes: never as more than it is."""
    speeds = _floors({kind.speed_ratio for kind in kinds})
    sizes = _floors({kind.usable_bytes for kind in kinds})
    return {kind: WorkerKind(speeds[kind.speed_ratio], sizes[kind.usable_bytes]) for kind in kinds}


def crews(kinds: Iterable[WorkerKind]) -> list[tuple[WorkerKind, ...]]:
    """All workers, those without the slowest, and those without the smallest, fastest first; the widest gaps part them."""
    everybody = fastest_first(kinds)
    amounts = ([kind.speed_ratio for kind in everybody], [float(kind.usable_bytes) for kind in everybody])
    found = [everybody]
    for own in amounts:
        gaps = sorted(pairwise(sorted(set(own))), key=lambda pair: pair[0] - pair[1])
        for _, least in gaps[: MOST_CREWS - 1]:
            found.append(tuple(kind for kind, amount in zip(everybody, own, strict=True) if amount >= least))
    return list(dict.fromkeys(found))


def _floors(values: Collection[Number]) -> dict[Number, Number]:
    """The least value of each value's interval: `MOST_LEVELS` of one width where there are more values, else one for each."""
    if len(values) <= MOST_LEVELS:
        return {value: value for value in values}
    low, high = min(values), max(values)
    places = {value: min(MOST_LEVELS - 1, int((value - low) / (high - low) * MOST_LEVELS)) for value in values}
    least = {places[value]: value for value in sorted(values, reverse=True)}
    return {value: least[place] for value, place in places.items()}


class Firsts(NamedTuple):
    """What is known of the first stages of all pipelines of an arrangement; in layers."""

    most: int
    """No first stage holds more."""
    common: int
    """Some first stage holds as many."""


ANY = Firsts(most=np.iinfo(np.int64).max, common=0)
"""Nothing is known."""


class Crew(NamedTuple):
    """What a chain of workers brings, whatever is asked of it; shape [stages] each, see `Chain`."""

    speeds: Floats
    above: Floats
    below: Floats
    usable_bytes: Ints

    @classmethod
    def of(cls, kinds: Sequence[WorkerKind]) -> "Crew":
        """The arrays of a chain of workers, first stage first."""
        speeds = np.array([kind.speed_ratio for kind in kinds])
        return cls(
            speeds=speeds,
            above=np.concatenate(([1.0], np.maximum.accumulate(speeds[:-1]))),
            below=np.concatenate((np.maximum.accumulate(speeds[:0:-1])[::-1], [1.0])),
            usable_bytes=np.array([kind.usable_bytes for kind in kinds], dtype=np.int64),
        )
