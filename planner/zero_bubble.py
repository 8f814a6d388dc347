"""Layers to stages under ZB-H1: bounds and prices with the weight parts put off."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from estimator.compiled import compiled
from estimator.layers import LayerSums
from estimator.pipeline import Floats
from estimator.split import zero_bubble_ends
from kintsugi.core.plan import Schedule
from kintsugi.core.profile import LinkCost
from planner.kinds import WorkerKind
from planner.minimax import ROUNDING, Chain, Ints, Model, after_seconds, fits, stage_bound
from planner.partition import Attained, Partitioner


def partitioner_for(schedule: Schedule) -> type[Partitioner]:
    """The class that splits layers under a schedule."""
    return ZeroBubblePartitioner if schedule is Schedule.ZB_H1 else Partitioner


class ZeroBubblePartitioner(Partitioner):
    """Starts from the splits whose greatest bound is least under ZB-H1 and under 1F1B and goes on to their neighbours."""

    def __init__(self, sums: LayerSums, schedule: Schedule, link: LinkCost, num_replicas: int) -> None:
        super().__init__(sums, schedule, link, num_replicas)
        self._waited = self._model._replace(backward=np.array(sums.backward_input, np.float64))
        self._weight = np.array(sums.backward_weight, np.float64)
        self._both = self._model.forward + self._waited.backward

    def attain(
        self, kinds: Sequence[WorkerKind], num_microbatches: int, tail_seconds: Floats, least_update: float = math.inf
    ) -> Attained:
        """The least bound on any split, and the splits to start from."""
        whole = super().attain(kinds, num_microbatches, tail_seconds, least_update)
        if math.isinf(whole.seconds):
            return whole
        bound, cuts = zero_bubble_minimax(self._waited, self._weight, whole.chain)
        return replace(whole, seconds=float(bound), starts=np.vstack((whole.starts, [cuts])))

    def _seconds(self, options: Ints, chain: Chain, below: float) -> Floats:
        return zero_bubble_seconds(self._waited, self._weight, chain, options, below)


@compiled
def zero_bubble_bound(model: Model, weight: Floats, chain: Chain, stage: int, layers: tuple[int, int]) -> float:
    """Least objective with a half-open layer range on a stage, whatever the others hold; in seconds.

    Three longest paths: that of 1F1B with the input part as the whole backward pass, the order in which stages wait for
    each other; all of the stage's work after its first micro-batch has come; and its passes but for the weight parts that
    may still be put off, with the last input part's way back.

    Args:
        model: with the input part as the backward pass.
        weight: weight part of the first n layers at full speed, shape [layers + 1].
        chain: what is asked of the pipeline.
        stage: index of the stage.
        layers: its first layer and one past its last.
    """
    start, stop = layers
    speed, count = chain.speeds[stage], chain.rest + 1
    waited = (model.forward[stop] + model.backward[stop] - model.forward[start] - model.backward[start]) / speed
    own_weight = (weight[stop] - weight[start]) / speed
    arrival = model.forward[start] / chain.above[stage] + stage * model.least_delay
    back = model.backward[start] / chain.above[stage] + stage * model.least_delay
    work = arrival + count * (waited + own_weight) + after_seconds(model, chain, stage, start, stop)
    late = arrival + count * waited + max(0, count - len(chain.speeds)) * own_weight + back
    return float(max(work, late, stage_bound(model, chain, stage, start, stop)))


@compiled
def zero_bubble_minimax(model: Model, weight: Floats, chain: Chain) -> tuple[float, Ints]:
    """The least greatest bound over all splits that fit memory, in seconds, and a split that attains it.

    Something fits. O(stages * layers^2).
    """
    num_stages, count = len(chain.speeds), len(weight) - 1
    best, choice = np.full((num_stages + 1, count + 1), np.inf), np.zeros((num_stages + 1, count + 1), np.int64)
    best[num_stages, count] = 0.0
    for stage in range(num_stages - 1, -1, -1):
        first, last = (0, 0) if stage == 0 else (stage, count - num_stages + stage)
        for start in range(first, last + 1):
            for stop in range(start + 1, count - num_stages + stage + 2):
                if best[stage + 1, stop] < best[stage, start] and fits(model, chain, stage, start, stop):
                    bound = max(best[stage + 1, stop], zero_bubble_bound(model, weight, chain, stage, (start, stop)))
                    if bound < best[stage, start]:
                        best[stage, start], choice[stage, start] = bound, stop
    cuts = np.zeros(num_stages + 1, dtype=np.int64)
    for stage in range(num_stages):
        cuts[stage + 1] = choice[stage, cuts[stage]]
    return best[0, 0], cuts


@compiled
def zero_bubble_seconds(model: Model, weight: Floats, chain: Chain, options: Ints, below: float) -> Floats:
    """Objectives of several splits; infinite where they do not fit memory or others, or `below`, are less. Shape [splits]."""
    result = np.full(len(options), np.inf)
    for index in range(len(options)):
        cuts, is_fitting, bound = options[index], True, 0.0
        for stage in range(len(chain.speeds)):
            is_fitting = is_fitting and fits(model, chain, stage, cuts[stage], cuts[stage + 1])
            bound = max(bound, zero_bubble_bound(model, weight, chain, stage, (cuts[stage], cuts[stage + 1])))
        if is_fitting and bound <= below * (1 + ROUNDING):
            forward = (model.forward[cuts[1:]] - model.forward[cuts[:-1]]) / chain.speeds
            backward = (model.backward[cuts[1:]] - model.backward[cuts[:-1]]) / chain.speeds
            weights = (weight[cuts[1:]] - weight[cuts[:-1]]) / chain.speeds
            ends = zero_bubble_ends(forward, backward, weights, model.delays[cuts[1:-1]], chain.rest + 1)
            result[index] = 0.0
            for stage in range(len(ends)):
                after = after_seconds(model, chain, stage, cuts[stage], cuts[stage + 1])
                result[index] = max(result[index], ends[stage] + after)
            below = min(below, result[index])
    return result
