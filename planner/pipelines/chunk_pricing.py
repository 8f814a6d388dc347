"""What splits of interleaved pipelines take and hold: machine code for many splits at once."""

from typing import NamedTuple

import numpy as np

from estimator.arrays import Floats, Ints
from estimator.compiled import borrowing, compiled
from estimator.holding import Holding, held_bytes
from estimator.interleaved import interleaved_ends
from estimator.pipeline import PassTimes
from planner.pipelines.tails import Reductions

AT_ONCE = 32
"""So many splits are timed together, so that what is known of their micro-batches stays small."""


class ChunkModel(NamedTuple):
    """A model's layers under a schedule, in seconds at speed 1. Shape [layers + 1] each, of the first n layers."""

    forward: Floats
    backward: Floats
    """What earlier stages wait for: whole backward passes, or their input parts where weight parts are put off."""
    weight: Floats
    """What is put off; zeros where nothing is."""
    delays: Floats
    """Of the link in front of layer n."""
    is_split: bool


class ChunkMemory(NamedTuple):
    """What layers keep and take, in bytes."""

    activations: Ints
    """Of the first n layers and one micro-batch, shape [layers + 1]."""
    entries: Ints
    """What a stage that begins with layer n keeps of its input besides, shape [layers + 1]."""
    deferred: Ints
    """Of the first n layers and one micro-batch what waits for the weight part, shape [layers + 1]."""
    deferred_entries: Ints
    """What a stage that begins with layer n keeps of its input until then, shape [layers + 1]."""
    taken: Ints
    """What a pass over layers [a, b) takes beyond, by kind (`estimator.layers.KINDS`), shape [kinds, layers + 1, layers + 1]."""
    updates: Ints
    """What the update of layers [a, b) takes, shape [layers + 1, layers + 1]."""
    holding: Holding


@compiled
def splits_seconds(model: ChunkModel, reductions: Reductions, speeds: Floats, options: Ints, num_microbatches: int) -> Floats:
    """When all gradients are reduced (`reduced`) in several splits, in seconds. Shape [splits].

    Args:
        model: its layers.
        reductions: of stages.
        speeds: of the workers.
        options: stage boundaries, shape [splits, stages + 1].
        num_microbatches: that enter the pipeline.
    """
    result = np.zeros(len(options))
    for first in range(0, len(options), AT_ONCE):
        rows = options[first : first + AT_ONCE]
        ends = _ends(model, speeds, rows, num_microbatches)
        for row in range(len(rows)):
            result[first + row] = reduced(reductions, rows[row], ends[:, row], len(speeds)).seconds
    return result


class Reduced(NamedTuple):
    """When all gradients are reduced, and what that follows from."""

    seconds: float
    stage: int
    """Behind whose last pass only reductions are waited for."""
    is_together: bool
    """Whether tied ends and the last worker's first stage are reduced then; else that stage and the earlier ones of its worker."""


@compiled
def reduced(reductions: Reductions, cuts: Ints, ends: Floats, num_workers: int) -> Reduced:
    """When all gradients are reduced at the earliest: no worker reduces two stages at once.

    After the last pass of a stage it has that stage's layers to reduce and those of its earlier stages. What tied ends reduce
    together, the last worker reduces before or after its first stage's layers: both follow the end of the first stage, or its own.

    Args:
        reductions: of stages.
        cuts: stage boundaries, shape [stages + 1].
        ends: of the stages' last passes, in seconds, shape [stages].
        num_workers: that the stages go round.
    """
    own = reductions.until[cuts[1:]] - reductions.since[cuts[:-1]]
    left, last = own.copy(), num_workers - 1
    for stage in range(num_workers, len(left)):
        left[stage] += left[stage - num_workers]
    stage = int((ends + left).argmax())
    seconds = ends[stage] + left[stage]
    earlier = 0 if ends[0] < ends[last] else last
    if len(ends) > num_workers and ends[earlier] + reductions.together + own[last] > seconds:
        return Reduced(ends[earlier] + reductions.together + own[last], earlier, True)
    return Reduced(seconds, stage, False)


