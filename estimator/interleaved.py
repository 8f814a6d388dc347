"""Interleaved 1F1B: every worker holds several stages of its pipeline, so that it is filled and drained in smaller steps.

The schedule of Megatron-LM (Narayanan et al., *Efficient Large-Scale Language Model Training on GPU Clusters Using
Megatron-LM*, 2021, section 2.2): stage s is on worker s mod P, and micro-batches go through in groups, each group through
one stage of a worker after the other. Megatron takes groups of P and refuses any other number of micro-batches; here groups
have P or a few more, so that any number will do, and with a multiple of P the orders are Megatron's.

Orders are read off a clock, and so are free of deadlock by construction. With groups G places apart (at least P, and no
group is larger), unit k is the k-th place of the forward passes, and also of the backward ones, which take the stages in
reverse. Worker i passes unit k forward at tick 2 * (k + i) and unit j backward at tick 2 * (j + L - i) + 1, where
L = (V - 1) * G + 2 * (P - 1) for V stages per worker. Whatever a pass needs has an earlier tick: its neighbour's pass is
two ticks earlier, that of the same worker's other stage 2 * (G - P + 1) or more, and the last stage passes a micro-batch
forward one tick or more before it passes it backward. Places without a micro-batch are left out.

Interleaved zero bubble is the same order with backward passes split as under ZB-H1 (Qi et al., *Zero Bubble Pipeline
Parallelism*, 2023): only input parts are waited for, and worker i puts the weight parts of i units off. It then holds no more
units than the first worker does. Nobody waits for the first stage's input part: it passes backward in one.
"""

from functools import lru_cache

import numpy as np

from estimator.arrays import Floats, Ints
from estimator.compiled import borrowing, compiled
from estimator.layers import INPUT_PART, PASS, WEIGHT_PART
from estimator.pipeline import PassTimes
from estimator.schedule import BACKWARD, FORWARD, INPUT, KINDS, WEIGHT, Step, order
from kintsugi.core.plan import Schedule

GROUPS_AT_ONCE = 5
"""More than ever have passes that lie between each other's."""

Groups = tuple[int, int, int, int]
"""Number of groups, micro-batches of the smaller ones, how many have one more, and how many places lie between them."""


