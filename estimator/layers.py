"""Sums over layer ranges: what a stage takes and holds, in O(1) per range after one pass over the layers."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple, Self

import numpy as np

from estimator.arrays import Ints
from estimator.compiled import compiled
from estimator.holding import Holding, Tie, held_bytes, held_table
from kintsugi.core.profile import LayerProfile, Profile

PASS, FIRST_PASS, EARLY_PASS, INPUT_PART, EARLY_INPUT, WEIGHT_PART, FIRST_WEIGHT = KINDS = range(7)
"""Passes by what they take: a forward or whole backward pass, and the first backward one of a step, before which there are no
gradients; a forward pass or an input part before the step's first weight part; and that one."""


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


class _Taking(NamedTuple):
    """What passes of one kind take over any layers: the greatest of the layers' own `ends`, and what range they belong to."""

    ends: list[int]
    """Shape [layers]."""
    by_stop: list[int]
    """To add where the range stops, shape [layers + 1]."""
    by_start: list[int]
    """To add where it starts, shape [layers + 1]."""

    @classmethod
    def of(cls, own: Ints, kept: Ints, absent: Ints, *, is_first: bool = False) -> Self:
        """Of what each layer's passes take by themselves.

        Args:
            own: shape [layers].
            kept: of the first n layers, and nothing any more of a layer that the pass is through with. Shape [layers + 1].
            absent: gradients of the first n layers that are not there yet. Shape [layers + 1].
            is_first: whether this pass makes them, layer by layer.
        """
        ends = own + kept[1:] - (absent[1:] if is_first else 0)
        by_stop = -kept - (0 if is_first else absent)
        return cls(ends.tolist(), by_stop.tolist(), absent.tolist())


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
        self.optimizer = _prefix(layer.update_seconds for layer in layers)
        self._weights = _prefix(layer.parameter_bytes + layer.gradient_bytes for layer in layers)
        self._optimizer_bytes = _prefix(layer.optimizer_bytes for layer in layers)
        self.activations = _prefix(layer.activation_bytes for layer in layers)
        """Bytes of the first n layers and one micro-batch, shape [layers + 1]."""
        self.entry_bytes = (*(layer.entry_bytes for layer in layers), 0)
        """What stages that begin with layer n keep of their input, shape [layers + 1]."""
        self.deferred = _prefix(layer.deferred_bytes or layer.activation_bytes for layer in layers)
        """Bytes that wait for the weight part, of the first n layers and one micro-batch, shape [layers + 1]."""
        self.deferred_entry_bytes = (*(0 if layer.deferred_bytes else layer.entry_bytes for layer in layers), 0)
        """What stages that begin with layer n keep of their input until the weight part, shape [layers + 1]."""
        self._update_bytes = tuple(layer.optimizer_temporary_bytes for layer in layers)
        self._holdings: dict[int, Holding] = {}
        """By number of replicas."""
        self._held_bytes: dict[tuple[tuple[tuple[int, int], ...], int], int] = {}
        self._temporary_bytes: dict[tuple[int, int, int], int] = {}

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
        return self.held_bytes([(start, stop)], num_replicas)

    def held_bytes(self, ranges: Sequence[tuple[int, int]], num_replicas: int) -> int:
        """`static_bytes` of several layer ranges on one worker; what layers of two of them share is there once."""
        key = tuple(ranges), num_replicas
        if key not in self._held_bytes:
            starts, stops = np.array(ranges, dtype=np.int64).reshape(-1, 2).T.copy()
            self._held_bytes[key] = int(held_bytes(self.holding(num_replicas), starts, stops))
        return self._held_bytes[key]

    def holding(self, num_replicas: int) -> Holding:
        """What `held_bytes` adds up, for compiled functions."""
        if num_replicas not in self._holdings:
            shards = self._optimizer_share(num_replicas)
            self._holdings[num_replicas] = Holding.of(self._weights, self._optimizer_bytes, self._ties, shards)
        return self._holdings[num_replicas]

    def static_table(self, num_replicas: int) -> Ints:
        """`static_bytes` of all layer ranges at once; entries with stop <= start mean nothing. Shape [layers + 1, layers + 1]."""
        return held_table(self.holding(num_replicas))

    def least_static_table(self, num_replicas: int) -> Ints:
        """What layer ranges add to a worker's `held_bytes` at least, whatever else it holds. Shape as of `static_table`."""
        weights, optimizer = (np.array(prefix, dtype=np.int64) for prefix in (self._weights, self._optimizer_bytes))
        for tie in self._ties:
            weights[tie.layer + 1 :] += min(tie.weights_apart, tie.weights_together)
            optimizer[tie.layer + 1 :] += min(tie.optimizer_apart, tie.optimizer_together)
        copies, shared = self._optimizer_share(num_replicas)
        result: Ints = weights[None] - weights[:, None] + (optimizer[None] - optimizer[:, None]) * copies // shared
        return result

    def _optimizer_share(self, num_replicas: int) -> tuple[int, int]:
        """How many shards of a layer's optimizer state each replica keeps, and of how many."""
        num_shards = self.profile.optimizer_shards(num_replicas)
        return min(self.profile.optimizer_copies, num_shards), num_shards

    def activation_bytes(self, start: int, stop: int) -> int:
        """Activations of one micro-batch, with the first layer's input where that layer does not keep it itself."""
        return int(self.activations[stop] - self.activations[start]) + self.entry_bytes[start]

    def deferred_bytes(self, start: int, stop: int) -> int:
        """What waits for the weight part of one micro-batch."""
        return int(self.deferred[stop] - self.deferred[start]) + self.deferred_entry_bytes[start]

    def temporary_bytes(self, start: int, stop: int, kind: int = PASS) -> int:
        """The most that a pass of a kind takes beyond what is kept of all layers: its widest layer's, with what others keep then.

        Layers after that one keep nothing any more in a whole backward pass, or a weight part, and in an input part what
        waits for the weight part.
        """
        key = start, stop, kind
        if key not in self._temporary_bytes:
            ends, by_stop, by_start = self._taking(kind)
            self._temporary_bytes[key] = max(ends[start:stop]) + by_stop[stop] + by_start[start]
        return self._temporary_bytes[key]

    def update_bytes(self, start: int, stop: int) -> int:
        """The most that an update takes: layers are updated one after the other."""
        return max(self._update_bytes[start:stop])

    def temporary_table(self, kind: int = PASS) -> Ints:
        """`temporary_bytes` of all layer ranges; entries with stop <= start mean nothing. Shape [layers + 1, layers + 1]."""
        ends, by_stop, by_start = self._taking(kind)
        result: Ints = _greatest(ends) + np.array(by_stop, dtype=np.int64)[None, :] + np.array(by_start, dtype=np.int64)[:, None]
        return result

    def update_table(self) -> Ints:
        """`update_bytes` of all layer ranges; entries with stop <= start mean nothing. Shape [layers + 1, layers + 1]."""
        return _greatest(self._update_bytes)

    @cached_property
    def _whole_takings(self) -> tuple[_Taking, ...]:
        """What forward and whole backward passes take, by kind."""
        return _whole_takings(self.profile.layers, np.array(self.activations, dtype=np.int64))

    @cached_property
    def _part_takings(self) -> tuple[_Taking, ...]:
        """What passes take where backward ones are split, by the kinds after those."""
        kept, deferred = (np.array(own, dtype=np.int64) for own in (self.activations, self.deferred))
        return _part_takings(self.profile.layers, kept, deferred)

    def _taking(self, kind: int) -> _Taking:
        return self._whole_takings[kind] if kind < EARLY_PASS else self._part_takings[kind - EARLY_PASS]

    @cached_property
    def _ties(self) -> tuple[Tie, ...]:
        """Layers that share parameters with another one, where it is known how many."""
        layers = self.profile.layers
        index_of = {layer.name: index for index, layer in enumerate(layers)}
        pairs = [(index, index_of[layer.tied_to]) for index, layer in enumerate(layers) if layer.tied_to is not None]
        return tuple(
            Tie.of(index, owner, layers[index], layers[owner])
            for index, owner in pairs
            if layers[index].tied_bytes or not layers[index].parameter_bytes
        )


