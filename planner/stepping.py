"""What a step of an arrangement takes on equal workers, before anybody is placed: pipelines that are alike are timed once."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from estimator.communication import ring_all_reduce_seconds
from estimator.costs import Costs
from estimator.split import scheduled_times
from kintsugi.core.plan import Schedule
from kintsugi.core.profile import LinkCost
from restorer.buckets import Bucket, bucket_bytes, buckets_of
from restorer.ordering import quickly_reduced_seconds

Kind = tuple[tuple[int, ...], int]
"""Stage boundaries and micro-batches of a pipeline."""

Member = tuple[Kind, int]
"""A stage of the pipelines of a kind."""

Reducing = tuple[list[Member], float]
"""Who takes part in a reduction, and how long it takes in seconds."""


@dataclass(frozen=True, slots=True)
class Stepper:
    """Equal workers over equal links."""

    costs: Costs
    schedule: Schedule
    speed_ratio: float
    link: LinkCost
    """Between neighbouring stages."""
    _ends: dict[Kind, tuple[float, ...]] = field(default_factory=dict, init=False)

    def seconds(self, pipelines: Counter[Kind], reduction_link: LinkCost) -> float:
        """A step of pipelines given by kind and number, as the estimator reckons it, with a quickly found order of reductions.

        Plans are given the best order that is found; their steps may be shorter.

        Args:
            pipelines: how many there are of each kind.
            reduction_link: that paces reductions.
        """
        cuts = tuple(dict.fromkeys(cuts for cuts, _ in pipelines))
        buckets = buckets_of([tuple((stop, stage) for stage, stop in enumerate(shape[1:])) for shape in cuts], self.costs.profile)
        ranges = {pair for shape in cuts for pair in pairwise(shape)}
        update = max(self.costs.sums.times(a, b, self.speed_ratio).optimizer_seconds for a, b in ranges)
        num_workers = sum(times * (len(shape) - 1) for (shape, _), times in pipelines.items())
        reduced = self._reduced_seconds(cuts, buckets, pipelines, reduction_link)
        return reduced + self.costs.commit_seconds(num_workers) + update

    def _reduced_seconds(
        self, cuts: Sequence[tuple[int, ...]], buckets: Sequence[Bucket], pipelines: Counter[Kind], link: LinkCost
    ) -> float:
        """End of the last reduction."""
        ends = {(kind, stage): end for kind in pipelines for stage, end in enumerate(self._stage_ends(kind))}
        timed = self._timed(cuts, buckets, pipelines, link)
        seconds = [own for _, own in timed]
        ready = [max(ends[member] for member in members) for members, _ in timed]
        num_bytes = [bucket_bytes(bucket, self.costs.profile) for bucket in buckets]
        return max(*ends.values(), quickly_reduced_seconds(buckets, num_bytes, seconds, ready))

    def _timed(
        self, cuts: Sequence[tuple[int, ...]], buckets: Sequence[Bucket], pipelines: Counter[Kind], link: LinkCost
    ) -> list[Reducing]:
        """Who reduces each bucket, and how long that takes. Shape [buckets]."""
        kinds_of: dict[tuple[int, ...], list[Kind]] = {shape: [] for shape in cuts}
        for kind in pipelines:
            kinds_of[kind[0]].append(kind)
        result = []
        for bucket in buckets:
            stages = zip(cuts, bucket.stages, strict=True)
            members = [(kind, stage) for shape, own in stages for stage in own for kind in kinds_of[shape]]
            num_workers = sum(pipelines[kind] for kind, _ in members)
            result.append((members, ring_all_reduce_seconds(link, num_workers, bucket_bytes(bucket, self.costs.profile))))
        return result

    def _stage_ends(self, kind: Kind) -> tuple[float, ...]:
        """When the stages of a pipeline are through with their last backward pass. Shape [stages]."""
        if kind not in self._ends:
            cuts, count = kind
            stages = [self.costs.sums.times(a, b, self.speed_ratio) for a, b in pairwise(cuts)]
            delays = [self.link.transfer_seconds(self.costs.profile.layers[cut - 1].output_bytes) for cut in cuts[1:-1]]
            self._ends[kind] = scheduled_times(self.schedule, stages, delays, count).stage_end_seconds
        return self._ends[kind]
