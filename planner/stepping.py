"""What a step of an arrangement takes on equal workers, before anybody is placed: pipelines that are alike are timed once."""

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

from estimator.communication import ring_all_reduce_seconds
from estimator.costs import Costs
from estimator.split import scheduled_times
from kintsugi.core.plan import Schedule
from kintsugi.core.profile import LinkCost
from restorer.rounds import Bucket, bucket_bytes, colour_buckets, descending_buckets

Kind = tuple[tuple[int, ...], int]
"""Stage boundaries and micro-batches of a pipeline."""


@dataclass(frozen=True, slots=True)
class Step:
    """How long a step takes, and whether its reductions go by descending layers to be so fast."""

    seconds: float
    is_descending: bool = False


@dataclass(frozen=True, slots=True)
class Stepper:
    """Equal workers over equal links."""

    costs: Costs
    schedule: Schedule
    speed_ratio: float
    link: LinkCost
    """Between neighbouring stages."""

    def step(self, pipelines: Counter[Kind], reduction_link: LinkCost) -> Step:
        """A step of pipelines given by kind and number, as the estimator reckons it, with the faster order of reductions.

        Args:
            pipelines: how many there are of each kind.
            reduction_link: that paces reductions.
        """
        ends = {(kind, stage): end for kind in pipelines for stage, end in enumerate(self._stage_ends(kind))}
        cuts = tuple(dict.fromkeys(cuts for cuts, _ in pipelines))
        shapes = tuple(tuple((stop, True) for stop in shape[1:]) for shape in cuts)
        reduced = [
            self._reduced_seconds(order(shapes, self.costs.profile), dict(ends), pipelines, reduction_link)
            for order in ((colour_buckets, descending_buckets) if len(shapes) > 1 else (colour_buckets,))
        ]
        ranges = [pair for shape in cuts for pair in pairwise(shape)]
        update = max(self.costs.sums.times(a, b, self.speed_ratio).optimizer_seconds for a, b in ranges)
        num_workers = sum(times * (len(shape) - 1) for (shape, _), times in pipelines.items())
        return Step(min(reduced) + self.costs.commit_seconds(num_workers) + update, is_descending=reduced[-1] < reduced[0])

    def _reduced_seconds(
        self,
        rounds: tuple[tuple[Bucket, ...], ...],
        free: dict[tuple[Kind, int], float],
        pipelines: Counter[Kind],
        link: LinkCost,
    ) -> float:
        """End of the last reduction. Advances `free`, which starts at the ends of the last passes."""
        cuts = tuple(dict.fromkeys(cuts for cuts, _ in pipelines))
        for bucket in (bucket for buckets in rounds for bucket in buckets):
            stages = dict(zip(cuts, bucket.stages, strict=True))
            members = [(kind, stage) for kind in pipelines for stage in stages[kind[0]]]
            num_workers = sum(pipelines[kind] for kind, _ in members)
            end = max(free[member] for member in members) + self._reduction_seconds(bucket, num_workers, link)
            free.update(dict.fromkeys(members, end))
        return max(free.values())

    def _stage_ends(self, kind: Kind) -> tuple[float, ...]:
        """When the stages of a pipeline are through with their last backward pass. Shape [stages]."""
        cuts, count = kind
        stages = [self.costs.sums.times(a, b, self.speed_ratio) for a, b in pairwise(cuts)]
        delays = [self.link.transfer_seconds(self.costs.profile.layers[cut - 1].output_bytes) for cut in cuts[1:-1]]
        return scheduled_times(self.schedule, stages, delays, count).stage_end_seconds

    def _reduction_seconds(self, bucket: Bucket, num_workers: int, link: LinkCost) -> float:
        return ring_all_reduce_seconds(link, num_workers, bucket_bytes(bucket, self.costs.profile))
