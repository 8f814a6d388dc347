"""What workers lack before a plan can run, and which survivors have it."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from kintsugi.core.decision import StateKind
from kintsugi.core.errors import StateLostError
from kintsugi.core.plan import Plan
from kintsugi.core.profile import OptimizerSharding, Profile
from restorer.shards import shard_needs
from restorer.units import StateUnits


@dataclass(frozen=True, slots=True)
class Need:
    """Some bytes of one kind of a layer's state, on one device of a worker."""

    target: str
    layer: int
    kind: StateKind
    device_bytes: int
    sources: tuple[str, ...]
    """Survivors that have all of it, in slot order; none where it must come from a checkpoint."""


def surviving_holders(previous: Plan, survivors: Collection[str]) -> tuple[tuple[str, ...], ...]:
    """Survivors that hold each layer's state, in slot order. Shape [layers][replicas]."""
    living = frozenset(survivors)
    alike = {workers: tuple([worker for worker in workers if worker in living]) for workers in dict.fromkeys(previous.holders)}
    return tuple([alike[workers] for workers in previous.holders])


def needs_of(
    previous: Plan, following: Plan, profile: Profile, survivors: Collection[str], elsewhere: Collection[int] = ()
) -> list[Need]:
    """Everything that workers of `following` lack, layer by layer; but for lost layers in `elsewhere`.

    Parameters are whole on every holder, and so is optimizer state unless it is sharded.

    Raises:
        StateLostError: nobody has some of it, and it is no shard that a checkpoint could bring back.
    """
    is_sharded = profile.optimizer_sharding is OptimizerSharding.ZERO1
    whole = _whole(previous, following, profile, survivors, with_optimizer=not is_sharded)
    needs = [need for need in whole if need.sources or need.layer not in elsewhere]
    lost = {need.layer for need in needs if not need.sources}
    if is_sharded:
        needs += _sharded(previous, following, profile, survivors)
        if not has_checkpoint(profile):
            lost |= {need.layer for need in needs if not need.sources}
    if lost:
        layers = tuple(sorted(lost))
        raise StateLostError(f"no survivor holds all state of layers {list(layers)}", layers=layers)
    return needs


def has_checkpoint(profile: Profile) -> bool:
    """Whether the job writes checkpoints and says how fast they are read."""
    recovery = profile.recovery
    return recovery.checkpoint_interval_seconds is not None and recovery.checkpoint_read_bytes_per_second is not None


def _whole(
    previous: Plan, following: Plan, profile: Profile, survivors: Collection[str], *, with_optimizer: bool
) -> Iterator[Need]:
    units = StateUnits(profile)
    movers = [
        (worker, layers)
        for worker, layers in following.layers_of.items()
        if worker not in survivors or previous.layers_of.get(worker) != layers
    ]
    holders = surviving_holders(previous, survivors) if movers else ()
    lacking: dict[tuple[tuple[int, ...], tuple[int, ...]], list[tuple[int, StateKind, int]]] = {}
    for worker, layers in movers:
        change = previous.layers_of.get(worker, ()) if worker in survivors else (), layers
        if change not in lacking:
            lacking[change] = list(_lacking(units, *change, with_optimizer=with_optimizer))
        for layer, kind, num_bytes in lacking[change]:
            yield Need(worker, layer, kind, num_bytes, holders[layer])


def _lacking(
    units: StateUnits, own: tuple[int, ...], wanted: tuple[int, ...], *, with_optimizer: bool
) -> Iterator[tuple[int, StateKind, int]]:
    """Bytes of each kind and layer that a holder of some layers lacks for others, on one device; where there are any."""
    for layer, missing in units.by_layer(units.wanted(wanted), without=units.held(own)).items():
        parameters = sum([units.parameter_bytes[unit] for unit in missing])
        optimizer = sum([units.optimizer_bytes[unit] for unit in missing]) if with_optimizer else 0
        for kind, num_bytes in ((StateKind.PARAMETER, parameters), (StateKind.OPTIMIZER, optimizer)):
            if num_bytes:
                yield layer, kind, num_bytes


def _sharded(previous: Plan, following: Plan, profile: Profile, survivors: Collection[str]) -> Iterator[Need]:
    units = StateUnits(profile)
    living = frozenset(survivors)
    wanting: dict[int, list[str]] = {}
    for worker, layers in following.layers_of.items():
        for unit in units.wanted(layers):
            wanting.setdefault(unit, []).append(worker)
    for unit, after in sorted(wanting.items()):
        layer, num_bytes = units.layer_of(unit), units.optimizer_bytes[unit]
        before = previous.holders[layer]
        if num_bytes and not (before == tuple(after) and living.issuperset(before)):
            for need in shard_needs(before, after, living, num_bytes, profile.optimizer_copies):
                yield Need(need.target, layer, StateKind.OPTIMIZER, need.num_bytes, need.sources)
