"""Sums over layer ranges: what a stage takes and holds, in O(1) per range after one pass over the layers."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from kintsugi.core.profile import OptimizerSharding, Profile


@dataclass(frozen=True, slots=True)
class StageTimes:
    """What one stage takes on its worker, in seconds per micro-batch (optimizer: per step)."""

    forward_seconds: float
    backward_input_seconds: float
    backward_weight_seconds: float
    optimizer_seconds: float

    @property
    def backward_seconds(self) -> float:
        """Input and weight part."""
        return self.backward_input_seconds + self.backward_weight_seconds


class LayerSums:
    """Prefix sums over a profile's layers."""

    def __init__(self, profile: Profile) -> None:
        """O(layers)."""
        self.profile = profile
        layers = profile.layers
        self.forward = _prefix(layer.forward_seconds for layer in layers)
        self.backward = _prefix(layer.backward_seconds for layer in layers)
        self.backward_input = _prefix(layer.backward_input_seconds for layer in layers)
        self.backward_weight = _prefix(layer.backward_weight_seconds for layer in layers)
        self.optimizer = _prefix(layer.optimizer_seconds for layer in layers)
        self._weights = _prefix(layer.parameter_bytes + layer.gradient_bytes for layer in layers)
        self._optimizer_bytes = _prefix(layer.optimizer_bytes for layer in layers)
        self._activation_bytes = _prefix(layer.activation_bytes for layer in layers)
        self._static_bytes: dict[tuple[int, int, int], int] = {}

    def times(self, start: int, stop: int, speed_ratio: float = 1.0) -> StageTimes:
        """Times of layers start..stop-1 on a worker of the given speed."""
        return StageTimes(
            (self.forward[stop] - self.forward[start]) / speed_ratio,
            (self.backward_input[stop] - self.backward_input[start]) / speed_ratio,
            (self.backward_weight[stop] - self.backward_weight[start]) / speed_ratio,
            (self.optimizer[stop] - self.optimizer[start]) / speed_ratio,
        )

    def static_bytes(self, start: int, stop: int, num_replicas: int) -> int:
        """Parameters, gradients and this replica's optimizer state, shared parameters of absent owners included."""
        key = start, stop, num_replicas
        if key not in self._static_bytes:
            self._static_bytes[key] = self.held_bytes([(start, stop)], num_replicas)
        return self._static_bytes[key]

    def held_bytes(self, ranges: Sequence[tuple[int, int]], num_replicas: int) -> int:
        """`static_bytes` of several layer ranges on one worker; what layers of two of them share is there once."""
        weights = sum(self._weights[stop] - self._weights[start] for start, stop in ranges)
        optimizer = sum(self._optimizer_bytes[stop] - self._optimizer_bytes[start] for start, stop in ranges)
        for tied, owner in self._tied_layers:
            holds_tied, holds_owner = (any(a <= layer < b for a, b in ranges) for layer in (tied, owner))
            if holds_tied and not holds_owner:
                layer = self.profile.layers[owner]
                weights += layer.parameter_bytes + layer.gradient_bytes
                optimizer += layer.optimizer_bytes
        copies, shared = self._optimizer_share(num_replicas)
        return int(weights + -(-optimizer * copies // shared))

    def static_table(self, num_replicas: int) -> npt.NDArray[np.int64]:
        """`static_bytes` of all layer ranges at once; entries with stop <= start mean nothing. Shape [layers + 1, layers + 1]."""
        weights, optimizer = (
            np.array(prefix, dtype=np.int64)[None, :] - np.array(prefix, dtype=np.int64)[:, None]
            for prefix in (self._weights, self._optimizer_bytes)
        )
        bounds = np.arange(self.profile.num_layers + 1)
        start, stop = bounds[:, None], bounds[None, :]
        for tied, owner in self._tied_layers:
            layer = self.profile.layers[owner]
            is_apart = (start <= tied) & (tied < stop) & ~((start <= owner) & (owner < stop))
            weights = weights + is_apart * (layer.parameter_bytes + layer.gradient_bytes)
            optimizer = optimizer + is_apart * layer.optimizer_bytes
        copies, shared = self._optimizer_share(num_replicas)
        result: npt.NDArray[np.int64] = weights - (-optimizer * copies // shared)
        return result

    def _optimizer_share(self, num_replicas: int) -> tuple[int, int]:
        """How many shards of a layer's optimizer state each replica keeps, and of how many."""
        if self.profile.optimizer_sharding is OptimizerSharding.NONE:
            return 1, 1
        return min(self.profile.optimizer_copies, num_replicas), num_replicas

    def activation_bytes(self, start: int, stop: int) -> int:
        """Activations of one micro-batch."""
        return int(self._activation_bytes[stop] - self._activation_bytes[start])

    @cached_property
    def _tied_layers(self) -> tuple[tuple[int, int], ...]:
        """Pairs of a tied layer that shares everything and its owner: such a layer counts no bytes of its own."""
        index_of = {layer.name: index for index, layer in enumerate(self.profile.layers)}
        return tuple(
            (index, index_of[layer.tied_to])
            for index, layer in enumerate(self.profile.layers)
            if layer.tied_to is not None and layer.parameter_bytes == 0
        )


def _prefix(values: Iterable[float]) -> tuple[float, ...]:
    return tuple(accumulate(values, initial=0))
