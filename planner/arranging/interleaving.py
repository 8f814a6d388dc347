"""Arrangements of interleaved pipelines: how many, how long, and how many stages each worker holds."""

import math
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate, pairwise
from operator import attrgetter

import numpy as np

from estimator.arrays import Floats
from kintsugi.core.errors import InfeasibleError
from kintsugi.core.job import Ranges
from planner.arranging.arrangement import Arrangement, PipelineShape
from planner.arranging.grouping import evenly_roomy, roomiest_first
from planner.arranging.ordering import MOST_WORKERS
from planner.arranging.pace import Pace, together
from planner.arranging.problem import Problem
from planner.arranging.tightness import Tight, interleaved_memory_error
from planner.pipelines.chunks import ChunkSplit, ChunkSplitter, least_held
from planner.pipelines.kinds import WorkerKind, crews, fastest_first, levels
from planner.pipelines.tails import Reductions, stage_reductions

VIRTUAL = range(2, 9)
"""Stages per worker that are tried; with one, an interleaved pipeline is a pipeline of 1F1B."""

MOST_DEGREES = 12
"""Numbers of pipelines that fit memory and are tried, the most promising first."""

MOST_SHORTER = 2
"""Workers by which pipelines may be shorter than they could: so many layers may go into fewer stages with less to spare."""

MOST_LEADING = 4
"""Arrangements of one number of pipelines that may be priced."""

Kinds = tuple[WorkerKind, ...]

Way = tuple[Sequence[Kinds], int]
"""Workers of each pipeline, and stages per worker."""


