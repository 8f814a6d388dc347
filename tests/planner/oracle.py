"""All plans of small problems, priced one by one."""

import itertools
from collections.abc import Iterator
from functools import cache

from estimator.costs import Costs
from estimator.layers import LayerSums
from estimator.memory import stage_peak_bytes
from estimator.moments import stage_moments
from estimator.pipeline import pipeline_times
from kintsugi.core.cluster import Cluster
from kintsugi.core.plan import Schedule
from kintsugi.core.profile import Profile


def splits(num_layers: int, num_stages: int) -> Iterator[tuple[int, ...]]:
    """Stage boundaries of every contiguous split."""
    for inner in itertools.combinations(range(1, num_layers), num_stages - 1):
        yield (0, *inner, num_layers)


def split_seconds(
    profile: Profile,
    cuts: tuple[int, ...],
    num_microbatches: int,
    num_replicas: int = 1,
    schedule: Schedule = Schedule.ONE_F_ONE_B,
) -> float:
    """Pipeline time of one split on equal workers of different hosts; infinite where memory does not suffice."""
    sums, num_stages = LayerSums(profile), len(cuts) - 1
    for index, (a, b) in enumerate(itertools.pairwise(cuts)):
        moments = stage_moments(schedule, index, num_stages, num_microbatches)
        peak = stage_peak_bytes(sums, a, b, moments=moments, num_replicas=num_replicas)
        if peak > profile.device.usable_bytes:
            return float("inf")
    stages = [sums.times(a, b) for a, b in itertools.pairwise(cuts)]
    delays = [profile.network.inter_host.transfer_seconds(profile.layers[cut - 1].output_bytes) for cut in cuts[1:-1]]
    forward, backward = [s.forward_seconds for s in stages], [s.backward_seconds for s in stages]
    return pipeline_times(schedule, forward, backward, delays, num_microbatches).pipeline_seconds


def best_split_seconds(
    profile: Profile, num_stages: int, num_microbatches: int, schedule: Schedule = Schedule.ONE_F_ONE_B
) -> float:
    """Least time over every split."""
    if num_stages > profile.num_layers:
        return float("inf")
    return min(split_seconds(profile, cuts, num_microbatches, schedule=schedule) for cuts in splits(profile.num_layers, num_stages))


def best_single_step_seconds(profile: Profile, num_workers: int, num_microbatches: int) -> float:
    """Least step of a single pipeline over every length and split: the last pass, the commit, and the longest update."""
    costs, result = Costs(profile, Cluster.uniform(num_workers)), float("inf")
    for length in range(1, min(num_workers, profile.num_layers) + 1):
        for cuts in splits(profile.num_layers, length):
            updates = [sum(item.optimizer_seconds for item in profile.layers[a:b]) for a, b in itertools.pairwise(cuts)]
            after = costs.commit_seconds(length) + max(updates)
            result = min(result, split_seconds(profile, cuts, num_microbatches) + after)
    return result


def best_pipeline_seconds(profile: Profile, num_workers: int, num_microbatches: int, dp: int) -> float:
    """Least pipeline time over every multiset of `dp` lengths, every share of micro-batches and every split."""
    best = {
        (p, m): best_split_seconds(profile, p, m)
        for p in range(1, min(num_workers, profile.num_layers) + 1)
        for m in range(1, num_microbatches + 1)
    }
    result = float("inf")
    for lengths in itertools.combinations_with_replacement(range(1, min(num_workers, profile.num_layers) + 1), dp):
        if sum(lengths) > num_workers:
            continue
        for shares in _shares(num_microbatches, dp):
            result = min(result, max(best[p, m] for p, m in zip(lengths, shares, strict=True)))
    return result


def best_named_seconds(profile: Profile, cluster: Cluster, num_microbatches: int, max_dp: int = 1000) -> float:
    """Least pipeline time over all ordered crews of named workers, every share of micro-batches and every split; O(workers!)."""
    costs, names = Costs(profile, cluster), [worker.id for worker in cluster.workers]
    crews = [
        frozenset(chosen)
        for size in range(1, len(names) + 1)
        for chosen in itertools.combinations(names, size)
        if size <= profile.num_layers
    ]
    counts = range(1, num_microbatches + 1)
    best = {
        (crew, m): min(_crew_seconds(costs, order, m) for order in itertools.permutations(sorted(crew)))
        for crew in crews
        for m in counts
    }

    @cache
    def least(left: frozenset[str], m: int, dp: int) -> float:
        if m == 0 or not left or not dp:
            return float("inf") if m else 0.0
        first, shares = min(left), range(1, m + 1)
        uses = (max(best[crew, n], least(left - crew, m - n, dp - 1)) for crew in crews if first in crew <= left for n in shares)
        return min(least(left - {first}, m, dp), *uses)

    return least(frozenset(names), num_microbatches, max_dp)


def _crew_seconds(costs: Costs, workers: tuple[str, ...], num_microbatches: int) -> float:
    """Least time over every split on named workers, first stage first, over their own links."""
    result = float("inf")
    for cuts in splits(costs.profile.num_layers, len(workers)):
        stages = [costs.stage(worker, a, b) for worker, (a, b) in zip(workers, itertools.pairwise(cuts), strict=True)]
        hops = zip(workers, workers[1:], cuts[1:-1], strict=False)
        delays = [costs.boundary_seconds(source, target, cut) for source, target, cut in hops]
        forward, backward = [s.forward_seconds for s in stages], [s.backward_seconds for s in stages]
        times = pipeline_times(Schedule.ONE_F_ONE_B, forward, backward, delays, num_microbatches)
        result = min(result, times.pipeline_seconds)
    return result


def _shares(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    if parts == 1:
        yield (total,)
        return
    for first in range(1, total - parts + 2):
        for rest in _shares(total - first, parts - 1):
            yield (first, *rest)