def _whole_takings(layers: Sequence[LayerProfile], kept: Ints) -> tuple[_Taking, ...]:
    """Where temporary memory is not known, gradients count as if they were always there: that is equation 14.

    Args:
        layers: of the profile.
        kept: activations of the first n layers, shape [layers + 1].
    """
    first = _int_prefix(layer.gradient_bytes if layer.temporary_bytes else 0 for layer in layers)
    sizes = [(own.temporary_bytes, _first_temporary_bytes(own)) for own in layers]
    passes, grown = np.array(sizes, dtype=np.int64).T
    return _Taking.of(passes, kept, np.zeros_like(kept)), _Taking.of(grown, kept, first, is_first=True)


def _part_takings(layers: Sequence[LayerProfile], kept: Ints, deferred: Ints) -> tuple[_Taking, ...]:
    """As above; `deferred` is what of the first n layers waits for the weight part, shape [layers + 1]."""
    late = _int_prefix(layer.gradient_bytes for layer in layers) * _are_divisible(layers)
    sizes = [(own.temporary_bytes, own.input_temporary_bytes, own.weight_temporary_bytes, _made_bytes(own)) for own in layers]
    passes, inputs, weights, made = np.array(sizes, dtype=np.int64).T
    inputs, nothing = np.maximum(inputs, np.diff(deferred - kept)), np.zeros_like(kept)
    return (
        _Taking.of(passes, kept, late),
        _Taking.of(inputs, kept - deferred, nothing),
        _Taking.of(inputs, kept - deferred, late),
        _Taking.of(weights, deferred, nothing),
        _Taking.of(weights + np.minimum(made, np.diff(late)), deferred, late, is_first=True),
    )


