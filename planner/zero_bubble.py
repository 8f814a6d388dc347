"""Layers to stages under ZB-H1: the splits that 1F1B would take, priced with the weight parts put off."""

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from estimator.layers import LayerSums, StageTimes
from estimator.pipeline import Floats
from estimator.split import zero_bubble_times
from kintsugi.core.plan import Schedule
from kintsugi.core.profile import LinkCost
from planner.minimax import Chain, fits, minimax
from planner.partition import Partitioner, WorkerKind


def partitioner_for(schedule: Schedule) -> type[Partitioner]:
    """The class that splits layers under a schedule."""
    return ZeroBubblePartitioner if schedule is Schedule.ZB_H1 else Partitioner


class ZeroBubblePartitioner(Partitioner):
    """Candidates are the splits whose greatest 1F1B bound is least and that fit the memory of ZB-H1.

    The lower bounds are those of 1F1B with the input part as the whole backward pass, which is the order in which the
    stages of ZB-H1 wait for each other, and the work divided by all speeds.
    """

    def __init__(self, sums: LayerSums, schedule: Schedule, link: LinkCost, num_replicas: int) -> None:
        super().__init__(sums, schedule, link, num_replicas)
        self._work_seconds = float(self._both[-1])
        self._input, self._weight = np.array(sums.backward_input, np.float64), np.array(sums.backward_weight, np.float64)
        self._both = self._model.forward + self._input
        self._waited = self._model._replace(backward=self._input)

    def bound(self, kinds: Sequence[WorkerKind], num_microbatches: int, tail_seconds: Floats) -> float:
        """No split over workers of these kinds is faster, in seconds; infinite where no split fits memory."""
        waiting = float(minimax(self._waited, self._chain(kinds, num_microbatches, tail_seconds))[0])
        return max(waiting, num_microbatches * self._work_seconds / sum(kind.speed_ratio for kind in kinds))

    def _seconds(self, cuts: tuple[int, ...], chain: Chain) -> float:
        """Objective of one split; infinite where it does not fit memory."""
        if not all(fits(self._model, chain, stage, a, b) for stage, (a, b) in enumerate(pairwise(cuts))):
            return math.inf
        edges = np.array(cuts, dtype=np.int64)
        parts = (np.diff(prefix[edges]) / chain.speeds for prefix in (self._model.forward, self._input, self._weight))
        stages = [StageTimes(f, b, w, 0.0) for f, b, w in zip(*(part.tolist() for part in parts), strict=True)]
        times = zero_bubble_times(stages, self._model.delays[edges[1:-1]].tolist(), chain.rest + 1)
        return times.pipeline_seconds + float(chain.tail[cuts[1]])
