"""What workers hold all the time of the layers that they have: parameters, gradients, and their share of the optimizer state."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np

from estimator.arrays import Ints
from estimator.compiled import borrowing, compiled
from kintsugi.core.profile import LayerProfile


@dataclass(frozen=True, slots=True)
class Tie:
    """What a layer that shares parameters adds to what layers count by themselves, apart from its owner and beside it; in bytes."""

    layer: int
    owner: int
    weights_apart: int
    optimizer_apart: int
    weights_together: int
    optimizer_together: int

    @classmethod
    def of(cls, index: int, owner_index: int, layer: LayerProfile, owner: LayerProfile) -> Self:
        """A layer that counts no parameters of its own shares all of its owner's; another one counts what it shares itself."""
        if not layer.parameter_bytes:
            return cls(index, owner_index, owner.parameter_bytes + owner.gradient_bytes, owner.optimizer_bytes, 0, 0)
        shared = layer.tied_bytes
        return cls(index, owner_index, shared, 0, -shared, -(layer.optimizer_bytes * shared // layer.parameter_bytes))


class Holding(NamedTuple):
    """What layers count by themselves, and what those that share parameters add to that, as arrays; in bytes."""

    weights: Ints
    """Parameters and gradients of the first n layers, shape [layers + 1]."""
    optimizer: Ints
    """Optimizer state of the first n layers, shape [layers + 1]."""
    ties: Ints
    """Fields of `Tie`, shape [ties, 6]."""
    copies: int
    """How many shards of a layer's optimizer state each replica keeps."""
    num_shards: int
    """Of how many."""

    @classmethod
    def of(cls, weights: Sequence[float], optimizer: Sequence[float], ties: Sequence[Tie], shards: tuple[int, int]) -> Self:
        """From prefix sums; `shards` are how many a replica keeps, and of how many."""
        rows = [
            (tie.layer, tie.owner, tie.weights_apart, tie.optimizer_apart, tie.weights_together, tie.optimizer_together)
            for tie in ties
        ]
        table = np.array(rows, dtype=np.int64).reshape(-1, 6)
        return cls(np.array(weights, dtype=np.int64), np.array(optimizer, dtype=np.int64), table, *shards)


@borrowing
def held_bytes(holding: Holding, starts: Ints, stops: Ints) -> int:
    """Of several layer ranges on one worker; what layers of two of them share is there once. Shape [ranges] each."""
    weights, optimizer = 0, 0
    for place in range(len(starts)):
        weights += holding.weights[stops[place]] - holding.weights[starts[place]]
        optimizer += holding.optimizer[stops[place]] - holding.optimizer[starts[place]]
    for tie in range(len(holding.ties)):
        if _holds(starts, stops, holding.ties[tie, 0]):
            column = 4 if _holds(starts, stops, holding.ties[tie, 1]) else 2
            weights += holding.ties[tie, column]
            optimizer += holding.ties[tie, column + 1]
    return int(weights - (-optimizer * holding.copies // holding.num_shards))


@borrowing
def _holds(starts: Ints, stops: Ints, layer: int) -> bool:
    result = False
    for place in range(len(starts)):
        result = result or starts[place] <= layer < stops[place]
    return result


@compiled
def held_table(holding: Holding) -> Ints:
    """`held_bytes` of every layer range on a worker that has no other; 0 for empty ones. Shape [layers + 1, layers + 1]."""
    bounds = np.arange(len(holding.weights))
    result = np.zeros((len(bounds), len(bounds)), dtype=np.int64)
    for start in range(len(bounds)):
        for stop in range(start + 1, len(bounds)):
            result[start, stop] = held_bytes(holding, bounds[start : start + 1], bounds[stop : stop + 1])
    return result
