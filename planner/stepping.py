"""What a step of an arrangement takes on equal workers, before anybody is placed: pipelines that are alike are timed once."""

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

from estimator.communication import ring_all_reduce_seconds
from estimator.costs import Costs
from estimator.split import scheduled_times
from kintsugi.core.plan import Schedule
from kintsugi.core.profile import LinkCost
from restorer.rounds import Bucket, bucket_bytes, colour_buckets

Kind = tuple[tuple[int, ...], int]
"""Stage boundaries and micro-batches of a pipeline."""


@dataclass(frozen=True, slots=True)
class Stepper:
    """Equal workers over equal links."""

    costs: Costs
    schedule: Schedule
    speed_ratio: float
    link: LinkCost
    """Between neighbouring stages."""

    def seconds(self, pipelines: Counter[Kind], reduction_link: LinkCost) -> float:
        """Iteration time of pipelines given by kind and number, as the estimator reckons it.

        Args:
            pipelines: how many there are of each kind.
            reduction_link: that paces reductions.
        """
        free = {(kind, stage): end for kind in pipelines for stage, end in enumerate(self._stage_ends(kind))}
        cuts = tuple(dict.fromkeys(cuts for cuts, _ in pipelines))
        shapes = tuple(tuple((stop, True) for stop in shape[1:]) for shape in cuts)
        for buckets in colour_buckets(shapes, self.costs.profile):
            for bucket in buckets:
                stages = dict(zip(cuts, bucket.stages, strict=True))
                members = [(kind, stage) for kind in pipelines for stage in stages[kind[0]]]
                num_workers = sum(pipelines[kind] for kind, _ in members)
                end = max(free[member] for member in members) + self._reduction_seconds(bucket, num_workers, reduction_link)
                free.update(dict.fromkeys(members, end))
        ranges = [pair for shape in cuts for pair in pairwise(shape)]
        update = max(self.costs.sums.times(a, b, self.speed_ratio).optimizer_seconds for a, b in ranges)
        num_workers = sum(times * (len(shape) - 1) for (shape, _), times in pipelines.items())
        return max(free.values()) + self.costs.commit_seconds(num_workers) + update

    def _stage_ends(self, kind: Kind) -> tuple[float, ...]:
        """When the stages of a pipeline are through with their last backward pass. Shape [stages]."""
        cuts, count = kind
        stages = [self.costs.sums.times(a, b, self.speed_ratio) for a, b in pairwise(cuts)]
        delays = [self.link.transfer_seconds(self.costs.profile.layers[cut - 1].output_bytes) for cut in cuts[1:-1]]
        return scheduled_times(self.schedule, stages, delays, count).stage_end_seconds

    def _reduction_seconds(self, bucket: Bucket, num_workers: int, link: LinkCost) -> float:
        return ring_all_reduce_seconds(link, num_workers, bucket_bytes(bucket, self.costs.profile))
