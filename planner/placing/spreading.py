"""Which reductions have to leave their hosts, because replicas of a layer are kept on different ones."""

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate

from kintsugi.core.cluster import Cluster
from kintsugi.core.plan import Plan
from planner.arranging.degrees import Degrees
from planner.placing.survival import HOST_WEIGHT, plan_exposure


def is_spread(plan: Plan, cluster: Cluster, usable: Sequence[str]) -> bool:
    """Whether no host has all replicas of a layer, two at least, while others are usable; then every reduction leaves its host."""
    return plan_exposure(plan, cluster, usable) < HOST_WEIGHT


def are_apart(plan: Plan, cluster: Cluster, usable: Sequence[str]) -> bool:
    """Whether a plan keeps replicas on different hosts where they might share one: that may cost it a shorter step."""
    num_on_host = Counter(cluster.by_id[worker].host for worker in usable)
    has_choice = len(num_on_host) > 1 and max(num_on_host.values()) > 1
    return plan.dp > 1 and has_choice and is_spread(plan, cluster, usable)


def most_confined(workers: Sequence[str], cluster: Cluster, allowed: Degrees) -> int:
    """With more pipelines than this, wherever they are cut, some naming of their workers is spread; 1 where it always is.

    Two pipelines that share no host keep all layers apart, whoever has the other slots. Let p and q be the lengths of the
    two shortest of n pipelines over N workers: p + (n - 1) * q <= N. Any hosts with P workers in all hold one and the others
    hold the other where p <= P <= N - q. Here P is sought among the sums of the smallest and of the largest hosts. With more
    pipelines p and q are no greater, so the first number for which that goes is enough.
    """
    sizes = sorted(Counter(cluster.by_id[worker].host for worker in workers).values())
    sums = {*accumulate(sizes), *accumulate(reversed(sizes))}
    most = allowed.dp[-1]
    return next((dp - 1 for dp in range(2, most + 1) if _are_apart(len(workers), sums, dp, allowed.pp)), most)


def _are_apart(num_workers: int, sums: set[int], dp: int, lengths: range) -> bool:
    """Whether for any lengths some hosts hold the shortest of `dp` pipelines, and the others the second."""
    return all(
        any(first <= inside <= num_workers - min(lengths[-1], (num_workers - first) // (dp - 1)) for inside in sums)
        for first in range(lengths[0], num_workers // dp + 1)
    )
