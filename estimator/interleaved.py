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
"""

from functools import lru_cache

import numpy as np

from estimator.arrays import Floats, Ints
from estimator.compiled import compiled
from estimator.schedule import Pass, Step, order
from kintsugi.core.plan import Schedule

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
def interleaved_ends(forward: Floats, backward: Floats, delays: Floats, num_workers: int, num_microbatches: int) -> Floats:
    """When each stage is through with its last backward pass, in seconds. Shape [stages]. O(stages * num_microbatches).

    Args:
        forward: seconds of one micro-batch, shape [stages].
        backward: seconds of one micro-batch, shape [stages].
        delays: seconds between neighbouring stages, each way, shape [stages - 1].
        num_workers: that the stages go round.
        num_microbatches: that enter the pipeline.
    """
    num_stages = len(forward)
    num_virtual, groups = num_stages // num_workers, groups_of(num_workers, num_microbatches)
    places, behind = num_virtual * groups[0] * groups[3], lag(num_workers, num_virtual, groups)
    passed, returned = np.zeros((num_stages, num_microbatches)), np.zeros((num_stages, num_microbatches))
    free, ends = np.zeros(num_workers), np.zeros(num_stages)
    for clock in range(places + behind):
        for worker in range(num_workers):
            turn, microbatch = unit(clock - worker, num_virtual, groups)
            if microbatch >= 0:
                stage, start = turn * num_workers + worker, free[worker]
                if stage > 0:
                    start = max(start, passed[stage - 1, microbatch] + delays[stage - 1])
                free[worker] = passed[stage, microbatch] = start + forward[stage]
        for worker in range(num_workers):
            turn, microbatch = unit(clock - behind + worker, num_virtual, groups)
            if microbatch >= 0:
                stage, start = (num_virtual - 1 - turn) * num_workers + worker, free[worker]
                if stage < num_stages - 1:
                    start = max(start, returned[stage + 1, microbatch] + delays[stage])
                free[worker] = ends[stage] = returned[stage, microbatch] = start + backward[stage]
    return ends


@lru_cache(maxsize=4096)
def _passes(worker: int, num_workers: int, num_virtual: int, num_microbatches: int) -> tuple[Ints, Ints, Ints]:
    """Passes of one worker in order: whether backward, stage, and micro-batch. Shape [2 * num_virtual * num_microbatches] each."""
    groups = groups_of(num_workers, num_microbatches)
    behind, units = lag(num_workers, num_virtual, groups), []
    for place in range(num_virtual * groups[0] * groups[3]):
        turn, microbatch = unit(place, num_virtual, groups)
        if microbatch >= 0:
            units.append((2 * (place + worker), 0, turn * num_workers + worker, microbatch))
            units.append((2 * (place + behind - worker) + 1, 1, (num_virtual - 1 - turn) * num_workers + worker, microbatch))
    _, is_backward, stages, microbatches = np.array(sorted(units), dtype=np.int64).T
    return is_backward, stages, microbatches


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
    assert schedule is Schedule.INTERLEAVED
    is_backward, stages, microbatches = _passes(worker, num_workers, num_stages // num_workers, num_microbatches)
    kinds = (Pass.FORWARD, Pass.BACKWARD)
    places = zip(is_backward.tolist(), stages.tolist(), microbatches.tolist(), strict=True)
    return tuple((stage, Step(kinds[backward], microbatch)) for backward, stage, microbatch in places)


@lru_cache(maxsize=4096)
def held_passes(worker: int, num_workers: int, num_virtual: int, num_microbatches: int) -> Ints:
    """How many micro-batches each stage of a worker holds whenever it holds most. Shape [moments, num_virtual].

    Moments that hold no more of anything than another one are left out for the most part, so there are few.
    """
    is_backward, stages, _ = _passes(worker, num_workers, num_virtual, num_microbatches)
    changes = np.zeros((len(stages), num_virtual), dtype=np.int64)
    changes[np.arange(len(stages)), stages // num_workers] = 1 - 2 * is_backward
    is_peak = np.append(is_backward[1:], 1) > is_backward
    result: Ints = np.unique(changes.cumsum(axis=0)[is_peak], axis=0)
    return result


def stage_limit(stage: int, num_workers: int, num_stages: int, num_microbatches: int) -> int:
    """Most micro-batches whose activations a stage of an interleaved pipeline holds at once."""
    held = held_passes(stage % num_workers, num_workers, num_stages // num_workers, num_microbatches)
    return int(held[:, stage // num_workers].max())
