"""Layers to stages: the contiguous split with the shortest pipeline under the memory limits."""

import math
from collections import Counter
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, fields, replace
from itertools import combinations
from operator import attrgetter
from typing import Self

import numpy as np

from estimator.arrays import Floats, Ints
from estimator.layers import LayerSums
from estimator.moments import kinds_under, pipeline_moments, stage_moments
from estimator.schedule import most_in_flight
from kintsugi.core.plan import Schedule
from kintsugi.core.profile import LayerProfile, LinkCost
from planner.pipelines.bounds import Chain, Model, fill_peaks, fits_somehow, most_apart, widest_that_fits
from planner.pipelines.exploring import explore
from planner.pipelines.kinds import ANY, Crew, Firsts, WorkerKind
from planner.pipelines.minimax import minimax
from planner.pipelines.orders import order_that_fits
from planner.pipelines.pricing import splits_seconds
from planner.pipelines.relaxation import Outline, widest_stages
from planner.pipelines.shifting import neighbours_below

_amounts = attrgetter(*(field.name for field in fields(LayerProfile) if field.name not in {"name", "tied_to"}))

MOST_SPLITS = 128
"""So few splits are priced one and all."""

NO_SPLITS: Ints = np.zeros((0, 0), dtype=np.int64)

MOST_CHOICES = 4096
"""Of workers of a pipeline, by memory, among which an order is looked for in which the layers fit."""

EXACT, CLOSE = 1e-9, 2e-3
"""How far above its bound a split may stay without a look at its neighbours: with equal layers, and otherwise."""


@dataclass(frozen=True, slots=True)
class Split:
    """Stage boundaries of one pipeline and its time."""

    cuts: tuple[int, ...]
    """Shape [stages + 1]; stage i holds layers cuts[i] .. cuts[i + 1] - 1."""
    seconds: float
    """The objective: the last stage to be through with its passes, by the recurrence, and with what follows them."""
    least_seconds: float
    """No other split has a shorter objective."""


