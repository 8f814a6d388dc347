"""What must move before a plan can run, and who sends it.

Bytes of a transfer count all devices of a worker; its time is that of one device, for they send side by side.
"""

from collections.abc import Collection, Sequence

from kintsugi.core.cluster import Cluster
from kintsugi.core.decision import CheckpointRead, Migration, Transfer
from kintsugi.core.errors import StateLostError
from kintsugi.core.plan import Plan
from kintsugi.core.profile import Profile
from restorer.makespan import makespan_seconds
from restorer.needs import Need, needs_of
from restorer.sourcing import Piece, assign_sources
from restorer.wires import Wires

_ROUNDING = 1e-12
"""Relative error of the floating-point sums behind a lower bound."""


def layer_state_bytes(profile: Profile) -> tuple[int, ...]:
    """Parameters and optimizer state of each layer on one device, in bytes. Shape [layers]."""
    return tuple(layer.parameter_bytes + layer.optimizer_bytes for layer in profile.layers)


def require_state(previous: Plan, survivors: Collection[str]) -> None:
    """Require a surviving holder of every layer.

    Raises:
        StateLostError: some layer has none.
    """
    living = frozenset(survivors)
    lost = tuple(layer for layer, holders in enumerate(previous.holders) if living.isdisjoint(holders))
    if lost:
        raise StateLostError(f"no survivor holds layers {list(lost)}; the job can only restart from a checkpoint", layers=lost)


def plan_migration(
    previous: Plan,
    following: Plan,
    profile: Profile,
    cluster: Cluster,
    survivors: Collection[str],
    *,
    elsewhere: Collection[int] = (),
) -> Migration:
    """Everything that must move from `previous` to `following`, each part from a survivor that holds it.

    Shards of optimizer state that no survivor holds come from the last checkpoint.

    Args:
        previous: the plan whose slots say who holds what.
        following: the plan to move to.
        profile: of the job.
        cluster: links.
        survivors: workers that are alive with their state.
        elsewhere: layers that may be lost: whoever needs one takes it from somewhere else.

    Raises:
        StateLostError: state that must move has no surviving holder, and no checkpoint can bring it back.
    """
    needs = needs_of(previous, following, profile, frozenset(survivors), elsewhere)
    reads = _reads([need for need in needs if not need.sources], profile, cluster)
    moving = [need for need in needs if need.sources]
    if not moving and not reads:
        return Migration()
    pieces, bound = assign_sources(moving, Wires(profile, cluster)) if moving else ([], 0.0)
    transfers = _transfers(pieces, profile, cluster)
    seconds = _read_seconds(reads, profile)
    makespan = max(makespan_seconds(transfers, profile, cluster), seconds)
    return Migration(
        total_bytes=sum(transfer.num_bytes for transfer in transfers),
        makespan_seconds=makespan,
        lower_bound_seconds=min(makespan, max(bound * (1 - _ROUNDING), seconds)),
        transfers=transfers,
        from_checkpoint=reads,
    )


def _transfers(pieces: Sequence[Piece], profile: Profile, cluster: Cluster) -> tuple[Transfer, ...]:
    """The pieces by layer, target, kind and source."""
    transfers = [
        Transfer(
            source=piece.source,
            target=piece.need.target,
            layer=piece.need.layer,
            kind=piece.need.kind,
            num_bytes=piece.device_bytes * profile.tensor_parallel_degree,
        )
        for piece in pieces
    ]
    order = cluster.order
    return tuple(sorted(transfers, key=lambda t: (t.layer, order[t.target], t.kind.value, order[t.source])))


def _reads(needs: Sequence[Need], profile: Profile, cluster: Cluster) -> tuple[CheckpointRead, ...]:
    """What nobody holds any more, by layer and target."""
    num_bytes: dict[tuple[int, str], int] = {}
    kinds = {(need.layer, need.target): need.kind for need in needs}
    for need in needs:
        key = need.layer, need.target
        num_bytes[key] = num_bytes.get(key, 0) + need.device_bytes * profile.tensor_parallel_degree
    ordered = sorted(num_bytes, key=lambda key: (key[0], cluster.order[key[1]]))
    return tuple(
        CheckpointRead(target=target, layer=layer, kind=kinds[layer, target], num_bytes=num_bytes[layer, target])
        for layer, target in ordered
    )


def _read_seconds(reads: Sequence[CheckpointRead], profile: Profile) -> float:
    """Time to read what comes from the checkpoint, beside the transfers."""
    rate = profile.recovery.checkpoint_read_bytes_per_second
    return sum(read.num_bytes for read in reads) / rate if reads and rate is not None else 0.0