@compiled
def groups_of(num_workers: int, num_microbatches: int) -> Groups:
    """As many groups as have a micro-batch for every worker, of nearly equal size, the larger ones first."""
    count = max(1, num_microbatches // num_workers)
    size, larger = num_microbatches // count, num_microbatches % count
    return count, size, larger, max(num_workers, size + (larger > 0))


@compiled
def unit(place: int, num_virtual: int, groups: Groups) -> tuple[int, int]:
    """Turn among the stages of a worker and micro-batch at a place; micro-batch -1 where there is none."""
    count, size, larger, stride = groups
    group, rest = place // (num_virtual * stride), place % (num_virtual * stride)
    turn, member = rest // stride, rest % stride
    if not 0 <= group < count or member >= size + (group < larger):
        return turn, -1
    return turn, group * size + min(group, larger) + member


@compiled
def lag(num_workers: int, num_virtual: int, groups: Groups) -> int:
    """L: how many clocks after its first forward pass the first worker would begin its first backward pass."""
    return (num_virtual - 1) * groups[3] + 2 * (num_workers - 1)


@compiled
def interleaved_ends(times: PassTimes, delays: Floats, num_workers: int, num_microbatches: int, is_split: bool) -> Floats:
    """When each stage is through with its last backward pass, in seconds. Shape [stages, cases].

    All cases are gone through at once, as passes have the same order in each: O(stages * num_microbatches) instructions on vectors.

    Args:
        times: of the passes, shape [stages, cases].
        delays: seconds between neighbouring stages, each way, shape [stages - 1, cases].
        num_workers: that the stages go round.
        num_microbatches: that enter the pipeline.
        is_split: whether weight parts are put off.
    """
    num_stages, num_cases = times.forward.shape
    passed, free = np.zeros((num_stages, num_microbatches, num_cases)), np.zeros((num_workers, num_cases))
    passes = passes_by_the_clock(num_workers, num_stages // num_workers, num_microbatches, is_split)
    ends = np.zeros((num_stages, num_cases))
    for place in range(len(passes)):
        kind, stage, microbatch = passes[place]
        worker = stage % num_workers
        if kind == WEIGHT:
            for case in range(num_cases):
                free[worker, case] = ends[stage, case] = free[worker, case] + times.weight[stage, case]
            continue
        other, seconds = (stage - 1, times.forward) if kind == FORWARD else (stage + 1, times.backward)
        for case in range(num_cases):
            start = free[worker, case]
            if 0 <= other < num_stages:
                start = max(start, passed[other, microbatch, case] + delays[min(stage, other), case])
            free[worker, case] = passed[stage, microbatch, case] = start + seconds[stage, case]
        if kind == BACKWARD:
            ends[stage] = free[worker]
    return ends


@compiled
def passes_by_the_clock(num_workers: int, num_virtual: int, num_microbatches: int, is_split: bool) -> Ints:
    """Passes of all workers, each behind those that it waits for: kinds, stages and micro-batches. Shape [passes, 3].

    Where weight parts are put off, first stages have an input and a weight part, too, one right behind the other.
    """
    groups, num_units = groups_of(num_workers, num_microbatches), num_virtual * num_microbatches
    units, behind = _units_by_place(num_virtual, groups), lag(num_workers, num_virtual, groups)
    passes, size = np.empty((num_workers * num_units * (3 if is_split else 2), 3), dtype=np.int64), 0
    inputs, num_inputs = np.empty((num_workers, num_units), dtype=np.int64), np.zeros(num_workers, dtype=np.int64)
    for clock in range(len(units) + behind):
        for worker in range(max(0, clock - len(units) + 1), min(num_workers, clock + 1)):
            turn, microbatch = units[clock - worker]
            size = _add(passes, size, FORWARD, turn * num_workers + worker, microbatch)
        ahead = clock - behind
        for worker in range(max(0, -ahead), min(num_workers, len(units) - ahead)):
            turn, microbatch = units[ahead + worker]
            stage, before = (num_virtual - 1 - turn) * num_workers + worker, size
            size = _add(passes, size, INPUT if is_split else BACKWARD, stage, microbatch)
            if is_split and size > before:
                inputs[worker, num_inputs[worker]] = before
                num_inputs[worker] += 1
                if num_inputs[worker] > worker:
                    _, stage, microbatch = passes[inputs[worker, num_inputs[worker] - worker - 1]]
                    size = _add(passes, size, WEIGHT, stage, microbatch)
    for worker in range(num_workers if is_split else 0):
        for place in inputs[worker, max(0, num_units - worker) :]:
            size = _add(passes, size, WEIGHT, passes[place, 1], passes[place, 2])
    return passes


@borrowing
def _add(passes: Ints, size: int, kind: int, stage: int, microbatch: int) -> int:
    """Add a pass, unless the micro-batch is below 0; how many there are then."""
    if microbatch < 0:
        return size
    passes[size, 0], passes[size, 1], passes[size, 2] = kind, stage, microbatch
    return size + 1


@compiled
def _units_by_place(num_virtual: int, groups: Groups) -> Ints:
    """`unit` at every place. Shape [places, 2]."""
    result = np.empty((num_virtual * groups[0] * groups[3], 2), dtype=np.int64)
    for place in range(len(result)):
        result[place, 0], result[place, 1] = unit(place, num_virtual, groups)
    return result


@lru_cache(maxsize=64)
def _passes(num_workers: int, num_virtual: int, num_microbatches: int, is_split: bool) -> tuple[Ints, ...]:
    """Passes of each worker in order: kinds as places in `KINDS`, stages, and micro-batches. Shape [3, passes] each.

    First stages pass backward in one.
    """
    passes = passes_by_the_clock(num_workers, num_virtual, num_microbatches, is_split)
    is_first = passes[:, 1] == 0
    passes[is_first & (passes[:, 0] == INPUT), 0] = BACKWARD
    passes = passes[~is_first | (passes[:, 0] != WEIGHT)]
    return tuple(passes[passes[:, 1] % num_workers == worker].T.copy() for worker in range(num_workers))


def worker_order(
    schedule: Schedule, worker: int, num_workers: int, num_stages: int, num_microbatches: int
) -> tuple[tuple[int, Step], ...]:
    """The order of passes of one worker under any schedule: stages and steps.

    Args:
        schedule: order of passes.
        worker: its place in the pipeline, from 0.
        num_workers: that the stages go round.
        num_stages: a multiple of `num_workers`; as many but for the interleaved schedule.
        num_microbatches: that enter the pipeline.

    Raises:
        InvalidInputError: the schedule has no order.
    """
    if num_workers == num_stages:
        return tuple((worker, step) for step in order(schedule, worker, num_stages, num_microbatches))
    assert schedule.is_interleaved
    columns = _passes(num_workers, num_stages // num_workers, num_microbatches, schedule.is_split)[worker]
    passes = zip(*(column.tolist() for column in columns), strict=True)
    return tuple((stage, Step(KINDS[kind], microbatch)) for kind, stage, microbatch in passes)


def held_passes(worker: int, num_workers: int, num_virtual: int, num_microbatches: int, *, is_split: bool = False) -> Ints:
    """When a worker holds most: kinds of passes, and micro-batches held and put off in each stage as they begin.

    Shape [moments, 1 + 2 * num_virtual]. Moments that hold no more of anything than another one of their kind are left out for the
    most part, and those halfway between two others.
    """
    return _held(worker, num_workers, num_virtual, _telling(num_workers, num_microbatches), is_split)


def _telling(num_workers: int, num_microbatches: int) -> int:
    """The least number of micro-batches with which a worker comes to the same moments.

    What it holds depends on no more groups than have passes that lie between each other's, so more alike ones in a row show
    nothing new.
    """
    count, size, larger, _ = groups_of(num_workers, num_microbatches)
    if size != num_workers:
        return num_microbatches
    fewer = min(larger, GROUPS_AT_ONCE)
    return (fewer + min(count - larger, GROUPS_AT_ONCE)) * num_workers + fewer


@lru_cache(maxsize=4096)
def _held(worker: int, num_workers: int, num_virtual: int, num_microbatches: int, is_split: bool) -> Ints:
    kinds, stages, _ = _passes(num_workers, num_virtual, num_microbatches, is_split)[worker]
    changes, places = np.zeros((len(stages), 2 * num_virtual), dtype=np.int64), np.arange(len(stages))
    own, put_off = stages // num_workers, stages // num_workers + num_virtual
    changes[places, own] = (kinds == FORWARD).astype(np.int64) - ((kinds == BACKWARD) | (kinds == INPUT))
    changes[places, put_off] = (kinds == INPUT).astype(np.int64) - (kinds == WEIGHT)
    after = changes.cumsum(axis=0)
    before = after - changes
    is_taken, was_taken = kinds == FORWARD, np.append(False, kinds[:-1] == FORWARD)
    peaks = (
        (PASS, after[is_taken & np.append(~is_taken[1:], True)]),
        (PASS, before[(kinds == BACKWARD) & ~was_taken] if is_split else after[:0]),
        (INPUT_PART, before[kinds == INPUT]),
        (WEIGHT_PART, before[kinds == WEIGHT]),
    )
    return np.concatenate([np.insert(_bends(rows, is_split=is_split), 0, kind, axis=1) for kind, rows in peaks])


def _bends(rows: Ints, *, is_split: bool) -> Ints:
    """Without those halfway between the ones before and after, and each once; of split passes without those that hold less, too.

    Shape [rows, columns], as before.
    """
    if not len(rows):
        return rows
    nothing = np.zeros((1, rows.shape[1]), dtype=np.int64)
    is_bend = np.diff(rows, n=2, axis=0, prepend=nothing, append=nothing).any(axis=1)
    result: Ints = np.unique(rows[is_bend], axis=0)
    if not is_split:
        return result
    is_no_more = (result[:, None] <= result[None]).all(axis=2)
    most: Ints = result[is_no_more.sum(axis=1) == 1]  # than none but itself
    return most


def stage_limit(stage: int, num_workers: int, num_stages: int, num_microbatches: int) -> int:
    """Most micro-batches of a stage of an interleaved pipeline between their forward passes and whole backward passes."""
    held = held_passes(stage % num_workers, num_workers, num_stages // num_workers, num_microbatches)
    return int(held[:, 1 + stage // num_workers].max())
