"""Layers to the stages of an interleaved pipeline, several of which are on each worker."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from estimator.arrays import Floats, Ints
from estimator.interleaved import GROUPS_AT_ONCE
from estimator.layers import LayerSums
from estimator.moments import all_moments, kinds_under, stacked_moments
from kintsugi.core.plan import Schedule
from kintsugi.core.profile import LinkCost
from planner.pipelines.capacities import Capacities
from planner.pipelines.chunk_pricing import ChunkMemory, ChunkModel, busiest, lacking_bytes, splits_seconds
from planner.pipelines.kinds import WorkerKind
from planner.pipelines.planes import QUICK, THOROUGH, Asked, Effort, Room, descend
from planner.pipelines.pricing import neighbours, neighbours_between
from planner.pipelines.tails import Reductions, no_reductions

MOST_SPLITS = 128
"""So few splits are timed one and all where memory is tight."""

MOST_STAGES, MOST_BEYOND = 8, 16
"""In a pipeline of so few stages two layers move at once where one does not help to fit memory: one as in so many of the splits
next to the best one, and then another."""


@dataclass(frozen=True, slots=True)
class ChunkSplit:
    """Stage boundaries of an interleaved pipeline, its time, and what it lacks."""

    cuts: tuple[int, ...]
    """Shape [stages + 1]."""
    through_seconds: float
    """Until the last worker is through with its passes and with the reductions of its stages."""
    update_seconds: float
    """The longest update of a worker: it follows once all pipelines are through."""
    lacking_bytes: int
    """Of memory, on the worker that lacks most; 0 where the split fits."""

    @property
    def seconds(self) -> float:
        """The step of the pipeline alone, without its commit."""
        return self.through_seconds + self.update_seconds


class ChunkSplitter:
    """Splits the layers of one profile over the stages of interleaved pipelines.

    Workers should have equal work and stages should be of equal size; the first counts for every micro-batch, the second for
    filling and draining. A split by even work is the start; single layers move while that helps the sum of both, then, while the
    neediest worker lacks less or while all together do, until all have room, and then while it helps the time that the recurrence
    tells (`planner.pipelines.planes`). Where memory is tight all of few splits are timed. No proof of optimality.
    """

    def __init__(self, sums: LayerSums, schedule: Schedule, link: LinkCost, num_replicas: int) -> None:
        """Tabulate the layers.

        Args:
            sums: of the profile's layers.
            schedule: an interleaved one.
            link: between neighbouring stages.
            num_replicas: holders of each layer, for optimizer state that is shared between them.
        """
        self._schedule = schedule
        forward, backward = np.array(sums.forward, np.float64), np.array(sums.backward, np.float64)
        waited = np.array(sums.backward_input, np.float64) if schedule.is_split else backward
        layers = sums.profile.layers
        delays = np.array([0.0, *(link.transfer_seconds(layer.output_bytes) for layer in layers[:-1]), 0.0])
        self._model = ChunkModel(forward, waited, backward - waited, delays, schedule.is_split)
        self._memory = ChunkMemory(
            activations=np.array(sums.activations, np.int64),
            entries=np.array(sums.entry_bytes, np.int64),
            deferred=np.array(sums.deferred, np.int64),
            deferred_entries=np.array(sums.deferred_entry_bytes, np.int64),
            taken=np.stack([sums.temporary_table(kind) for kind in kinds_under(schedule)]),
            updates=sums.update_table(),
            holding=sums.holding(num_replicas),
        )
        self._work, self._optimizer = forward + backward, np.array(sums.optimizer, np.float64)
        self._nothing = no_reductions(len(layers))
        self._capacities = Capacities(sums, num_replicas, self._memory.taken)
        self._known: dict[object, ChunkSplit] = {}
        """Splits by what was asked for."""
        self._ruled_out: dict[tuple[tuple[WorkerKind, ...], int, int], ChunkSplit | None] = {}
        """An even split where none fits memory for certain, by workers, stages of each, and micro-batches."""

    def best(self, kinds: tuple[WorkerKind, ...], num_virtual: int, num_microbatches: int, reductions: Reductions) -> ChunkSplit:
        """The fastest split found soon; one that lacks memory, without a time if that is certain, where none was that fits.

        Args:
            kinds: of the workers, in the order in which the stages go round them.
            num_virtual: stages per worker; all of them together are no more than there are layers.
            num_microbatches: that enter the pipeline.
            reductions: of stages.
        """
        if ruled_out := self._tight(kinds, num_virtual, num_microbatches):
            return ruled_out
        key = kinds, num_virtual, num_microbatches, reductions.until.tobytes()
        if key not in self._known:
            self._known[key] = _Descent(self, kinds, num_virtual, num_microbatches, reductions).run()
        return self._known[key]

    def is_ruled_out(self, kinds: tuple[WorkerKind, ...], num_virtual: int, num_microbatches: int) -> bool:
        """Whether it is certain that no split fits memory."""
        return self._tight(kinds, num_virtual, num_microbatches) is not None

    def _tight(self, kinds: tuple[WorkerKind, ...], num_virtual: int, num_microbatches: int) -> ChunkSplit | None:
        """An even split where it is ruled out that any fits memory."""
        key = kinds, num_virtual, num_microbatches
        if key not in self._ruled_out:
            self._ruled_out[key] = None
            if not self.may_fit(*key):
                cuts = self.even([kind.speed_ratio for kind in kinds], num_virtual)
                lacking = int(self.lacking(cuts[None], kinds, num_microbatches)[0])
                self._ruled_out[key] = ChunkSplit(tuple(cuts.tolist()), math.inf, math.inf, lacking)
        return self._ruled_out[key]

    def fits(self, kinds: tuple[WorkerKind, ...], num_virtual: int, num_microbatches: int) -> bool:
        """Whether a split is found that fits memory."""
        if not self.may_fit(kinds, num_virtual, num_microbatches):
            return False
        descent = _Descent(self, kinds, num_virtual, num_microbatches, self._nothing)
        option = descent.into_memory(self.even([kind.speed_ratio for kind in kinds], num_virtual))
        return not self.lacking(option[None], kinds, num_microbatches)[0]

    def roomiest(self, kinds: tuple[WorkerKind, ...], num_virtual: int, num_microbatches: int) -> tuple[int, ...]:
        """Cuts of a split whose worker that lacks most lacks little. Shape [stages + 1]."""
        found = _Descent(self, kinds, num_virtual, num_microbatches, self._nothing).roomiest()
        return tuple(found.tolist())

    def priced(
        self, cuts: Sequence[int], kinds: tuple[WorkerKind, ...], num_microbatches: int, reductions: Reductions
    ) -> ChunkSplit:
        """A split as `best` prices it."""
        option = np.array(cuts, dtype=np.int64)[None]
        through = float(self.through_seconds(option, kinds, num_microbatches, reductions)[0])
        update = float(self.update_seconds(option, kinds)[0])
        return ChunkSplit(tuple(cuts), through, update, int(self.lacking(option, kinds, num_microbatches)[0]))

    def seconds(self, options: Ints, kinds: Sequence[WorkerKind], num_microbatches: int, reductions: Reductions) -> Floats:
        """Times of several splits, with their updates and without a commit. Shape [splits]."""
        return self.through_seconds(options, kinds, num_microbatches, reductions) + self.update_seconds(options, kinds)

    def through_seconds(self, options: Ints, kinds: Sequence[WorkerKind], num_microbatches: int, reductions: Reductions) -> Floats:
        """When all passes and the reductions that follow them are done, in several splits. Shape [splits]."""
        return splits_seconds(self._model, reductions, _speeds(kinds), options, num_microbatches)

    def update_seconds(self, options: Ints, kinds: Sequence[WorkerKind]) -> Floats:
        """The longest update of a worker in several splits. Shape [splits]."""
        return busiest(self._optimizer, _speeds(kinds), options)[0]

    def bettered(
        self, split: ChunkSplit, kinds: tuple[WorkerKind, ...], num_microbatches: int, reductions: Reductions
    ) -> ChunkSplit:
        """The fastest split that a longer search finds from one that `best` found; that one where it does not fit memory."""
        if split.lacking_bytes:
            return split
        cuts = self.descended(np.array(split.cuts), kinds, num_microbatches, reductions, THOROUGH)
        return self.priced(cuts.tolist(), kinds, num_microbatches, reductions)

    def descended(
        self,
        cuts: Ints,
        kinds: Sequence[WorkerKind],
        num_microbatches: int,
        reductions: Reductions,
        effort: Effort = QUICK,
    ) -> Ints:
        """From a split that fits memory to one whose neighbours that fit are no faster, as far as the effort goes."""
        moments = self._moments(kinds, num_microbatches, (len(cuts) - 1) // len(kinds))
        asked = Asked(_speeds(kinds), reductions, self._optimizer, num_microbatches)
        return descend(self._model, asked, Room(self._memory, moments, _usable_bytes(kinds)), cuts, effort)

    def promise(self, options: Ints, kinds: Sequence[WorkerKind], num_microbatches: int) -> Floats:
        """What splits cost about: the busiest worker for every micro-batch, the greatest stage for every worker. Shape [splits]."""
        workers, stages = busiest(self._work, _speeds(kinds), options)
        return num_microbatches * workers + (len(kinds) - 1) * stages

    def every(self, num_stages: int) -> Ints:
        """All splits over so many stages. Shape [splits, stages + 1]."""
        count = len(self._work) - 1
        inner = combinations(range(1, count), num_stages - 1)
        return np.array([(0, *cuts, count) for cuts in inner], dtype=np.int64)

    def even(self, weights: Sequence[float], num_virtual: int) -> Ints:
        """The split whose stages end closest to their shares of the work, a layer each at least. Shape [stages + 1].

        Args:
            weights: of the workers, such as their speeds.
            num_virtual: stages per worker.
        """
        both, count = self._work, len(self._work) - 1
        due = np.tile(np.array(weights, dtype=np.float64), num_virtual)
        shares = both[-1] * np.cumsum(due)[:-1] / due.sum()
        ends = np.searchsorted((both[1:] + both[:-1]) / 2, shares)
        places = np.arange(1, len(due))
        ends = np.maximum.accumulate(np.maximum(ends - places, 0)) + places
        ends = np.minimum(ends, count - len(due) + places)
        return np.concatenate(([0], ends, [count])).astype(np.int64)

    def lacking(self, options: Ints, kinds: Sequence[WorkerKind], num_microbatches: int) -> Ints:
        """Bytes that the worker lacks that lacks most, in each of several splits; 0 where one fits. Shape [splits]."""
        result: Ints = np.maximum(self.lacks(options, kinds, num_microbatches).max(axis=1), 0)
        return result

    def neediest(self, cuts: Sequence[int], kinds: Sequence[WorkerKind], num_microbatches: int) -> int:
        """Place of the worker that lacks most."""
        return int(self.lacks(np.array(cuts, dtype=np.int64)[None], kinds, num_microbatches)[0].argmax())

    def may_fit(self, kinds: Sequence[WorkerKind], num_virtual: int, num_microbatches: int) -> bool:
        """Whether it is not ruled out that some split fits memory."""
        moments = all_moments(self._schedule, len(kinds), num_microbatches, num_virtual)
        return self._capacities.suffice(moments, [kind.usable_bytes for kind in kinds])

    def lacks(self, options: Ints, kinds: Sequence[WorkerKind], num_microbatches: int) -> Ints:
        """Bytes that each worker lacks, below 0 where some are left. From shape [splits, stages + 1] to [splits, workers]."""
        moments = self._moments(kinds, num_microbatches, (options.shape[1] - 1) // len(kinds))
        return lacking_bytes(self._memory, moments, _usable_bytes(kinds), options)

    def _moments(self, kinds: Sequence[WorkerKind], num_microbatches: int, num_virtual: int) -> Ints:
        return stacked_moments(self._schedule, len(kinds), num_microbatches, num_virtual)


def least_held(num_workers: int, num_microbatches: int) -> int:
    """With which number of so many micro-batches or more workers hold least: whole groups, and few, as others change nothing."""
    return num_workers * min(num_microbatches // num_workers, GROUPS_AT_ONCE) or num_microbatches


def _speeds(kinds: Sequence[WorkerKind]) -> Floats:
    return np.array([kind.speed_ratio for kind in kinds])


def _usable_bytes(kinds: Sequence[WorkerKind]) -> Ints:
    return np.array([kind.usable_bytes for kind in kinds], dtype=np.int64)


class _Descent:
    """The way from an even split to one whose neighbours are no better."""

    def __init__(
        self,
        splitter: ChunkSplitter,
        kinds: tuple[WorkerKind, ...],
        num_virtual: int,
        num_microbatches: int,
        reductions: Reductions,
    ) -> None:
        self._splitter, self._kinds, self._num_virtual = splitter, kinds, num_virtual
        self._num_microbatches, self._reductions = num_microbatches, reductions

    def run(self) -> ChunkSplit:
        cuts = self._by_promise(self._even())
        cuts = self._descended(cuts) if self._fits(cuts) else self._within_memory(cuts)
        return self._splitter.priced(cuts.tolist(), self._kinds, self._num_microbatches, self._reductions)

    def _even(self) -> Ints:
        return self._splitter.even([kind.speed_ratio for kind in self._kinds], self._num_virtual)

    def _within_memory(self, cuts: Ints) -> Ints:
        """The best split that is found where memory does not allow what would be fastest."""
        num_layers, num_stages = int(cuts[-1]), len(cuts) - 1
        if math.comb(num_layers - 1, num_stages - 1) <= MOST_SPLITS:
            return self._best_of(self._splitter.every(num_stages))
        starts = [self._roomier(cuts), self.into_memory(cuts)]
        if not any(map(self._fits, starts)):
            starts.append(self.into_memory(self._splitter.even([kind.usable_bytes for kind in self._kinds], self._num_virtual)))
        fitting = [start for start in np.unique(starts, axis=0) if self._fits(start)]
        return self._best_of(np.array([self._descended(start) for start in fitting] or starts))

    def _best_of(self, options: Ints) -> Ints:
        """The fastest that fits memory, or the one that lacks least."""
        lacking = self._lacking(options)
        fitting = options[lacking == 0]
        best: Ints = fitting[self._seconds(fitting).argmin()] if len(fitting) else options[lacking.argmin()]
        return best

    def _descended(self, cuts: Ints) -> Ints:
        """From a split that fits memory to one whose neighbours that fit are no faster."""
        return self._splitter.descended(cuts, self._kinds, self._num_microbatches, self._reductions)

    def _by_promise(self, cuts: Ints) -> Ints:
        return _steepest(cuts, self._promise, neighbours)

    def roomiest(self) -> Ints:
        """A split whose worker that lacks most lacks little."""
        return self._roomier(self._by_promise(self._even()))

    def _roomier(self, cuts: Ints) -> Ints:
        return _steepest(cuts, self._lacking, self._relieving_neediest)

    def into_memory(self, cuts: Ints) -> Ints:
        """The nearest split that fits memory; where that is not found, one that lacks little."""
        found, is_short = cuts, len(cuts) - 1 <= MOST_STAGES
        for options_of in (self._relieving, self._relieving_twice) if is_short else (self._relieving_neediest, self._relieving):
            found = _steepest(found, self._lacking_in_all, options_of)
            if self._fits(found):
                return found
        return found if found is cuts else self.into_memory(found)

    def _relieving_neediest(self, cuts: Ints) -> Ints:
        return self._taking(cuts, self._lacks(cuts).argmax())

    def _relieving(self, cuts: Ints) -> Ints:
        return self._taking(cuts, np.flatnonzero(self._lacks(cuts) > 0))

    def _relieving_twice(self, cuts: Ints) -> Ints:
        """The neighbours of the neighbours that lack least; none where stages are many."""
        options = neighbours(cuts)
        if len(cuts) - 1 > MOST_STAGES or not len(options):
            return options[:0]
        near = options[np.argsort(self._lacking_in_all(options), kind="stable")[:MOST_BEYOND]]
        result: Ints = np.unique(np.vstack([neighbours(option) for option in near]), axis=0)
        return result

    def _taking(self, cuts: Ints, places: Ints | np.intp) -> Ints:
        """Neighbours in which one of certain workers has a layer less."""
        stages = np.arange(len(cuts) - 1)
        is_own = np.isin(stages % len(self._kinds), places)
        return neighbours_between(cuts, stages[is_own], stages[~is_own])

    def _promise(self, options: Ints) -> Floats:
        return self._splitter.promise(options, self._kinds, self._num_microbatches)

    def _seconds(self, options: Ints) -> Floats:
        if not len(options):
            return np.array([math.inf])[:0]
        return self._splitter.seconds(options, self._kinds, self._num_microbatches, self._reductions)

    def _fits(self, cuts: Ints) -> bool:
        return not self._lacking(cuts[None])[0]

    def _lacks(self, cuts: Ints) -> Ints:
        """Bytes that each worker lacks. Shape [workers]."""
        result: Ints = self._splitter.lacks(cuts[None], self._kinds, self._num_microbatches)[0]
        return result

    def _lacking(self, options: Ints) -> Ints:
        return self._splitter.lacking(options, self._kinds, self._num_microbatches)

    def _lacking_in_all(self, options: Ints) -> Ints:
        """Bytes that workers lack, one and all. Shape [splits]."""
        result: Ints = np.maximum(self._splitter.lacks(options, self._kinds, self._num_microbatches), 0).sum(axis=1)
        return result


def _steepest(cuts: Ints, cost: Callable[[Ints], Ints | Floats], options_of: Callable[[Ints], Ints]) -> Ints:
    """From a split to that of its options that costs least, while that costs less."""
    least = cost(cuts[None])[0]
    while len(options := options_of(cuts)):
        costs = cost(options)
        best = int(costs.argmin())
        if costs[best] >= least * (1 - 1e-12):
            break
        cuts, least = options[best], costs[best]
    return cuts
