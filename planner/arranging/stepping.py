"""What a step of an arrangement takes before anybody is placed: pipelines that are alike are timed once."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
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

    def end_seconds(
        self, pipelines: Counter[Kind], ends: Mapping[Kind, Sequence[float]], link: LinkCost, *, is_quick: bool
    ) -> float:
        """End of the last reduction when stages are through with their passes at these times."""
        kinds_of: dict[tuple[int, ...], list[Kind]] = {shape: [] for shape in self.shapes}
        for kind in pipelines:
            kinds_of[kind.cuts].append(kind)
        latest, times = list[float](), list[int]()
        for kinds in kinds_of.values():
            own = ends[kinds[0]] if len(kinds) == 1 else list(map(max, *[ends[kind] for kind in kinds]))
            latest += own
            times += [sum([pipelines[kind] for kind in kinds])] * len(own)
        num_workers = (np.array(times) @ self.order.stages).tolist()
        seconds = list(map(partial(ring_all_reduce_seconds, link), num_workers, self.num_bytes))
        ready = (np.array(latest)[:, None] * self.order.stages).max(axis=0)
        return (self.order.reduced_seconds if is_quick else self.order.shortest_seconds)(seconds, ready)


@dataclass(frozen=True, slots=True)
class Stepper:
    """Workers of any speed over equal links."""

    costs: Costs
    schedule: Schedule
    link: LinkCost
    """Between neighbouring stages."""
    _ends: dict[Kind, tuple[float, ...]] = field(default_factory=dict, init=False)
    _reductions: dict[Shapes, Reductions] = field(default_factory=dict, init=False)

    def seconds(self, pipelines: Counter[Kind], reduction_link: LinkCost, *, is_quick: bool = True) -> float:
        """A step of pipelines given by kind and number, as the estimator reckons it.

        Args:
            pipelines: how many there are of each kind.
            reduction_link: that paces reductions.
            is_quick: with a quickly found order of reductions; plans are given the best that is found, and steps may be shorter.
        """
        shapes = tuple(sorted({kind.cuts for kind in pipelines}))
        if shapes not in self._reductions:
            self._reductions[shapes] = Reductions.of(shapes, self.costs.profile)
        ends = {kind: self.stage_ends(kind) for kind in pipelines}
        reduced = self._reductions[shapes].end_seconds(pipelines, ends, reduction_link, is_quick=is_quick)
        return max(reduced, *map(max, ends.values())) + self.after_seconds(pipelines)

    def after_seconds(self, pipelines: Counter[Kind]) -> float:
        """What follows the last reduction: the commit, and the longest update."""
        num_workers = sum([times * len(kind.speeds) for kind, times in pipelines.items()])
        return self.costs.commit_seconds(num_workers) + max([self._update_seconds(kind) for kind in pipelines])

    def _update_seconds(self, kind: Kind) -> float:
        """The longest update of a stage."""
        optimizer = self.costs.sums.optimizer
        return max([(optimizer[b] - optimizer[a]) / speed for (a, b), speed in zip(pairwise(kind.cuts), kind.speeds, strict=True)])

    def stage_ends(self, kind: Kind) -> tuple[float, ...]:
        """When the stages of a pipeline are through with their last backward pass. Shape [stages]."""
        if kind not in self._ends:
            cuts, count, speeds = kind
            stages = [self.costs.sums.times(a, b, speed) for (a, b), speed in zip(pairwise(cuts), speeds, strict=True)]
            delays = [self.link.transfer_seconds(self.costs.profile.layers[cut - 1].output_bytes) for cut in cuts[1:-1]]
            self._ends[kind] = scheduled_times(self.schedule, stages, delays, count).stage_end_seconds
        return self._ends[kind]
