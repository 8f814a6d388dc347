"""Layers to stages under ZB-H1: the splits that 1F1B would take, priced with the weight parts put off."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from estimator.layers import LayerSums
from estimator.pipeline import Floats
from kintsugi.core.plan import Schedule
from kintsugi.core.profile import LinkCost
from planner.minimax import minimax
from planner.partition import Attained, Partitioner, WorkerKind


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
        self._waited = self._model._replace(backward=np.array(sums.backward_input, np.float64))
        self._both = self._model.forward + self._waited.backward

    def attain(self, kinds: Sequence[WorkerKind], num_microbatches: int, tail_seconds: Floats) -> Attained:
        """The least bound on any split, and the splits whose greatest 1F1B bound is least."""
        waiting = minimax(self._waited, self._chain(kinds, num_microbatches, tail_seconds))[0]
        work = num_microbatches * self._work_seconds / sum(kind.speed_ratio for kind in kinds)
        whole = super().attain(kinds, num_microbatches, tail_seconds)
        return replace(whole, seconds=max(float(waiting), work) if math.isfinite(whole.seconds) else math.inf)
