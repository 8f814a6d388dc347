"""Chameleon's Algorithm 1 as published: a heuristic to compare the search with, never to plan by.

The number of pipelines is within one of the original; workers are partitioned over them; micro-batches are shared out in
proportion to workers; layers are split evenly, and every way to hand out the remaining ones is tried. What the paper
leaves open is read in its favour: partitions are enumerated, the most even ones first, all of them or the first `MOST_CANDIDATES`.
"""

import math
from collections.abc import Iterator
from itertools import accumulate, combinations, islice, pairwise

from estimator.costs import Costs
from estimator.memory import stage_peak_bytes
from estimator.moments import stage_moments
from estimator.split import scheduled_times
from kintsugi.core.errors import InfeasibleError
from kintsugi.core.job import JobSettings
from kintsugi.core.plan import Schedule
from planner.arranging.arrangement import Arrangement, PipelineShape
from planner.arranging.degrees import degrees

MOST_CANDIDATES = 5_000
"""Partitions that are tried for one number of pipelines."""


def algorithm_1(
    costs: Costs, settings: JobSettings, workers: tuple[str, ...], original_dp: int, splitter: "Splitter | None" = None
) -> Arrangement:
    """The arrangement with the shortest pipeline time (equation 10) among the paper's candidates.

    Args:
        costs: of equal workers.
        settings: micro-batches, ranges and schedule.
        workers: all that are left; every one is used.
        original_dp: number of pipelines before the failure.
        splitter: of the same profile, schedule and equal workers, where an earlier call's splits are to be kept.

    Raises:
        InfeasibleError: no candidate fits the ranges or memory.
    """
    allowed = degrees(settings.ranges, len(workers), costs.profile.num_layers, settings.num_microbatches)
    splitter = splitter or Splitter(costs, settings.schedule, workers)
    best: tuple[float, tuple[PipelineShape, ...]] | None = None
    for dp in range(original_dp - 1, original_dp + 2):
        if dp not in allowed.dp:
            continue
        for lengths in islice(_partitions(len(workers), dp, allowed.pp), MOST_CANDIDATES):
            shares = _distribute_batch(settings.num_microbatches, lengths)
            splits = [splitter.best(length, share, dp) for length, share in zip(lengths, shares, strict=True)]
            seconds = max(split[0] for split in splits)
            if math.isfinite(seconds) and (best is None or seconds < best[0]):
                shapes = (PipelineShape(cuts, share) for (_, cuts), share in zip(splits, shares, strict=True))
                best = seconds, tuple(shapes)
    if best is None:
        raise InfeasibleError("no candidate of Algorithm 1 fits the ranges and memory", field="workers", value=len(workers))
    return Arrangement(best[1], best[0])


def _partitions(total: int, parts: int, allowed: range) -> Iterator[tuple[int, ...]]:
    """All multisets of `parts` lengths that sum to `total`, the longest length of each first; the most even ones come first."""
    if parts == 1:
        if total in allowed:
            yield (total,)
        return
    for first in range(-(-total // parts), min(allowed[-1], total - (parts - 1) * allowed[0]) + 1):
        yield from ((first, *rest) for rest in _partitions(total - first, parts - 1, range(allowed[0], first + 1)))


def _distribute_batch(num_microbatches: int, lengths: tuple[int, ...]) -> list[int]:
    """Micro-batches in proportion to workers, the remaining ones one by one; nobody goes without."""
    shares = [num_microbatches * length // sum(lengths) for length in lengths]
    for index in range(num_microbatches - sum(shares)):
        shares[index % len(shares)] += 1
    while 0 in shares:
        shares[shares.index(max(shares))] -= 1
        shares[shares.index(0)] += 1
    return shares


class Splitter:
    """Even splits first: the remaining layers go to any of the stages."""

    def __init__(self, costs: Costs, schedule: Schedule, workers: tuple[str, ...]) -> None:
        self._costs, self._schedule, self._workers = costs, schedule, workers
        self._known: dict[tuple[int, int, int], tuple[float, tuple[int, ...]]] = {}

    def best(self, num_stages: int, num_microbatches: int, dp: int) -> tuple[float, tuple[int, ...]]:
        """The shortest pipeline time in seconds, infinite where nothing fits memory, and its stage boundaries."""
        key = num_stages, num_microbatches, dp
        if key not in self._known:
            base, rest = divmod(self._costs.profile.num_layers, num_stages)
            options = (
                tuple(accumulate((base + (stage in larger) for stage in range(num_stages)), initial=0))
                for larger in combinations(range(num_stages), rest)
            )
            self._known[key] = min((self._seconds(cuts, num_microbatches, dp), cuts) for cuts in options)
        return self._known[key]

    def _seconds(self, cuts: tuple[int, ...], num_microbatches: int, dp: int) -> float:
        costs, num_stages = self._costs, len(cuts) - 1
        replicas = costs.profile.optimizer_shards(dp)
        for stage, (a, b) in enumerate(pairwise(cuts)):
            moments = stage_moments(self._schedule, stage, num_stages, num_microbatches)
            peak = stage_peak_bytes(costs.sums, a, b, moments=moments, num_replicas=replicas)
            if peak > costs.usable_bytes(self._workers[0]):
                return math.inf
        stages = [costs.stage(self._workers[0], a, b) for a, b in pairwise(cuts)]
        source, target = self._workers[0], self._workers[min(1, len(self._workers) - 1)]
        delays = [costs.boundary_seconds(source, target, cut) for cut in cuts[1:-1]]
        return scheduled_times(self._schedule, stages, delays, num_microbatches).pipeline_seconds
