"""Who sends which shards of the state to a joining worker."""

from collections.abc import Sequence
from dataclasses import replace

from kintsugi.core.overlay import Overlay, OverlayLink, Replication, ReplicationShare, WorkerState
from planner.overlay.pricing import alpha, beta
from planner.overlay.synchronization import counting, listening_links
from planner.overlay.topology import find_worker, in_state, links_of, may_hold
from planner.sharding.exact import assign_shards, divisible_seconds
from planner.sharding.problem import ExactTimes, Neighbor, ShardProblem


def replicated(overlay: Overlay, generation: int) -> Overlay:
    """The overlay with a replication for every joining worker that can begin, and every lost source replaced.

    Args:
        overlay: after what happened.
        generation: the one that it will have.
    """
    under_way = []
    for joiner in in_state(overlay, WorkerState.JOINING):
        known = next((one for one in overlay.replications if one.joiner == joiner), None)
        kept = None if known is None else _without_lost(overlay, known)
        plan = kept or _planned(overlay, joiner, generation)
        if plan is not None:
            under_way.append(plan)
    return replace(overlay, replications=tuple(under_way))


def _planned(overlay: Overlay, joiner: str, generation: int) -> Replication | None:
    """The replication of least makespan; None while a link to a worker that counts is not connected and measured."""
    order = counting(overlay)
    wanted = [link for other, link in links_of(overlay, joiner) if other in order]
    sources = listening_links(overlay, joiner, order)
    worker = find_worker(overlay, joiner)
    assert worker is not None
    if not sources or len(sources) < len(wanted) or not all(link.is_measured for link in wanted) or not worker.state_bytes:
        return None
    num_shards = -(-worker.state_bytes // (worker.shard_bytes or worker.state_bytes))
    shard_bytes = -(-worker.state_bytes // num_shards)
    problem = ShardProblem(
        num_shards=num_shards,
        shard_bytes=shard_bytes,
        min_shards_per_neighbor=0,
        neighbors=tuple(_neighbor(overlay, *source) for source in sources),
    )
    plan = Replication(
        joiner=joiner,
        generation=generation,
        state_bytes=worker.state_bytes,
        shard_bytes=shard_bytes,
        shares=_shares(problem.neighbors, assign_shards(problem).counts, 0),
        makespan_seconds=0.0,
        lower_bound_seconds=0.0,
    )
    return _priced(plan, problem.neighbors)


def _without_lost(overlay: Overlay, known: Replication) -> Replication | None:
    """The replication with the shares of lost sources given to the others; None where no source is left, or nobody to listen to.

    The shards are those of the same step, of which the sources hold their copy; which of them the joining worker has already is
    its own matter. Each of the others is taken to be busy with all of its own shards first.
    """
    holders = dict(listening_links(overlay, known.joiner, may_hold(overlay)))
    left = [share.source for share in known.shares if share.source in holders]
    lost = [share for share in known.shares if share.source not in holders]
    if not left or not listening_links(overlay, known.joiner, counting(overlay)):
        return None
    shares = [share for share in known.shares if share.source in holders]
    for share in lost:
        so_far = replace(known, shares=tuple(shares))
        shares += _redistributed(overlay, so_far, share, {source: holders[source] for source in left})
    if not lost:
        return known
    neighbors = tuple(_neighbor(overlay, source, holders[source]) for source in dict.fromkeys(left))
    return _priced(replace(known, shares=tuple(shares)), neighbors)


def _redistributed(
    overlay: Overlay, known: Replication, lost: ReplicationShare, left: dict[str, OverlayLink]
) -> tuple[ReplicationShare, ...]:
    neighbors = []
    for source, link in left.items():
        one = _neighbor(overlay, source, link)
        busy = _num_bytes(known, source) * one.beta_seconds_per_byte
        neighbors.append(replace(one, ready_seconds=one.ready_seconds + busy))
    problem = ShardProblem(
        num_shards=lost.num_shards, shard_bytes=known.shard_bytes, min_shards_per_neighbor=0, neighbors=tuple(neighbors)
    )
    return _shares(neighbors, assign_shards(problem).counts, lost.first_shard)


def _neighbor(overlay: Overlay, source: str, link: OverlayLink) -> Neighbor:
    return Neighbor(
        id=source,
        propagation_seconds=alpha(link),
        ready_seconds=ready_seconds(overlay, source),
        beta_seconds_per_byte=beta(link),
    )


def ready_seconds(overlay: Overlay, source: str) -> float:
    """When a source is through with the reduction before, after the first one to be: its way from the tree's root in latency.

    Everybody's result comes down from the root, whatever each waited for before; in a ring all end together. (The paper's
    tau_sync is the time that each spent in the reduction: it makes whoever computed fast, and waited, look busy.)
    """
    seconds, worker, policy = 0.0, source, overlay.synchronization
    while (parent := policy.parents.get(worker)) is not None:
        link = next((link for other, link in links_of(overlay, worker) if other == parent), None)
        seconds += 0.0 if link is None or link.alpha_seconds is None else link.alpha_seconds
        worker = parent
    return seconds


def _priced(plan: Replication, neighbors: tuple[Neighbor, ...]) -> Replication:
    """With the makespan of the very bytes that each source sends, in exact arithmetic, and the bound on any."""
    bytewise = ShardProblem(num_shards=plan.state_bytes, shard_bytes=1, min_shards_per_neighbor=0, neighbors=neighbors)
    times = ExactTimes.of(bytewise)
    told = times.assignment([_num_bytes(plan, one.id) for one in neighbors])
    bound = divisible_seconds(times, plan.state_bytes)
    return replace(plan, makespan_seconds=told.makespan_seconds, lower_bound_seconds=bound)


def _num_bytes(plan: Replication, source: str) -> int:
    ranges = (plan.byte_range(share, plan.state_bytes) for share in plan.shares if share.source == source)
    return sum(end - begin for begin, end in ranges)


def _shares(neighbors: Sequence[Neighbor], counts: Sequence[int], first: int) -> tuple[ReplicationShare, ...]:
    """Consecutive shards from `first` on, in the order of `neighbors`; nobody sends nothing."""
    shares = []
    for neighbor, count in zip(neighbors, counts, strict=True):
        if count:
            shares.append(ReplicationShare(source=neighbor.id, first_shard=first, num_shards=count))
            first += count
    return tuple(shares)