@compiled
def _ends(model: ChunkModel, speeds: Floats, options: Ints, num_microbatches: int) -> Floats:
    """When stages are through with their last backward passes. Shape [stages, splits]."""
    num_workers, num_stages = len(speeds), options.shape[1] - 1
    shape = num_stages, len(options)
    times, delays = PassTimes(np.empty(shape), np.empty(shape), np.empty(shape)), np.zeros((num_stages - 1, len(options)))
    for stage in range(num_stages):
        speed = speeds[stage % num_workers]
        for row in range(len(options)):
            start, stop = options[row, stage], options[row, stage + 1]
            times.forward[stage, row] = (model.forward[stop] - model.forward[start]) / speed
            times.backward[stage, row] = (model.backward[stop] - model.backward[start]) / speed
            times.weight[stage, row] = (model.weight[stop] - model.weight[start]) / speed
            if num_workers > 1 and stage < num_stages - 1:
                delays[stage, row] = model.delays[stop]
    return interleaved_ends(times, delays, num_workers, num_microbatches, model.is_split)


@compiled
def busiest(seconds: Floats, speeds: Floats, options: Ints) -> tuple[Floats, Floats]:
    """What the busiest worker has to do in all its stages, and the greatest stage, in several splits. Shape [splits] each.

    Args:
        seconds: of the first n layers at speed 1, shape [layers + 1].
        speeds: of the workers.
        options: stage boundaries, shape [splits, stages + 1].
    """
    num_workers, num_stages = len(speeds), options.shape[1] - 1
    workers, stages = np.zeros(len(options)), np.zeros(len(options))
    for row in range(len(options)):
        for worker in range(num_workers):
            whole = 0.0
            for stage in range(worker, num_stages, num_workers):
                own = (seconds[options[row, stage + 1]] - seconds[options[row, stage]]) / speeds[worker]
                whole += own
                stages[row] = max(stages[row], own)
            workers[row] = max(workers[row], whole)
    return workers, stages


@compiled
def lacking_bytes(memory: ChunkMemory, moments: Ints, usable_bytes: Ints, options: Ints) -> Ints:
    """What each worker lacks, below 0 where some is left, in several splits. Shape [splits, workers].

    Args:
        memory: of the layers.
        moments: when each worker holds most (`estimator.moments.worker_moments`), shape [workers, moments, columns].
        usable_bytes: of the workers.
        options: stage boundaries, shape [splits, stages + 1].
    """
    num_workers = len(usable_bytes)
    result = np.empty((len(options), num_workers), dtype=np.int64)
    sizes, taken = np.empty(moments.shape[2] - 1, dtype=np.int64), np.empty(len(memory.taken), dtype=np.int64)
    for row in range(len(options)):
        for worker in range(num_workers):
            starts, stops = options[row, worker:-1:num_workers], options[row, worker + 1 :: num_workers]
            passing = _running_bytes(memory, moments[worker], starts, stops, (sizes, taken))
            result[row, worker] = held_bytes(memory.holding, starts, stops) + passing - usable_bytes[worker]
    return result


@borrowing
def _running_bytes(memory: ChunkMemory, moments: Ints, starts: Ints, stops: Ints, scratch: tuple[Ints, Ints]) -> int:
    """`estimator.memory.running_bytes` of a worker's stages, from the tables; `scratch` is for their sizes, and takings by kind."""
    num_virtual, (sizes, taken) = len(starts), scratch
    most = 0
    taken[:] = 0
    for turn in range(num_virtual):
        start, stop = starts[turn], stops[turn]
        sizes[turn] = memory.activations[stop] - memory.activations[start] + memory.entries[start]
        sizes[num_virtual + turn] = memory.deferred[stop] - memory.deferred[start] + memory.deferred_entries[start]
        most = max(most, memory.updates[start, stop])
        for kind in range(len(taken)):
            own = memory.taken[kind, start, stop]
            taken[kind] = own if turn == 0 else max(taken[kind], own)
    for moment in range(len(moments)):
        passing = taken[moments[moment, 0]]
        for place in range(len(sizes)):
            passing += moments[moment, 1 + place] * sizes[place]
        most = max(most, passing)
    return most