class InterleavedSearch:
    """Heuristic search with a proven bound. Pipelines differ by one worker at most, or leave workers idle; alike workers share one.

    Pipelines of one worker have one stage: more would change nothing.
    """

    most_pursued = 48
    """Numbers of pipelines; what is left then has a closed-form bound."""

    floor_seconds = 0.0
    """No step is shorter, whatever is pursued."""

    tolerance = 1e-9
    optimism = math.inf

    def __init__(self, problem: Problem) -> None:
        """Take a problem on.

        Raises:
            InfeasibleError: the model has too few layers for several stages on each worker.
        """
        self._problem = problem
        self._kinds = fastest_first(problem.kinds)
        self._levels = levels(set(problem.kinds))
        self._crews = crews(self._levels[kind] for kind in problem.kinds)
        self._num_layers = problem.costs.profile.num_layers
        self._splitters: dict[int, ChunkSplitter] = {}
        self._reductions_of: dict[tuple[int, int], Reductions] = {}
        self._tight: dict[tuple[int, tuple[Kinds, int, int]], int] = {}
        """How many pipelines there were when no split was found that fits memory: by the holders who share optimizer state, and by
        a pipeline's workers, the stages of each, and its micro-batches."""
        self._num_found = 0
        self._options: dict[int, list[Arrangement]] = {}
        self._too_tight: list[tuple[int, int]] = []
        """Lengths of pipelines, and their micro-batches, that were found not to fit memory."""
        first, most = problem.allowed.pp.start, self._num_layers // VIRTUAL.start
        self._lengths = range(first, max(1, min(problem.allowed.pp[-1], most)) + 1)
        if not self._lengths:
            raise InfeasibleError(
                f"interleaved pipelines of {first} workers hold {VIRTUAL.start * first} stages at least; the model has "
                f"{self._num_layers} layers: choose shorter pipelines or another schedule",
                field="min_pp",
                value=first,
            )

    def by_promise(self) -> list[int]:
        """Numbers of pipelines to try, those with the shortest step that is to be expected first."""
        return sorted(self._problem.allowed.dp, key=lambda dp: (self._expected_seconds(dp), dp))

    def _expected_seconds(self, dp: int) -> float:
        """About the step of `dp` pipelines of equal stages, with as many workers and stages as are best for them."""
        totals = self._totals(dp, len(self._kinds)) if self._reach(dp) else []
        return min((self._expected_with(dp, total) for total in totals), default=math.inf) + self._after_seconds(dp)

    def _expected_with(self, dp: int, total: int) -> float:
        """When so many pipelines of so many workers are through; shorter ones have larger stages, whose reductions are longer."""
        sums, (short, num_longer) = self._problem.costs.sums, divmod(total, dp)
        whole = (sums.forward[-1] + sums.backward[-1]) * total / float(self._speeds[total - 1])
        passing = _through_seconds(whole / short, dp - num_longer, whole / (short + 1), num_longer, self._problem.num_microbatches)

        def filling(num_virtual: int) -> float:
            held = -(-self._num_layers // (short * num_virtual))
            fill = self._filling * (short - 1) / num_virtual * whole / short
            return fill + 2 * (num_virtual * short - 1) * self._least_delay + float(self._reductions(dp, short).until[held])

        fitting = [v for v in VIRTUAL if v * short <= self._num_layers] if short > 1 else [1]
        return passing + min(map(filling, fitting))

    def could_win(self, degrees: Sequence[int], limit_seconds: float) -> list[int]:
        """Those numbers of pipelines for which a step below the limit is not ruled out."""
        return [dp for dp in degrees if self.bound_seconds(dp) < limit_seconds]

    def arrange(self, dp: int, limit_seconds: float = math.inf) -> tuple[float, Arrangement | None]:
        """A lower bound on any step at all, and the best arrangement of `dp` pipelines that was found.

        The limit, and none, where nothing was found and for numbers that are passed over.
        """
        if self._num_found == MOST_DEGREES or self._is_hopeless(dp):
            return limit_seconds, None
        found = self._arrangements(dp)
        self._num_found += bool(found)
        self._options[dp] = [option for option, _ in found]
        if found:
            _, way = min(found, key=lambda pair: pair[0].seconds)
            self._options[dp] += filter(None, [self._arranged(*way, is_thorough=True)])
        options = self._below(dp, limit_seconds)
        return (self._least_bound, options[0]) if options else (limit_seconds, None)

    def _below(self, dp: int, limit_seconds: float) -> list[Arrangement]:
        """Those of `dp` pipelines that were found and take less than a time, the fastest first."""
        return sorted((option for option in self._options.get(dp, ()) if option.seconds < limit_seconds), key=attrgetter("seconds"))

    def _is_hopeless(self, dp: int) -> bool:
        """Whether pipelines no shorter, with no more micro-batches, were found not to fit memory."""
        own, count = min(len(self._kinds) // dp, self._lengths[-1]), self._problem.num_microbatches // dp
        return any(own <= length and count >= share for length, share in self._too_tight)

    def even(self, dp: int, limit_seconds: float = math.inf, *, num_lengths: int = 2) -> Arrangement | None:
        """The best arrangement of `dp` pipelines of so many lengths among those that `arrange` looked at."""
        options = self._below(dp, limit_seconds)
        return next((option for option in options if len({shape.num_workers for shape in option.shapes}) <= num_lengths), None)

    def leading(self, dp: int, limit_seconds: float = math.inf) -> list[Arrangement]:
        """Arrangements of `dp` pipelines, the fastest first: which one is best shows only once all reductions are in order."""
        distinct = {(option.shapes, option.kinds): option for option in self._below(dp, limit_seconds)}
        return list(distinct.values())[:MOST_LEADING]

    def step_seconds(self, arrangement: Arrangement) -> float:
        """What the step of an arrangement takes at least before its workers have names."""
        return arrangement.seconds

    def shortage(self, ranges: Ranges) -> InfeasibleError:
        """Why nothing fits memory, and how many workers would do within the job's ranges."""
        assert self._tight, "something fits, or nothing was tried"
        tight = [self._roomiest(dp, *pipeline) for (_, pipeline), dp in self._tight.items()]
        return interleaved_memory_error(
            min(tight, key=lambda tight: (tight.lacking_bytes, len(tight.kinds))),
            self._splitter,
            num_layers=self._num_layers,
            num_microbatches=self._problem.num_microbatches,
            ranges=ranges,
        )

    def _roomiest(self, dp: int, group: Kinds, num_virtual: int, share: int) -> Tight:
        splitter = self._splitter(dp)
        cuts = splitter.roomiest(group, num_virtual, share)
        return Tight(cuts, group, share, dp, int(splitter.lacking(np.array([cuts]), group, share)[0]))

    def bound_seconds(self, dp: int) -> float:
        """No step of `dp` pipelines is shorter, whatever the splits; in seconds. O(workers).

        Worker i of a pipeline waits until i layers at least have been passed forward over i links, and is through before they
        are passed backward. So n workers of speed 1 with all M micro-batches are busy or waiting for M * work + waits, with the
        least waits where lengths differ by one at most. Nor is a step shorter than one micro-batch's way.

        Where backward passes are split that holds of the work that is waited for. All work follows the first wait alone, and
        may be done after the last reduction has begun.
        """
        if not self._reach(dp):
            return math.inf
        sums = self._problem.costs.sums
        forward, weight = np.array(sums.forward), np.array(sums.backward_weight)
        both = forward + np.array(sums.backward)
        if not self._problem.schedule.is_split:
            through = max(self._way_seconds(float(both[-1])), self._shared_seconds(dp, float(both[-1]), both, 2))
            return float(through + self._reductions(dp, self._lengths[0]).until[1] + self._after_seconds(dp))
        waited = both - weight
        through = max(self._way_seconds(float(waited[-1] + weight[1])), self._shared_seconds(dp, float(waited[-1]), waited, 2))
        busy = self._shared_seconds(dp, float(both[-1]), forward, 1)
        return float(max(through + self._reductions(dp, self._lengths[0]).until[1], busy) + self._after_seconds(dp))

    def _way_seconds(self, work: float) -> float:
        """One micro-batch's way over all links and back, with so much work."""
        crossings = 2 * (VIRTUAL.start * self._lengths[0] - 1) if self._lengths[0] > 1 else 0
        return work / self._kinds[0].speed_ratio + crossings * self._least_delay

    def _shared_seconds(self, dp: int, work: float, passed: Floats, num_ways: int) -> float:
        """When some worker is through, at the earliest.

        Args:
            dp: number of pipelines.
            work: of one micro-batch in all layers, at speed 1.
            passed: what worker i waits for that is done in i layers, in seconds at speed 1, shape [layers + 1].
            num_ways: how often it waits for i links.
        """
        fastest, slowest = self._kinds[0].speed_ratio, self._kinds[-1].speed_ratio
        waits = np.concatenate(([0.0], np.cumsum(passed / fastest + num_ways * self._least_delay * np.arange(len(passed)))))
        totals = np.array(self._reach(dp))
        short, longer = totals // dp, totals % dp
        waiting = (dp - longer) * waits[short] + longer * waits[np.minimum(short + 1, len(waits) - 1)]
        return float(((self._problem.num_microbatches * work + slowest * waiting) / self._speeds[totals - 1]).min())

    @cached_property
    def _speeds(self) -> Floats:
        """Of the fastest n + 1 workers together. Shape [workers]."""
        return np.array(list(accumulate(kind.speed_ratio for kind in self._kinds)))

    @cached_property
    def _least_delay(self) -> float:
        link, layers = self._problem.link, self._problem.costs.profile.layers
        return min((link.transfer_seconds(layer.output_bytes) for layer in layers[:-1]), default=0.0)

    @cached_property
    def _least_bound(self) -> float:
        return min(self.bound_seconds(dp) for dp in self._problem.allowed.dp)

    def _reach(self, dp: int) -> range:
        """Numbers of workers that `dp` pipelines can have in all."""
        return range(dp * self._lengths[0], min(len(self._kinds), dp * self._lengths[-1]) + 1)

    def _after_seconds(self, dp: int) -> float:
        """The commit and the longest update take at least this."""
        costs = self._problem.costs
        updates = np.diff(costs.sums.optimizer)
        share = updates.sum() / self._lengths[-1]
        return costs.commit_seconds(dp * self._lengths[0]) + float(max(updates.max(), share)) / self._kinds[0].speed_ratio

    def _arrangements(self, dp: int) -> list[tuple[Arrangement, Way]]:
        """Over all workers, or without the slowest or the smallest."""
        found: list[tuple[Arrangement, Way]] = []
        for kinds in self._crews:
            for total in self._totals(dp, len(kinds)):
                for groups in self._ways(kinds[:total], dp):
                    found += self._of_groups(groups)
        if not found and len(set(self._kinds)) == 1:
            self._too_tight.append((min(len(self._kinds) // dp, self._lengths[-1]), -(-self._problem.num_microbatches // dp)))
        return found

    def _ways(self, kinds: Kinds, dp: int) -> list[list[Kinds]]:
        """Workers of `dp` pipelines, alike ones together; in small jobs where memory differs also the roomiest first."""
        alike = _groups(kinds, dp)
        if len(self._kinds) > MOST_WORKERS or len({kind.usable_bytes for kind in kinds}) == 1:
            return [alike]
        roomy = evenly_roomy(roomiest_first(kinds), dp, self._lengths)
        return [alike, [roomiest_first(group) for group in alike], roomy, [group[::-1] for group in roomy]]

    def _of_groups(self, groups: Sequence[Kinds]) -> list[tuple[Arrangement, Way]]:
        """Over certain workers; where neither the fewest nor the most stages fit memory, numbers between hardly ever do."""
        options = {v: self._arranged(groups, v) for v in (VIRTUAL[0], VIRTUAL[-1])}
        if any(options.values()):
            options |= {v: self._arranged(groups, v) for v in VIRTUAL[1:-1]}
        return [(option, (groups, v)) for v, option in sorted(options.items()) if option is not None]

    def _totals(self, dp: int, num_workers: int) -> list[int]:
        """How many of so many workers to use: as many as possible, and pipelines of one length, or of one a little shorter."""
        most = min(num_workers, dp * self._lengths[-1])
        even = (dp * (most // dp - shorter) for shorter in range(MOST_SHORTER + 1))
        return [total for total in dict.fromkeys((most, *even)) if total in self._reach(dp)]

    def _arranged(self, groups: Sequence[Kinds], num_virtual: int, *, is_thorough: bool = False) -> Arrangement | None:
        """Micro-batches and layers for pipelines of these workers; None where they do not fit memory."""
        dp = len(groups)
        virtual = [min(num_virtual, self._num_layers // len(group)) if len(group) > 1 else 1 for group in groups]
        whole, pipelines = self._problem.num_microbatches, list(zip(groups, virtual, strict=True))
        if all(self._is_ruled_out(dp, *pipeline) for pipeline in dict.fromkeys(pipelines)):
            return None
        paces = {pipeline: self._pace(*pipeline) for pipeline in set(pipelines)}
        shares = together([paces[pipeline] for pipeline in pipelines], whole)
        splits = self._splits(groups, virtual, shares, is_thorough=is_thorough)
        if not splits:
            return None
        order = sorted(range(dp), key=lambda k: (-len(groups[k]), -shares[k]))
        shapes = tuple(PipelineShape(splits[k].cuts, shares[k], virtual[k]) for k in order)
        commit = self._problem.costs.commit_seconds(sum(map(len, groups)))
        seconds = max(split.through_seconds for split in splits) + commit + max(split.update_seconds for split in splits)
        if len(set(self._kinds)) == 1:
            return Arrangement(shapes, seconds)
        return Arrangement(shapes, seconds, tuple(kind for k in order for kind in groups[k]), self._levels)

    def _is_ruled_out(self, dp: int, group: Kinds, num_virtual: int) -> bool:
        """Whether it is certain that no split fits memory if this is the pipeline with the most micro-batches."""
        share = least_held(len(group), -(-self._problem.num_microbatches // dp))
        is_ruled_out = self._splitter(dp).is_ruled_out(group, num_virtual, share)
        if is_ruled_out:
            self._remember_tight(dp, (group, num_virtual, share))
        return is_ruled_out

    def _remember_tight(self, dp: int, pipeline: tuple[Kinds, int, int]) -> None:
        self._tight.setdefault((self._replicas(dp), pipeline), dp)

    def _pace(self, group: Kinds, num_virtual: int) -> Pace:
        """In passes of the whole model at speed 1, when stages are equal (Narayanan et al., section 2.2; Qi et al., ZB-H1)."""
        speed = sum(kind.speed_ratio for kind in group)
        return Pace(0, self._filling * (len(group) - 1) / num_virtual / speed, 1 / speed, self._problem.num_microbatches)

    @cached_property
    def _filling(self) -> float:
        """Which part of a pass each worker but the first adds to filling and draining: weight parts fill what they can."""
        sums = self._problem.costs.sums
        whole, weight = sums.forward[-1] + sums.backward[-1], sums.backward_weight[-1]
        return max(0.0, whole - 2 * weight) / whole if self._problem.schedule.is_split and whole else 1.0

    def _splits(
        self, groups: Sequence[Kinds], virtual: Sequence[int], shares: Sequence[int], *, is_thorough: bool
    ) -> list[ChunkSplit]:
        """The split of every pipeline: alike ones share that of the busiest, so that they hold the same, where it is no slower.

        Empty where some pipeline does not fit memory.
        """
        splitter = self._splitter(len(groups))
        busiest: dict[Kinds, ChunkSplit] = {}
        result: dict[tuple[Kinds, int], ChunkSplit] = {}
        for k in sorted(range(len(groups)), key=lambda k: -shares[k]):
            pipeline = group, share = groups[k], shares[k]
            if pipeline in result:
                continue
            known, reductions = busiest.get(group), self._reductions(len(groups), len(group))
            result[pipeline] = splitter.best(group, virtual[k], share, reductions)
            if is_thorough:
                result[pipeline] = splitter.bettered(result[pipeline], group, share, reductions)
            if result[pipeline].lacking_bytes:
                self._remember_tight(len(groups), (group, virtual[k], share))
            elif known is not None and not known.lacking_bytes:
                same = splitter.priced(known.cuts, group, share, reductions)
                most = max(known.seconds, result[pipeline].seconds) * (1 + self.tolerance)
                if not same.lacking_bytes and same.seconds <= most:
                    result[pipeline] = same
            busiest.setdefault(group, result[pipeline])
        if any(split.lacking_bytes for split in result.values()):
            return []
        return [result[pipeline] for pipeline in zip(groups, shares, strict=True)]

    def _splitter(self, dp: int) -> ChunkSplitter:
        replicas = self._replicas(dp)
        if replicas not in self._splitters:
            problem = self._problem
            self._splitters[replicas] = ChunkSplitter(problem.costs.sums, problem.schedule, problem.link, replicas)
        return self._splitters[replicas]

    def _replicas(self, dp: int) -> int:
        return self._problem.costs.profile.optimizer_shards(dp)

    def _reductions(self, dp: int, num_workers: int) -> Reductions:
        """Of a single pipeline both ends, where these are tied, may share a host."""
        key, problem = (dp, min(num_workers, 2)), self._problem
        if key not in self._reductions_of:
            link_over = problem.reduction_link if dp > 1 else lambda _: problem.link
            self._reductions_of[key] = stage_reductions(problem.costs.profile, *key, link_over)
        return self._reductions_of[key]


def _through_seconds(slow_seconds: float, num_slow: int, fast_seconds: float, num_fast: int, num_microbatches: int) -> float:
    """When pipelines that take so long for each micro-batch have passed all of them, one after the other; some are slow."""
    if not slow_seconds:
        return 0.0
    together = num_microbatches / (num_slow / slow_seconds + num_fast / fast_seconds)
    slow, fast = int(together / slow_seconds), int(together / fast_seconds)
    while num_slow * slow + num_fast * fast < num_microbatches:
        if num_fast and (fast + 1) * fast_seconds < (slow + 1) * slow_seconds:
            fast += 1
        else:
            slow += 1
    return max(slow * slow_seconds, fast * fast_seconds if num_fast else 0.0)


def _groups(kinds: Sequence[WorkerKind], dp: int) -> list[Kinds]:
    """Consecutive workers, fastest first, in `dp` groups of nearly equal size, the smaller ones first."""
    base, extra = divmod(len(kinds), dp)
    stops = list(accumulate((base + (index >= dp - extra) for index in range(dp)), initial=0))
    return [tuple(kinds[start:stop]) for start, stop in pairwise(stops)]
