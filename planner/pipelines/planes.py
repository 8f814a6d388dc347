"""Splits of interleaved pipelines, bettered layer by layer: which neighbours are worth a look is read off planes; machine code.

What a split takes is convex in what its stages take, for the order of passes is fixed. So the critical path of a split that was
looked at bounds all others, too: its sum, with their stages, is a plane that lies nowhere above the objective and touches it there
(Kelley, *The cutting-plane method for solving convex programs*, 1960). A plane is a sum over stage boundaries of what each adds
where it lies, so those of all neighbours follow at once. Of neighbours that the planes do not rule out that one is looked at whose
greatest plane is least; where all are ruled out, the split is proven to be no slower than any of them, and those two layers away
are looked for in the same way.
"""

from typing import NamedTuple

import numpy as np

from estimator.arrays import Floats, Ints
from estimator.compiled import borrowing, compiled
from estimator.critical_path import CriticalPath, critical_path, last_passes
from estimator.interleaved import passes_by_the_clock
from estimator.pipeline import PassTimes
from estimator.schedule import BACKWARD, FORWARD, INPUT, WEIGHT
from planner.pipelines.chunk_pricing import ChunkMemory, ChunkModel, lacking_bytes, reduced
from planner.pipelines.tails import Reductions


class Effort(NamedTuple):
    """How far a descent goes."""

    most_looked_at: int
    """Splits, before the best of them is taken."""
    most_beyond: int
    """Neighbours whose own neighbours are looked at where none of them helps."""


QUICK, THOROUGH = Effort(64, 4), Effort(128, 16)

NEAR = 0.01
"""By what share the greatest planes of such neighbours may be above the best time."""

ROUNDING = 1e-9
"""Splits that differ by less, as a share of their time, are equally fast."""


class Asked(NamedTuple):
    """A pipeline whose layers are split."""

    speeds: Floats
    """Of its workers."""
    reductions: Reductions
    """Of stages."""
    optimizer: Floats
    """Update of the first n layers in seconds at speed 1, shape [layers + 1]."""
    num_microbatches: int


class Room(NamedTuple):
    """What layers need and workers have of memory."""

    memory: ChunkMemory
    moments: Ints
    """When each worker holds most, shape [workers, moments, columns]."""
    usable_bytes: Ints
    """Shape [workers]."""


class _Planes(NamedTuple):
    """One of each split that was looked at."""

    levels: Floats
    """In seconds, shape [planes]."""
    parts: Floats
    """What a boundary adds where it lies in front of a layer, shape [planes, stages + 1, layers + 1]."""