def _are_divisible(layers: Sequence[LayerProfile]) -> bool:
    """Whether no stage but a first one makes gradients before its first weight part, as far as that is known."""
    is_known = all(layer.weight_temporary_bytes or not layer.gradient_bytes for layer in layers[1:])
    return is_known and all(layer.tied_to in {None, layers[0].name} for layer in layers)


def _first_temporary_bytes(layer: LayerProfile) -> int:
    """No less than of later passes, and no more than with all of the layer's gradients; where it is not known, without any."""
    return min(max(layer.first_temporary_bytes, layer.temporary_bytes), layer.temporary_bytes + layer.gradient_bytes)


def _made_bytes(layer: LayerProfile) -> int:
    """How much more the first weight part of a step takes, as it makes gradients; where that is not known, all of them."""
    if not layer.first_weight_temporary_bytes:
        return layer.gradient_bytes
    return max(layer.first_weight_temporary_bytes - layer.weight_temporary_bytes, 0)


def _greatest(values: Sequence[int]) -> Ints:
    """The greatest of values[a:b]; zero for empty ranges. Shape [values + 1, values + 1]."""
    return _greatest_of(np.array(values, dtype=np.int64))


@compiled
def _greatest_of(values: Ints) -> Ints:
    count = len(values)
    result = np.zeros((count + 1, count + 1), dtype=np.int64)
    for start in range(count):
        result[start, start + 1] = values[start]
        for stop in range(start + 2, count + 1):
            result[start, stop] = max(result[start, stop - 1], values[stop - 1])
    return result


def _int_prefix(values: Iterable[int]) -> Ints:
    return np.array(_prefix(values), dtype=np.int64)


def _prefix(values: Iterable[float]) -> tuple[float, ...]:
    return tuple(accumulate(values, initial=0))