@dataclass(frozen=True, slots=True, eq=False)
class Attained:
    """What was asked of a pipeline, the least bound on its objective, and splits that attain the bound."""

    kinds: tuple[WorkerKind, ...]
    chain: Chain
    seconds: float
    """No split is faster; infinite where no split fits memory."""
    starts: Ints
    """Shape [splits, stages + 1]."""
    is_exact: bool = False
    """Whether all splits were priced: the bound is the best one's objective."""


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
        forward, backward = np.array(sums.forward, dtype=np.float64), np.array(sums.backward, dtype=np.float64)
        delays = np.array([0.0, *(link.transfer_seconds(layer.output_bytes) for layer in layers[:-1]), 0.0])
        self._model = Model(
            forward=forward,
            backward=backward,
            weight=np.zeros_like(backward),
            static_bytes=sums.static_table(num_replicas),
            activation_bytes=np.array(sums.activations, dtype=np.int64),
            entry_bytes=np.array(sums.entry_bytes, dtype=np.int64),
            deferred_bytes=np.array(sums.deferred, dtype=np.int64),
            deferred_entry_bytes=np.array(sums.deferred_entry_bytes, dtype=np.int64),
            taken_bytes=np.stack([sums.temporary_table(kind) for kind in kinds_under(schedule)], axis=-1),
            update_bytes=sums.update_table(),
            delays=delays,
            least_delay=float(delays[1:-1].min()) if count > 1 else 0.0,
            update=np.array(sums.optimizer, dtype=np.float64),
        )
        self.priced_model = self._model
        """Layers as prices see them: weight parts apart where they are put off."""
        self._both = forward + backward
        self.tolerance = EXACT if len(set(map(_amounts, layers))) == 1 else CLOSE
        self._splits: dict[int, Ints] = {}
        self._crews: dict[tuple[WorkerKind, ...], Crew] = {}
        self._descended: dict[tuple[WorkerKind, ...], Ints] = {}
        """Where the last descent for these workers ended: a good split for other micro-batch counts too."""
        self._bounded: dict[tuple[object, ...], Attained] = {}
        self._attained: dict[tuple[WorkerKind, ...], Ints] = {}
        """Splits that attained the last bound of these workers: good ones for other micro-batch counts, too."""
        self._solved: dict[tuple[object, ...], tuple[Chain, Split]] = {}
        """What was asked last of each pipeline, but for what follows its passes, and the split."""
        self._priced: dict[tuple[object, ...], Attained] = {}
        """The best of all splits by what was asked, where all are priced."""

    def afresh(self) -> Self:
        """The same for another search: it shares what is known for certain, but knows no splits that others have come upon."""
        other = copy(self)
        other._descended, other._bounded, other._attained, other._solved = {}, {}, {}, {}
        return other

    def attain(
        self,
        kinds: Sequence[WorkerKind],
        num_microbatches: int,
        tail_seconds: Floats,
        least_update: float = math.inf,
        firsts: Firsts = ANY,
    ) -> Attained:
        """The greatest of the stages' lower bounds, minimised by dynamic programming over (stage, first layer).

        O(stages * layers^2) at worst. Where there are few splits all are priced, and the bound is exact.

        Args:
            kinds: of the workers, first stage first.
            num_microbatches: that enter the pipeline.
            tail_seconds: reduction of the first n layers, shape [layers + 1].
            least_update: what the longest update takes at least, which the objective leaves out.
            firsts: what is known of the first stages of all pipelines.
        """
        if not self._schedule.is_split and math.comb(self._sums.profile.num_layers - 1, len(kinds) - 1) <= MOST_SPLITS:
            everything = tuple(kinds), num_microbatches, tail_seconds.tobytes(), least_update, firsts
            if everything not in self._priced:
                chain = self._chain(kinds, num_microbatches, tail_seconds, least_update, firsts)
                seconds, cuts = self._first(self._all_splits(len(kinds)), chain)
                self._priced[everything] = Attained(tuple(kinds), chain, seconds, cuts[None], is_exact=True)
            return self._priced[everything]
        chain = self._chain(kinds, num_microbatches, tail_seconds, least_update, firsts)
        asked = tuple(kinds), chain.rest, chain.most_first, chain.common
        if asked in self._bounded:
            known = self._bounded[asked]
            if math.isinf(known.seconds):
                return known
            shift = self._most_shift(chain, known.chain, known.seconds)
            if shift <= self.tolerance / 20 * known.seconds:
                return replace(known, chain=chain, seconds=known.seconds - shift)
        bound, starts = minimax(self._model, chain, self._attained.get(asked[0], NO_SPLITS))
        self._bounded[asked] = Attained(asked[0], chain, float(bound), starts)
        if not math.isinf(bound):
            self._attained[asked[0]] = starts
        return self._bounded[asked]

    def _all_splits(self, num_stages: int) -> Ints:
        if num_stages not in self._splits:
            count = self._sums.profile.num_layers
            inner = combinations(range(1, count), num_stages - 1)
            self._splits[num_stages] = np.array([(0, *cuts, count) for cuts in inner], dtype=np.int64)
        return self._splits[num_stages]

    def best(self, attained: Attained) -> Split | None:
        """The fastest split that was found for what was asked; None where no split fits memory.

        The recurrence prices the splits that attain the bound, one that was good for another number of micro-batches, and,
        while the bound is not met, their neighbours; and where that is not close, those whose bounds are least. What was found
        for the same pipeline holds, less the difference, where what follows its passes hardly differs.
        """
        if math.isinf(attained.seconds):
            return None
        if attained.is_exact:
            return Split(tuple(attained.starts[0].tolist()), attained.seconds, attained.seconds)
        chain = attained.chain
        asked = attained.kinds, chain.rest, chain.most_first, chain.common
        if asked in self._solved:
            other, split = self._solved[asked]
            shift = self._most_shift(chain, other, split.seconds)
            if shift <= self.tolerance / 2 * split.seconds:
                seconds, cuts = self._first(np.vstack((attained.starts, [split.cuts])), chain)
                return Split(tuple(cuts.tolist()), seconds, max(attained.seconds, split.least_seconds - shift))
        split = self._descend(attained)
        self._solved[asked] = chain, split
        return split

    def _descend(self, attained: Attained) -> Split:
        known, chain, bound = self._descended.get(attained.kinds), attained.chain, attained.seconds
        starts = attained.starts if known is None else np.vstack((attained.starts, [known]))
        seconds, cuts = self._first(starts, chain)
        while seconds > bound * (1 + self.tolerance):
            nearby, other = self._first(neighbours_below(self.priced_model, chain, cuts, seconds), chain, seconds)
            if nearby >= seconds * (1 - 1e-12):
                break
            seconds, cuts = nearby, other
        if seconds > bound * (1 + CLOSE):
            bound, seconds, cuts = explore(self.priced_model, chain, bound, cuts, CLOSE)
        self._descended[attained.kinds] = cuts
        return Split(tuple(cuts.tolist()), seconds, bound)

    def _most_shift(self, one: Chain, other: Chain, within: float) -> float:
        """By how much objectives up to `within` may differ for chains that differ in what follows the passes; in seconds.

        A stage whose passes alone take longer has a longer objective, so what it reduces does not matter.
        """
        reach = within * one.speeds.max() / (one.rest + 1)
        apart = most_apart(self._both, one.tail, other.tail, reach, one.common)
        return apart + (0.0 if one.least_update == other.least_update else abs(one.least_update - other.least_update))

    def nearby(self, attained: Attained, cuts: Sequence[int], below: float) -> list[tuple[int, ...]]:
        """Splits one layer away from another one that have a shorter objective than `below`, the shortest first."""
        options = neighbours_below(self.priced_model, attained.chain, np.array(cuts), below)
        seconds = np.array([splits_seconds(self.priced_model, attained.chain, option[None], below)[0] for option in options])
        return [tuple(options[row].tolist()) for row in np.argsort(seconds, kind="stable") if seconds[row] < below]

    def _chain(
        self, kinds: Sequence[WorkerKind], num_microbatches: int, tail: Floats, least_update: float = math.inf, firsts: Firsts = ANY
    ) -> Chain:
        kinds = tuple(kinds)
        if kinds not in self._crews:
            self._crews[kinds] = Crew.of(kinds)
        crew, num_stages = self._crews[kinds], len(kinds)
        return Chain(
            speeds=crew.speeds,
            above=crew.above,
            below=crew.below,
            usable_bytes=crew.usable_bytes,
            moments=pipeline_moments(self._schedule, num_stages, num_microbatches),
            rest=num_microbatches - 1,
            lag=self._schedule.lag,
            all_forward=self._schedule is Schedule.GPIPE,
            tail=tail,
            least_update=least_update,
            most_first=firsts.most,
            common=firsts.common,
        )

    def _first(self, options: Ints, chain: Chain, below: float = math.inf) -> tuple[float, Ints]:
        """The fastest of several splits (shape [splits, stages + 1]) and its objective; the first among equals.

        Objectives from `below` on do not matter.
        """
        if not len(options):
            return math.inf, options
        seconds = splits_seconds(self.priced_model, chain, options, below)
        best = int(seconds.argmin())
        return float(seconds[best]), options[best]

    def outline(self, kind: WorkerKind, lengths: range) -> Outline:
        """What closed-form bounds know of the layers on equal workers, in pipelines of these lengths."""
        both = self._both / kind.speed_ratio
        widest = widest_stages(both)
        fitting = widest.copy()
        for length in lengths if self._schedule is not Schedule.GPIPE else ():
            chain = self._chain((kind,) * length, most_in_flight(length, self._schedule.lag) + 1, self._model.forward)
            greatest = widest_that_fits(self._model, chain, both, widest[length])
            fitting[length] = widest[length] if math.isinf(greatest) else greatest
        return Outline(
            both=both,
            work=float(self._model.forward[-1] + self._model.backward[-1]) / kind.speed_ratio,
            delay=self._model.least_delay,
            widest=widest,
            fitting=fitting,
            lag=self._schedule.lag,
            all_forward=self._schedule is Schedule.GPIPE,
        )

    def most_microbatches(self, num_stages: int, kind: WorkerKind, at_most: int) -> int:
        """Most micro-batches, up to `at_most`, with which some split fits the memory of such workers; 0 where none does."""
        low, high, most = 0, at_most + 1, most_in_flight(num_stages, self._schedule.lag)
        while high - low > 1:
            probe = min(high - 1, most + 1) if (low, high) == (0, at_most + 1) else (low + high) // 2
            if not self.fits((kind,) * num_stages, probe):
                high = probe
            elif probe > most and self._schedule is not Schedule.GPIPE:
                return at_most
            else:
                low = probe
        return low

    def fits(self, kinds: Sequence[WorkerKind], num_microbatches: int) -> bool:
        """Whether some split fits the memory of these workers, first stage first."""
        return bool(fits_somehow(self._model, self._chain(kinds, num_microbatches, self._model.forward)))

    def order_that_fits(self, kinds: Sequence[WorkerKind], num_microbatches: int) -> tuple[WorkerKind, ...] | None:
        """The workers of a pipeline in an order in which some split fits memory; None where there is none, or too many to try."""
        sizes = Counter(kind.usable_bytes for kind in kinds)
        if len(sizes) == 1 or math.prod(count + 1 for count in sizes.values()) > MOST_CHOICES:
            return None
        chain = self._chain(kinds, num_microbatches, self._model.forward)
        order = order_that_fits(self._model, chain, np.array(list(sizes)), np.array(list(sizes.values())))
        of_size = {size: iter([kind for kind in kinds if kind.usable_bytes == size]) for size in sizes}
        return tuple(next(of_size[list(sizes)[place]]) for place in order.tolist()) or None

    def peak_table(self, stage: int, num_stages: int, num_microbatches: int) -> Floats:
        """Peak memory of every layer range [a, b) on a stage; infinite for empty ranges. Shape [layers + 1, layers + 1]."""
        count = self._sums.profile.num_layers
        peaks = np.full((count + 1, count + 1), np.inf)
        fill_peaks(self._model, stage_moments(self._schedule, stage, num_stages, num_microbatches), peaks)
        return peaks