@compiled
def descend(model: ChunkModel, asked: Asked, room: Room, start: Ints, effort: Effort) -> Ints:
    """The fastest split that was found, from one that fits memory. Shape [stages + 1].

    O(stages^2 * splits looked at + stages * num_microbatches) for each of them.

    Args:
        model: the layers.
        asked: of the pipeline.
        room: its memory.
        start: stage boundaries, shape [stages + 1].
        effort: that is worth it.
    """
    num_stages, num_workers = len(start) - 1, len(asked.speeds)
    passes = passes_by_the_clock(num_workers, num_stages // num_workers, asked.num_microbatches, model.is_split)
    planes = _Planes(np.empty(effort.most_looked_at), np.empty((effort.most_looked_at, len(start), len(model.forward))))
    best, least, at_best, cuts = start, np.inf, 0, start.copy()
    for count in range(effort.most_looked_at):
        seconds = _touch(model, asked, passes, cuts, planes.parts[count])
        planes.levels[count] = seconds - _sum(planes.parts[count], cuts)
        if seconds < least:
            best, least, at_best = cuts.copy(), seconds, count
        known = _Planes(planes.levels[: count + 1], planes.parts[: count + 1])
        found, cuts = _next(known, room, cuts, least)
        if not found and count != at_best:
            found, cuts = _next(known, room, best, least)
        if not found:
            found, cuts = _beyond(known, room, best, at_best, effort.most_beyond)
        if not found:
            break
    return best


@compiled
def _touch(model: ChunkModel, asked: Asked, passes: Ints, cuts: Ints, parts: Floats) -> float:
    """What a split takes, its longest update included, in seconds; puts the parts of its plane into `parts`."""
    num_workers, num_stages, own = len(asked.speeds), len(cuts) - 1, np.empty(len(cuts) - 1)
    for stage in range(num_stages):
        own[stage] = asked.speeds[stage % num_workers]
    times = PassTimes(
        (model.forward[cuts[1:]] - model.forward[cuts[:-1]]) / own,
        (model.backward[cuts[1:]] - model.backward[cuts[:-1]]) / own,
        (model.weight[cuts[1:]] - model.weight[cuts[:-1]]) / own,
    )
    delays = model.delays[cuts[1:-1]] * (num_workers > 1)
    last = last_passes(passes, times, delays, num_workers)
    end = reduced(asked.reductions, cuts, last.ends, num_workers)
    stage_updates, updates = (asked.optimizer[cuts[1:]] - asked.optimizer[cuts[:-1]]) / own, np.zeros(num_workers)
    for stage in range(num_stages):
        updates[stage % num_workers] += stage_updates[stage]
    busiest = int(updates.argmax())
    _lay(model, asked, critical_path(passes, last, end.stage, num_workers), busiest, parts)
    for stage in range(num_workers - 1, num_workers) if end.is_together else range(end.stage, -1, -num_workers):
        parts[stage] -= asked.reductions.since
        parts[stage + 1] += asked.reductions.until
    return end.seconds + float(updates[busiest])


@compiled
def _lay(model: ChunkModel, asked: Asked, way: CriticalPath, busiest: int, parts: Floats) -> None:
    """Put the parts of a plane into `parts`: the sum of the critical path, and of the update of the worker that has most to do."""
    num_workers, num_stages = len(asked.speeds), len(parts) - 1
    parts[:] = 0.0
    for stage in range(num_stages):
        num_passes = way.visits[:, stage]
        passed = num_passes[FORWARD] * model.forward + (num_passes[BACKWARD] + num_passes[INPUT]) * model.backward
        passed += num_passes[WEIGHT] * model.weight
        if stage % num_workers == busiest:
            passed += asked.optimizer
        passed /= asked.speeds[stage % num_workers]
        parts[stage] -= passed
        parts[stage + 1] += passed
        if num_workers > 1:
            parts[stage] += way.crossings[stage] * model.delays


@borrowing
def _sum(parts: Floats, cuts: Ints) -> float:
    """What all boundaries add."""
    result = 0.0
    for boundary in range(len(cuts)):
        result += parts[boundary, cuts[boundary]]
    return result


@compiled
def _next(planes: _Planes, room: Room, cuts: Ints, least: float) -> tuple[bool, Ints]:
    """Of the neighbours that fit memory and may take less than a time the one whose greatest plane is least, if there is any."""
    bounds = _bounds(planes, cuts, least * (1 - ROUNDING))
    while True:
        place = int(bounds.argmin())
        if bounds.flat[place] == np.inf:
            return False, cuts
        option = _moved(cuts, place)
        if lacking_bytes(room.memory, room.moments, room.usable_bytes, option.reshape((1, -1))).max() <= 0:
            return True, option
        bounds.flat[place] = np.inf


@compiled
def _beyond(planes: _Planes, room: Room, cuts: Ints, own: int, most: int) -> tuple[bool, Ints]:
    """The same of those two layers away, over neighbours that shorten the critical path most and may take hardly longer.

    Args:
        planes: of all splits that were looked at.
        room: memory.
        cuts: the best of these splits.
        own: the place of its plane.
        most: neighbours to try.
    """
    alone = _Planes(planes.levels[own : own + 1], planes.parts[own : own + 1])
    least = alone.levels[0] + _sum(alone.parts[0], cuts)
    shortened = _bounds(alone, cuts, np.inf).ravel()
    shortened[_bounds(planes, cuts, least * (1 + NEAR)).ravel() == np.inf] = np.inf
    for place in shortened.argsort()[:most]:
        if shortened[place] < np.inf:
            found, option = _next(planes, room, _moved(cuts, place), least)
            if found:
                return True, option
    return False, cuts


@compiled
def _moved(cuts: Ints, place: int) -> Ints:
    """The neighbour at a place of `_bounds`, counted through: one stage gives a layer to another, and those between them shift."""
    (giver, taker), result = divmod(place, len(cuts) - 1), cuts.copy()
    result[giver + 1 : taker + 1] -= 1
    result[taker + 1 : giver + 1] += 1
    return result


@compiled
def _bounds(planes: _Planes, cuts: Ints, limit: float) -> Floats:
    """The greatest plane of every neighbour, infinite where that is no less than a limit. Shape [givers, takers]."""
    num_stages, num_planes = len(cuts) - 1, len(planes.levels)
    here, shifted = np.empty(num_planes), np.zeros((2, num_planes, len(cuts)))
    for plane in range(num_planes):
        here[plane] = planes.levels[plane] + _sum(planes.parts[plane], cuts)
        for boundary in range(1, num_stages):
            part, place = planes.parts[plane, boundary], cuts[boundary]
            shifted[0, plane, boundary] = shifted[0, plane, boundary - 1] + part[place - 1] - part[place]
            shifted[1, plane, boundary] = shifted[1, plane, boundary - 1] + part[place + 1] - part[place]
    result = np.full((num_stages, num_stages), np.inf)
    for giver in range(num_stages):
        for taker in range(num_stages):
            if giver == taker or cuts[giver + 1] - cuts[giver] == 1:
                continue
            sums, greatest = shifted[0 if giver < taker else 1], 0.0
            first, last = min(giver, taker), max(giver, taker)
            for plane in range(num_planes - 1, -1, -1):
                greatest = max(greatest, here[plane] + sums[plane, last] - sums[plane, first])
                if greatest >= limit:
                    break
            if greatest < limit:
                result[giver, taker] = greatest
    return result
