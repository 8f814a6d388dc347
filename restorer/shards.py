"""Optimizer state that the holders of a layer share (ZeRO-1): which bytes of it must reach whom, and who still has them."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ShardNeed:
    """Some bytes of a shard that a worker lacks."""

    target: str
    num_bytes: int
    sources: tuple[str, ...]
    """Survivors that keep the shard; none where it is lost."""


@dataclass(slots=True)
class _Piece:
    """Bytes of an old shard that have no new keeper yet."""

    shard: int
    num_bytes: int


def shard_needs(
    before: Sequence[str], after: Sequence[str], survivors: Collection[str], num_bytes: int, copies: int
) -> list[ShardNeed]:
    """What must move so that every new holder keeps an equal share, the fewest bytes.

    Holder i of n keeps shard i, a share of 1/n, and with c copies shards i - 1 to i - c + 1 (modulo n) besides. Copy by copy:
    survivors keep what they have up to the new share; what is left over or lost is dealt to those that lack, in order.

    Args:
        before: holders of the layer, in slot order, the dead included.
        after: holders to be, in slot order.
        survivors: workers that are alive with their state.
        num_bytes: of the layer's optimizer state, all shards together.
        copies: of each shard, on as many holders; not more than there are.
    """
    needs = []
    for copy in range(min(copies, len(after))):
        keepers = [before[(shard + copy) % len(before)] for shard in range(len(before))]
        for target, piece in _dealt(keepers, after, survivors, _sizes(num_bytes, len(before))):
            keeping = _holders(before, piece.shard, survivors, copies)
            others = tuple(worker for worker in keeping if worker != target)
            if others or not keeping:
                needs.append(ShardNeed(target, piece.num_bytes, others))
    return needs


def _holders(before: Sequence[str], shard: int, survivors: Collection[str], copies: int) -> tuple[str, ...]:
    """Survivors that keep a shard, in slot order."""
    keepers = {before[(shard + copy) % len(before)] for copy in range(min(copies, len(before)))}
    return tuple(worker for worker in before if worker in keepers and worker in survivors)


def _sizes(num_bytes: int, parts: int) -> list[int]:
    """Equal shares, larger ones first."""
    base, larger = divmod(num_bytes, parts)
    return [base + (index < larger) for index in range(parts)]


def _dealt(
    keepers: Sequence[str], after: Sequence[str], survivors: Collection[str], sizes: Sequence[int]
) -> list[tuple[str, _Piece]]:
    """The pieces of one copy that change hands, with their takers."""
    shard_of = {worker: shard for shard, worker in enumerate(keepers) if worker in survivors}
    held = {worker: sizes[shard_of[worker]] if worker in shard_of else 0 for worker in after}
    by_size = sorted(after, key=lambda worker: -held[worker])
    share = dict(zip(by_size, _sizes(sum(sizes), len(after)), strict=True))
    kept = {shard_of[worker]: min(held[worker], share[worker]) for worker in after if worker in shard_of}
    pool = [_Piece(shard, size - kept.get(shard, 0)) for shard, size in enumerate(sizes) if size > kept.get(shard, 0)]
    result = []
    for worker in after:
        lacking = share[worker] - min(held[worker], share[worker])
        while lacking:
            taken = min(lacking, pool[0].num_bytes)
            result.append((worker, _Piece(pool[0].shard, taken)))
            lacking -= taken
            pool[0].num_bytes -= taken
            if not pool[0].num_bytes:
                pool.pop(0)
    return result
