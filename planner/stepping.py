"""What a step of an arrangement takes on equal workers, before anybody is placed: pipelines that are alike are timed once."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from estimator.communication import ring_all_reduce_seconds
from estimator.costs import Costs
from estimator.split import scheduled_times
from kintsugi.core.plan import Schedule
from kintsugi.core.profile import LinkCost
from restorer.rounds import Bucket, bucket_bytes, buckets_of, descending_rounds, few_rounds

Kind = tuple[tuple[int, ...], int]
"""Stage boundaries and micro-batches of a pipeline."""

Member = tuple[Kind, int]
"""A stage of the pipelines of a kind."""

Reducing = tuple[list[Member], float]
"""Who takes part in a reduction, and how long it takes in seconds."""


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
    _ends: dict[Kind, tuple[float, ...]] = field(default_factory=dict, init=False)

    def step(self, pipelines: Counter[Kind], reduction_link: LinkCost) -> Step:
        """A step of pipelines given by kind and number, as the estimator reckons it, with the faster order of reductions.

        Args:
            pipelines: how many there are of each kind.
            reduction_link: that paces reductions.
        """
        cuts = tuple(dict.fromkeys(cuts for cuts, _ in pipelines))
        buckets = buckets_of([tuple((stop, True) for stop in shape[1:]) for shape in cuts], self.costs.profile)
        timed = self._timed(cuts, buckets, pipelines, reduction_link)
        ends = {(kind, stage): end for kind in pipelines for stage, end in enumerate(self._stage_ends(kind))}
        reduced = [
            _reduced_seconds([timed[bucket.layers] for buckets in order(buckets) for bucket in buckets], dict(ends))
            for order in ((few_rounds, descending_rounds) if len(cuts) > 1 else (few_rounds,))
        ]
        ranges = {pair for shape in cuts for pair in pairwise(shape)}
        update = max(self.costs.sums.times(a, b, self.speed_ratio).optimizer_seconds for a, b in ranges)
        num_workers = sum(times * (len(shape) - 1) for (shape, _), times in pipelines.items())
        return Step(min(reduced) + self.costs.commit_seconds(num_workers) + update, is_descending=reduced[-1] < reduced[0])

    def _timed(
        self, cuts: Sequence[tuple[int, ...]], buckets: Sequence[Bucket], pipelines: Counter[Kind], link: LinkCost
    ) -> dict[tuple[int, ...], Reducing]:
        """Who reduces each bucket, named by its layers, and how long that takes."""
        kinds_of: dict[tuple[int, ...], list[Kind]] = {shape: [] for shape in cuts}
        for kind in pipelines:
            kinds_of[kind[0]].append(kind)
        result = {}
        for bucket in buckets:
            stages = zip(cuts, bucket.stages, strict=True)
            members = [(kind, stage) for shape, own in stages for stage in own for kind in kinds_of[shape]]
            num_workers = sum(pipelines[kind] for kind, _ in members)
            result[bucket.layers] = members, ring_all_reduce_seconds(link, num_workers, bucket_bytes(bucket, self.costs.profile))
        return result

    def _stage_ends(self, kind: Kind) -> tuple[float, ...]:
        """When the stages of a pipeline are through with their last backward pass. Shape [stages]."""
        if kind not in self._ends:
            cuts, count = kind
            stages = [self.costs.sums.times(a, b, self.speed_ratio) for a, b in pairwise(cuts)]
            delays = [self.link.transfer_seconds(self.costs.profile.layers[cut - 1].output_bytes) for cut in cuts[1:-1]]
            self._ends[kind] = scheduled_times(self.schedule, stages, delays, count).stage_end_seconds
        return self._ends[kind]


def _reduced_seconds(reductions: Iterable[Reducing], free: dict[Member, float]) -> float:
    """End of the last reduction. Advances `free`, which starts at the ends of the last passes."""
    for members, seconds in reductions:
        free.update(dict.fromkeys(members, max(free[member] for member in members) + seconds))
    return max(free.values())
