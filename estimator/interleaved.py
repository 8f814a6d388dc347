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
from typing import NamedTuple

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


class _State(NamedTuple):
    """How far a pipeline has come, in each of several cases."""

    passed: Floats
    """When each stage was through with its latest pass of each micro-batch, weight parts aside.

    Shape [stages, num_microbatches, cases]. A stage passes a micro-batch backward long after the next one has passed it forward,
    which no longer asks for that then.
    """
    free: Floats
    """When each worker was through with its latest pass. Shape [workers, cases]."""
    ends: Floats
    """When each stage was through with its latest weight part, or whole backward pass. Shape [stages, cases]."""
    order: Ints
    """Stages in which each worker has passed units backward. Shape [workers, units]."""
    num_units: Ints
    """How many those are. Shape [workers]."""


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
    num_virtual, groups = num_stages // num_workers, groups_of(num_workers, num_microbatches)
    units, behind = _units_by_place(num_virtual, groups), lag(num_workers, num_virtual, groups)
    state = _State(
        np.zeros((num_stages, num_microbatches, num_cases)),
        np.zeros((num_workers, num_cases)),
        np.zeros((num_stages, num_cases)),
        np.zeros((num_workers, num_virtual * num_microbatches), dtype=np.int64),
        np.zeros(num_workers, dtype=np.int64),
    )
    for clock in range(len(units) + behind):
        _pass_forward(state, times.forward, delays, units, clock)
        _pass_backward(state, times, delays, units, clock - behind, is_split)
    for worker in range(num_workers):
        for place in range(state.num_units[worker] - (worker if is_split else 0), state.num_units[worker]):
            _finish(state, times.weight, worker, place)
    return state.ends


@compiled
def _units_by_place(num_virtual: int, groups: Groups) -> Ints:
    """`unit` at every place. Shape [places, 2]."""
    result = np.empty((num_virtual * groups[0] * groups[3], 2), dtype=np.int64)
    for place in range(len(result)):
        result[place, 0], result[place, 1] = unit(place, num_virtual, groups)
    return result


@borrowing
def _pass_forward(state: _State, forward: Floats, delays: Floats, units: Ints, clock: int) -> None:
    """The forward passes at a clock; worker i is i places behind the first."""
    num_workers, num_cases = state.free.shape
    for worker in range(max(0, clock - len(units) + 1), min(num_workers, clock + 1)):
        turn, microbatch = units[clock - worker, 0], units[clock - worker, 1]
        stage = turn * num_workers + worker
        for case in range(num_cases if microbatch >= 0 else 0):
            start = state.free[worker, case]
            if stage > 0:
                start = max(start, state.passed[stage - 1, microbatch, case] + delays[stage - 1, case])
            state.free[worker, case] = state.passed[stage, microbatch, case] = start + forward[stage, case]


@borrowing
def _pass_backward(  # noqa: PLR0917
    state: _State, times: PassTimes, delays: Floats, units: Ints, clock: int, is_split: bool
) -> None:
    """The backward passes, or their parts, at a clock of their own; worker i is i places ahead of the first."""
    num_workers, num_cases = state.free.shape
    last = len(state.passed) - 1
    for worker in range(max(0, -clock), min(num_workers, len(units) - clock)):
        turn, microbatch = units[clock + worker, 0], units[clock + worker, 1]
        stage = last + 1 - (turn + 1) * num_workers + worker
        for case in range(num_cases if microbatch >= 0 else 0):
            start = state.free[worker, case]
            if stage < last:
                start = max(start, state.passed[stage + 1, microbatch, case] + delays[stage, case])
            state.free[worker, case] = state.passed[stage, microbatch, case] = start + times.backward[stage, case]
        if microbatch >= 0:
            state.order[worker, state.num_units[worker]] = stage
            state.num_units[worker] += 1
            _finish(state, times.weight, worker, state.num_units[worker] - (worker + 1 if is_split else 1))


@borrowing
def _finish(state: _State, weight: Floats, worker: int, place: int) -> None:
    """Pass the weight part of the unit that a worker passed backward as its `place`-th; nothing below 0."""
    stage = state.order[worker, max(place, 0)]
    for case in range(state.free.shape[1] if place >= 0 else 0):
        state.free[worker, case] = state.ends[stage, case] = state.free[worker, case] + weight[stage, case]


@lru_cache(maxsize=4096)
def _passes(worker: int, num_workers: int, num_virtual: int, num_microbatches: int, is_split: bool) -> Ints:
    """Passes of one worker in order: their kinds as places in `KINDS`, stages, and micro-batches. Shape [3, passes]."""
    return _by_the_clock(worker, num_workers, num_virtual, num_microbatches, worker if is_split else -1)


@compiled
def _by_the_clock(worker: int, num_workers: int, num_virtual: int, num_microbatches: int, num_put_off: int) -> Ints:
    """`_passes`, with the weight parts of so many units put off; below 0 backward passes are whole."""
    groups = groups_of(num_workers, num_microbatches)
    behind, num_places = lag(num_workers, num_virtual, groups), num_virtual * groups[0] * groups[3]
    passes, size = np.empty((3, 3 * num_virtual * num_microbatches), dtype=np.int64), 0
    inputs, num_inputs, num_weights = np.empty(num_virtual * num_microbatches, dtype=np.int64), 0, 0
    forward, backward = 0, 0
    while backward < num_places:
        is_forward = forward < num_places and forward + worker <= backward + behind - worker
        turn, microbatch = unit(forward if is_forward else backward, num_virtual, groups)
        forward, backward = forward + is_forward, backward + (not is_forward)
        if microbatch < 0:
            continue
        stage = (turn if is_forward else num_virtual - 1 - turn) * num_workers + worker
        is_whole = num_put_off < 0 or stage == 0
        passes[0, size] = FORWARD if is_forward else BACKWARD if is_whole else INPUT
        passes[1, size], passes[2, size] = stage, microbatch
        if not (is_forward or is_whole):
            inputs[num_inputs], num_inputs = size, num_inputs + 1
        size += 1
        if num_inputs - num_weights > max(num_put_off, 0):
            size, num_weights = _weight_part(passes, size, inputs[num_weights]), num_weights + 1
    for place in inputs[num_weights:num_inputs]:
        size = _weight_part(passes, size, place)
    return passes[:, :size].copy()


@borrowing
def _weight_part(passes: Ints, size: int, place: int) -> int:
    """Add the weight part of the unit whose input part is at a place; how many passes there are then."""
    passes[0, size], passes[1, size], passes[2, size] = WEIGHT, passes[1, place], passes[2, place]
    return size + 1


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
    columns = _passes(worker, num_workers, num_stages // num_workers, num_microbatches, schedule.is_split)
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
    kinds, stages, _ = _passes(worker, num_workers, num_virtual, num_microbatches, is_split)
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
