"""The state that workers hold and slots want, in units that move whole: what the matching counts."""

from collections.abc import Iterable, Sequence
from fractions import Fraction
from functools import cached_property

from kintsugi.core.profile import OptimizerSharding, Profile


class StateUnits:
    """The layers of a profile, and a unit more for every copy of a shared weight that a stage without its owner keeps."""

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        index_of = {layer.name: index for index, layer in enumerate(profile.layers)}
        self._ties = [(index, index_of[layer.tied_to]) for index, layer in enumerate(profile.layers) if layer.tied_to]

    @cached_property
    def parameter_bytes(self) -> tuple[int, ...]:
        """Of each unit, on one device. Shape [units]."""
        layers = self._profile.layers
        copies = (0 if layers[tied].parameter_bytes else layers[owner].parameter_bytes for tied, owner in self._ties)
        return (*(layer.parameter_bytes for layer in layers), *copies)

    @cached_property
    def optimizer_bytes(self) -> tuple[int, ...]:
        """Of each unit, on one device, all its shards together. Shape [units]."""
        layers = self._profile.layers
        copies = (0 if layers[tied].optimizer_bytes else layers[owner].optimizer_bytes for tied, owner in self._ties)
        return (*(layer.optimizer_bytes for layer in layers), *copies)

    def moving_bytes(self, num_holders: Sequence[int], num_slots: Sequence[int]) -> tuple[int, ...]:
        """What more moves to a worker that lacks a unit than to one that holds it, on one device. Shape [units].

        Under zero1 who holds a layer already keeps of its shard what it may, the smaller of the old share and the new one.

        Args:
            num_holders: of each layer before, the dead included.
            num_slots: that want each layer.
        """
        owners = [*range(self._profile.num_layers), *(tied for tied, _ in self._ties)]
        counts = [(num_holders[layer], num_slots[layer]) for layer in owners]
        share_of = {both: min(map(self._share, both)) for both in set(counts)}
        shares = [share_of[both].as_integer_ratio() for both in counts]
        sizes = zip(self.parameter_bytes, self.optimizer_bytes, shares, strict=True)
        return tuple([parameters - (-optimizer * part // whole) for parameters, optimizer, (part, whole) in sizes])

    def _share(self, num_holders: int) -> Fraction:
        """Part of a layer's optimizer state that each of its holders keeps."""
        if self._profile.optimizer_sharding is OptimizerSharding.NONE or not num_holders:
            return Fraction(1)
        return Fraction(min(self._profile.optimizer_copies, num_holders), num_holders)

    def held(self, layers: Iterable[int]) -> tuple[int, ...]:
        """Units of which a worker with these layers has everything."""
        own = tuple(layers)
        return (*own, *(unit for unit, (tied, _) in self._copies if tied in own))

    def wanted(self, layers: Iterable[int]) -> tuple[int, ...]:
        """Units that a slot with these layers needs."""
        own = tuple(layers)
        return (*own, *(unit for unit, (tied, owner) in self._copies if tied in own and owner not in own))

    def layer_of(self, unit: int) -> int:
        """The layer that a unit belongs to."""
        return unit if unit < self._profile.num_layers else self._ties[unit - self._profile.num_layers][0]

    def by_layer(self, units: Iterable[int], *, without: Iterable[int]) -> dict[int, list[int]]:
        """Units that are not among others, by their layer."""
        others = frozenset(without)
        result: dict[int, list[int]] = {}
        for unit in units:
            if unit not in others:
                result.setdefault(self.layer_of(unit), []).append(unit)
        return result

    @cached_property
    def _copies(self) -> tuple[tuple[int, tuple[int, int]], ...]:
        return tuple(enumerate(self._ties, start=self._profile.num_layers))
