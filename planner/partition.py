"""Layers to stages: the contiguous split with the shortest pipeline under the memory limits."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from estimator.layers import LayerSums
from estimator.memory import scheduled_in_flight
from estimator.pipeline import Floats, many_pipeline_seconds
from kintsugi.core.plan import Schedule
from kintsugi.core.profile import LayerProfile, LinkCost

EXACT, CLOSE = 1e-9, 2e-3
"""How far above its bound a split may stay without a look at its neighbours: with equal layers, and otherwise."""


@dataclass(frozen=True, slots=True)
class WorkerKind:
    """What the search knows of a worker; workers of one kind are interchangeable."""

    speed_ratio: float
    usable_bytes: int


@dataclass(frozen=True, slots=True)
class Split:
    """Stage boundaries of one pipeline and its time."""

    cuts: tuple[int, ...]
    """Shape [stages + 1]; stage i holds layers cuts[i] .. cuts[i + 1] - 1."""
    pipeline_seconds: float
    """By the recurrence."""
    seconds: float
    """The objective: pipeline_seconds and what follows on the first stage."""


class Partitioner:
    """Splits the layers of one profile over chains of workers."""

    def __init__(self, sums: LayerSums, schedule: Schedule, link: LinkCost, num_replicas: int) -> None:
        """Tabulate all layer ranges, O(layers^2).

        Args:
            sums: of the profile's layers.
            schedule: order of passes.
            link: between neighbouring stages.
            num_replicas: holders of each layer, for optimizer state that is shared between them.
        """
        self._sums, self._schedule = sums, schedule
        layers = sums.profile.layers
        count = len(layers)
        self._forward, self._backward = np.array(sums.forward), np.array(sums.backward)
        self._both = self._forward + self._backward
        self._delays = np.array([0.0, *(link.transfer_seconds(layer.output_bytes) for layer in layers[:-1]), 0.0])
        self._least_delay = float(self._delays[1:-1].min()) if count > 1 else 0.0
        self._is_range = np.triu(np.ones((count + 1, count + 1), dtype=bool), 1)
        self.tolerance = EXACT if len({self._key(layer) for layer in layers}) == 1 else CLOSE
        self._descended: dict[tuple[WorkerKind, ...], tuple[int, ...]] = {}
        """Where the first descent for these workers ended: a good split for other micro-batch counts too."""
        self._widest: dict[int, float] = {}
        self._least: dict[tuple[int, WorkerKind], tuple[npt.NDArray[np.int_], Floats]] = {}
        self._static = sums.static_table(num_replicas)
        self._activation = _ranges(np.array([float(sums.activation_bytes(0, n)) for n in range(count + 1)]))

    @staticmethod
    def _key(layer: LayerProfile) -> LayerProfile:
        return replace(layer, name="any", tied_to=None)

    def bound(self, kinds: Sequence[WorkerKind], num_microbatches: int, tail_seconds: Floats) -> float:
        """No split over workers of these kinds is faster, in seconds; infinite where no split fits memory."""
        tables = self._tables(kinds, num_microbatches, tail_seconds)
        return math.inf if tables is None else float(tables[1][0][0])

    def best(self, kinds: Sequence[WorkerKind], num_microbatches: int, tail_seconds: Floats) -> Split | None:
        """The split of all layers over workers of these kinds, in this order; None where no split fits memory.

        A dynamic program over (stage, first layer) minimises the greatest of the stages' lower bounds; the recurrence
        then prices the splits that attain it and, while the bound is not met, their neighbours; for unequal layers only
        the first time that workers of these kinds come, later calls start where that ended. O(stages * layers^2).

        Args:
            kinds: of the workers, first stage first.
            num_microbatches: that enter the pipeline.
            tail_seconds: what follows the last backward pass when the first stage holds n layers, shape [layers + 1].
        """
        tables = self._tables(kinds, num_microbatches, tail_seconds)
        if tables is None:
            return None
        bounds, best_from = tables
        bound = float(best_from[0][0])

        starts = {_trace(bounds, best_from, bound * (1 + 1e-12), pick) for pick in (_largest, _smallest)}
        known = self._descended.get(tuple(kinds))
        if known is not None:
            starts.add(known)
        seconds, cuts = self._first(sorted(starts), kinds, num_microbatches, tail_seconds)
        while seconds > bound * (1 + self.tolerance) and (known is None or self.tolerance == EXACT):
            nearby, other = self._first(_neighbours(cuts), kinds, num_microbatches, tail_seconds)
            if nearby >= seconds * (1 - 1e-12):
                break
            seconds, cuts = nearby, other
        self._descended.setdefault(tuple(kinds), cuts)
        return Split(cuts, seconds - float(tail_seconds[cuts[1]]), seconds)

    def _first(
        self, options: Sequence[tuple[int, ...]], kinds: Sequence[WorkerKind], num_microbatches: int, tail_seconds: Floats
    ) -> tuple[float, tuple[int, ...]]:
        """The fastest of several splits that fits memory, and its time with its tail; the first among equals."""
        cuts = np.array(options, dtype=np.int64).reshape(len(options), len(kinds) + 1).T
        in_flight = [scheduled_in_flight(self._schedule, i, len(kinds), num_microbatches) for i in range(len(kinds))]
        peaks = self._static[cuts[:-1], cuts[1:]] + np.array(in_flight)[:, None] * self._activation[cuts[:-1], cuts[1:]]
        fitting = np.flatnonzero((peaks <= np.array([kind.usable_bytes for kind in kinds])[:, None]).all(axis=0))
        if not len(fitting):
            return math.inf, ()
        cuts = cuts[:, fitting]
        speeds = np.array([kind.speed_ratio for kind in kinds])[:, None]
        seconds = many_pipeline_seconds(
            self._schedule,
            (self._forward[cuts[1:]] - self._forward[cuts[:-1]]) / speeds,
            (self._backward[cuts[1:]] - self._backward[cuts[:-1]]) / speeds,
            self._delays[cuts[1:-1]],
            num_microbatches,
        )
        seconds = seconds + tail_seconds[cuts[1]]
        best = int(seconds.argmin())
        return float(seconds[best]), options[int(fitting[best])]

    def least_seconds(self, num_stages: int, kind: WorkerKind, most_microbatches: int, tail_seconds: Floats) -> Floats:
        """A lower bound on `best` for equal workers and 1 .. most_microbatches at once. Shape [most_microbatches]."""
        stops, waits = self._least_by_first_stage(num_stages, kind, most_microbatches)
        result: Floats = (waits[:, :most_microbatches] + tail_seconds[stops, None]).min(axis=0)
        return result

    def _least_by_first_stage(
        self, num_stages: int, kind: WorkerKind, most_microbatches: int
    ) -> tuple[npt.NDArray[np.int_], Floats]:
        """Sizes of the first stage and, for each, a bound on the pipeline's time. Shapes [sizes], [sizes, micro-batches].

        The greatest stage takes at least `widest`, more where the first stage holds few layers; the path through it
        waits for it once per micro-batch that is not in flight, and for the stages below it twice.
        """
        known = self._least.get((num_stages, kind))
        if known is not None and known[1].shape[1] >= most_microbatches:
            return known
        total, count = float(self._both[-1]) / kind.speed_ratio, len(self._both) - 1
        stops = np.arange(1 if num_stages > 1 else count, count - num_stages + 2)
        first = self._both[stops] / kind.speed_ratio
        others = (total - first) / max(1, num_stages - 1)
        widest = np.maximum(np.maximum(first, others), self._widest_seconds(num_stages) / kind.speed_ratio)[:, None]
        chain = total + 2 * (num_stages - 1) * self._least_delay
        rest = np.arange(most_microbatches)[None, :]
        if self._schedule is Schedule.GPIPE:
            waits = rest * widest
        else:
            few = np.minimum(rest * widest / 2, widest)
            waits = np.where(rest >= num_stages, total + (rest - num_stages) * widest, few)
            waits = np.maximum(waits, (rest // num_stages) * chain)
        self._least[num_stages, kind] = stops, chain + waits
        return self._least[num_stages, kind]

    def _widest_seconds(self, num_stages: int) -> float:
        """Least possible time of the greatest stage: bisection over the ranges' sums, greedy fill. O(layers log layers)."""
        if num_stages in self._widest:
            return self._widest[num_stages]
        both = self._both
        options = np.unique(_ranges(both)[self._is_range])
        low, high = 0, len(options) - 1
        while low < high:
            middle = (low + high) // 2
            if self._greedy_stages(float(options[middle])) <= num_stages:
                high = middle
            else:
                low = middle + 1
        self._widest[num_stages] = float(options[low])
        return self._widest[num_stages]

    def _greedy_stages(self, limit: float) -> int:
        """Fewest stages with at most `limit` seconds each."""
        start, stages, count = 0, 0, len(self._both) - 1
        while start < count:
            following = int(np.searchsorted(self._both, self._both[start] + limit * (1 + 1e-12), side="right")) - 1
            if following <= start:
                return count + 1
            start, stages = following, stages + 1
        return stages

    def peak_table(self, stage: int, num_stages: int, num_microbatches: int) -> Floats:
        """Peak memory of every layer range [a, b) on a stage; infinite for empty ranges. Shape [layers + 1, layers + 1]."""
        in_flight = scheduled_in_flight(self._schedule, stage, num_stages, num_microbatches)
        return np.where(self._is_range, self._static + in_flight * self._activation, np.inf)

    def _tables(
        self, kinds: Sequence[WorkerKind], num_microbatches: int, tail_seconds: Floats
    ) -> tuple[list[Floats], list[Floats]] | None:
        """Bounds per stage and layer range, and the best greatest bound of stages i.. from layer a; None: nothing fits."""
        num_stages, count = len(kinds), self._sums.profile.num_layers
        rest = np.full(count + 1, np.inf)
        rest[count] = 0.0
        bounds: list[Floats] = [np.empty(0)] * num_stages
        best_from: list[Floats] = [np.empty(0)] * num_stages + [rest]
        for stage in reversed(range(num_stages)):
            bound = self._stage_bounds(stage, kinds, num_microbatches)
            bounds[stage] = bound = bound + tail_seconds[None, :] if stage == 0 else bound
            best_from[stage] = rest = np.maximum(bound, rest[None, :]).min(axis=1)
        return None if np.isinf(rest[0]) else (bounds, best_from)

    def _stage_bounds(self, stage: int, kinds: Sequence[WorkerKind], num_microbatches: int) -> Floats:
        """Least pipeline time with layers [a, b) on `stage`, whatever the others hold. Shape [layers + 1, layers + 1].

        Longest paths through the stage: every round trip below it waits for the micro-batches in flight.
        """
        num_stages = len(kinds)
        kind, below = kinds[stage], kinds[stage + 1 :]
        above_speed = max((k.speed_ratio for k in kinds[:stage]), default=1.0)
        below_speed = max((k.speed_ratio for k in below), default=1.0)
        own = _ranges(self._both) / kind.speed_ratio
        upper = (self._both / above_speed + 2 * stage * self._least_delay)[:, None]
        lower = ((self._both[-1] - self._both) / below_speed + 2 * len(below) * self._least_delay)[None, :]
        through = own + lower
        in_flight = scheduled_in_flight(self._schedule, stage, num_stages, num_microbatches)
        rest = num_microbatches - 1
        if self._schedule is Schedule.GPIPE:
            waits = rest * own
        elif num_microbatches > in_flight:
            rounds = rest // in_flight
            waits = np.maximum(through + (rest - in_flight) * own, rounds * through + (rest - rounds * in_flight) * own)
            waits = np.maximum(waits, rest * own - lower)
        else:
            waits = rest * np.maximum(_ranges(self._forward), _ranges(self._backward)) / kind.speed_ratio
        result: Floats = upper + through + waits
        if stage == 0:
            result[1:] = np.inf
        result[self.peak_table(stage, num_stages, num_microbatches) > kind.usable_bytes] = np.inf
        return result


