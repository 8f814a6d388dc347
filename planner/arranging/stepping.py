"""What a step of an arrangement takes before anybody is placed: pipelines that are alike are timed once."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from estimator.communication import ring_all_reduce_seconds
from estimator.costs import Costs
from estimator.split import scheduled_times
from kintsugi.core.plan import Schedule
from kintsugi.core.profile import LinkCost, Profile
from restorer.buckets import bucket_bytes, buckets_of
from restorer.ordering import QuickOrder


class Kind(NamedTuple):
    """All that the time of a pipeline depends on."""

    cuts: tuple[int, ...]
    """Shape [stages + 1]."""
    num_microbatches: int
    speeds: tuple[float, ...]
    """Of its workers; shape [stages]."""


Shapes = tuple[tuple[int, ...], ...]
"""Distinct stage boundaries."""


@dataclass(frozen=True, slots=True)
class Reductions:
    """What pipelines with given stage boundaries reduce, however many there are of them."""

    shapes: Shapes
    num_bytes: Sequence[int]
    """Shape [buckets]."""
    order: QuickOrder

    @classmethod
    def of(cls, shapes: Shapes, profile: Profile) -> "Reductions":
        """Of untouched pipelines whose workers hold one stage each."""
        buckets = buckets_of([tuple((stop, stage) for stage, stop in enumerate(shape[1:])) for shape in shapes], profile)
        num_bytes = [bucket_bytes(bucket, profile) for bucket in buckets]
        return cls(shapes, num_bytes, QuickOrder.of(buckets, num_bytes))

    def end_seconds(self, pipelines: Counter[Kind], ends: Mapping[Kind, Sequence[float]], link: LinkCost) -> float:
        """End of the last reduction when stages are through with their passes at these times."""
        kinds_of: dict[tuple[int, ...], list[Kind]] = {shape: [] for shape in self.shapes}
        for kind in pipelines:
            kinds_of[kind.cuts].append(kind)
        latest = np.concatenate([np.max([ends[kind] for kind in kinds], axis=0) for kinds in kinds_of.values()])
        times = [sum(pipelines[kind] for kind in kinds) for kinds in kinds_of.values()]
        num_workers = np.repeat(times, [len(shape) - 1 for shape in self.shapes]) @ self.order.stages
        workers_and_bytes = zip(num_workers.tolist(), self.num_bytes, strict=True)
        seconds = [ring_all_reduce_seconds(link, count, num_bytes) for count, num_bytes in workers_and_bytes]
        return self.order.reduced_seconds(seconds, np.where(self.order.stages, latest[:, None], 0.0).max(axis=0))


@dataclass(frozen=True, slots=True)
class Stepper:
    """Workers of any speed over equal links."""

    costs: Costs
    schedule: Schedule
    link: LinkCost
    """Between neighbouring stages."""
    _ends: dict[Kind, tuple[float, ...]] = field(default_factory=dict, init=False)
    _reductions: dict[Shapes, Reductions] = field(default_factory=dict, init=False)

    def seconds(self, pipelines: Counter[Kind], reduction_link: LinkCost) -> float:
        """A step of pipelines given by kind and number, as the estimator reckons it, with a quickly found order of reductions.

        Plans are given the best order that is found; their steps may be shorter.

        Args:
            pipelines: how many there are of each kind.
            reduction_link: that paces reductions.
        """
        shapes = tuple(dict.fromkeys(kind.cuts for kind in pipelines))
        if shapes not in self._reductions:
            self._reductions[shapes] = Reductions.of(shapes, self.costs.profile)
        ends = {kind: self._stage_ends(kind) for kind in pipelines}
        reduced = self._reductions[shapes].end_seconds(pipelines, ends, reduction_link)
        num_workers = sum([times * len(kind.speeds) for kind, times in pipelines.items()])
        update = max([self._update_seconds(kind) for kind in pipelines])
        return max(reduced, *map(max, ends.values())) + self.costs.commit_seconds(num_workers) + update

    def _update_seconds(self, kind: Kind) -> float:
        """The longest update of a stage."""
        optimizer = self.costs.sums.optimizer
        return max([(optimizer[b] - optimizer[a]) / speed for (a, b), speed in zip(pairwise(kind.cuts), kind.speeds, strict=True)])

    def _stage_ends(self, kind: Kind) -> tuple[float, ...]:
        """When the stages of a pipeline are through with their last backward pass. Shape [stages]."""
        if kind not in self._ends:
            cuts, count, speeds = kind
            stages = [self.costs.sums.times(a, b, speed) for (a, b), speed in zip(pairwise(cuts), speeds, strict=True)]
            delays = [self.link.transfer_seconds(self.costs.profile.layers[cut - 1].output_bytes) for cut in cuts[1:-1]]
            self._ends[kind] = scheduled_times(self.schedule, stages, delays, count).stage_end_seconds
        return self._ends[kind]
