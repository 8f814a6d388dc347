"""Layers to stages under ZB-H1 and ZB-H2, which put weight parts off."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from estimator.arrays import Floats
from estimator.layers import LayerSums
from kintsugi.core.plan import Schedule
from kintsugi.core.profile import LinkCost
from planner.pipelines.kinds import ANY, Firsts, WorkerKind
from planner.pipelines.minimax import minimax
from planner.pipelines.partition import Attained, Partitioner


def partitioner_for(schedule: Schedule) -> type[Partitioner]:
    """The class that splits layers under a schedule."""
    return ZeroBubblePartitioner if schedule.is_split else Partitioner


class ZeroBubblePartitioner(Partitioner):
    """From the splits whose greatest bound is least, with and without weight parts put off, and on to their neighbours."""

    def __init__(self, sums: LayerSums, schedule: Schedule, link: LinkCost, num_replicas: int) -> None:
        super().__init__(sums, schedule, link, num_replicas)
        backward, weight = np.array(sums.backward_input, np.float64), np.array(sums.backward_weight, np.float64)
        self.priced_model = self._model._replace(backward=backward, weight=weight)
        self._both = self._model.forward + backward

    def attain(
        self,
        kinds: Sequence[WorkerKind],
        num_microbatches: int,
        tail_seconds: Floats,
        least_update: float = math.inf,
        firsts: Firsts = ANY,
    ) -> Attained:
        """The least bound on any split, and the splits to start from."""
        whole = super().attain(kinds, num_microbatches, tail_seconds, least_update, firsts)
        if math.isinf(whole.seconds):
            return whole
        bound, starts = minimax(self.priced_model, whole.chain, whole.starts)
        return replace(whole, seconds=float(bound), starts=np.vstack((whole.starts, starts)))