def _ranges(prefix: Floats) -> Floats:
    """Sums over [a, b) from prefix sums. Shape [layers + 1, layers + 1]."""
    return prefix[None, :] - prefix[:, None]


def _largest(options: npt.NDArray[np.intp]) -> int:
    return int(options[-1])


def _smallest(options: npt.NDArray[np.intp]) -> int:
    return int(options[0])


def _trace(
    bounds: Sequence[Floats], best_from: Sequence[Floats], limit: float, pick: Callable[[npt.NDArray[np.intp]], int]
) -> tuple[int, ...]:
    """A split whose stages all stay within `limit`."""
    cuts = [0]
    for stage, bound in enumerate(bounds):
        options = np.flatnonzero((bound[cuts[-1]] <= limit) & (best_from[stage + 1] <= limit))
        cuts.append(pick(options))
    return tuple(cuts)


def _neighbours(cuts: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Splits with one layer taken from one stage and given to another; the stages between them shift."""
    sizes = [b - a for a, b in pairwise(cuts)]
    result = []
    for giver in range(len(sizes)):
        for taker in range(len(sizes)):
            if giver == taker or sizes[giver] == 1:
                continue
            low, high, shift = (giver + 1, taker, -1) if giver < taker else (taker + 1, giver, 1)
            result.append((*cuts[:low], *(cut + shift for cut in cuts[low : high + 1]), *cuts[high + 1 :]))
    return result
