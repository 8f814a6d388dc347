"""When a worker holds most: how many micro-batches it holds, and how many whose weight parts are put off, as a pass begins.

A micro-batch is held from its forward pass to its backward pass or the input part of it; from the input part to the weight part it
is put off, and what is kept for it is another amount (M_B and M_W of Qi et al., *Zero Bubble Pipeline Parallelism*, 2023). What a
pass takes beyond both depends on its kind, and on whether a weight part came before it: until then there are no gradients. Moments
are rows: a kind, micro-batches held in each of the worker's stages, and micro-batches put off in each. Those that hold no more
of anything than another one of their kind are left out for the most part.
"""

import sys
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from estimator.arrays import Ints
from estimator.compiled import compiled, shared
from estimator.interleaved import held_passes
from estimator.layers import EARLY_INPUT, EARLY_PASS, FIRST_PASS, FIRST_WEIGHT, INPUT_PART, KINDS, PASS, WEIGHT_PART
from estimator.schedule import most_in_flight
from kintsugi.core.plan import Schedule

_KNOWN_FIRST = frozenset(
    {Schedule.GPIPE, Schedule.ONE_F_ONE_B, Schedule.EAGER_1F1B, Schedule.ZB_H1, Schedule.ZB_H2, Schedule.INTERLEAVED_ZB}
)
"""Schedules whose first pass that makes gradients is told apart."""


_MOST = 6
"""Moments of a worker with one stage."""


@lru_cache(maxsize=4096)
def stage_moments(schedule: Schedule, stage: int, num_stages: int, num_microbatches: int) -> Ints:
    """Of a worker with one stage. Shape [moments, 3]: kind, held, put off. O(1)."""
    return np.squeeze(_stages_moments(schedule, stage, stage + 1, num_stages, num_microbatches), axis=0)


def pipeline_moments(schedule: Schedule, num_stages: int, num_microbatches: int) -> Ints:
    """`stage_moments` of every stage; one of them is repeated where they are fewer. Shape [stages, moments, 3]."""
    return _pipeline_moments(schedule, num_stages, min(num_microbatches, _most_that_matter(schedule, num_stages)))


@lru_cache(maxsize=1024)
def _pipeline_moments(schedule: Schedule, num_stages: int, num_microbatches: int) -> Ints:
    return _stages_moments(schedule, 0, num_stages, num_stages, num_microbatches)


class _Order(NamedTuple):
    """What of a schedule decides when a worker with one stage holds most."""

    lag: int
    is_split: bool
    holds_all: bool
    is_first_known: bool


def _stages_moments(schedule: Schedule, start: int, stop: int, num_stages: int, num_microbatches: int) -> Ints:
    """Of stages [start, stop) of a pipeline, one of them repeated where they are fewer. Shape [stages, moments, 3]."""
    order = _Order(schedule.lag, schedule.is_split, schedule is Schedule.GPIPE, schedule in _KNOWN_FIRST)
    return _filled(order, start, stop, num_stages, num_microbatches)


@compiled
def _filled(order: _Order, start: int, stop: int, num_stages: int, num_microbatches: int) -> Ints:
    moments = np.empty((stop - start, _MOST, 3), np.int64)
    most = 0
    for stage in range(start, stop):
        rows = moments[stage - start]
        if order.is_split and stage > 0:
            count = _fill_split(rows, stage, num_stages, num_microbatches, order.lag)
        else:
            held = min(most_in_flight(num_stages if order.is_split else num_stages - stage, order.lag), num_microbatches)
            count = _fill_whole(rows, num_microbatches if order.holds_all else held, num_microbatches, order.is_first_known)
        rows[count:] = rows[count - 1]
        most = max(most, count)
    return moments[:, :most].copy()


@shared
def _fill_whole(rows: Ints, held: int, num_microbatches: int, is_known_first: bool) -> int:
    """Moments of a stage whose backward passes are whole; how many there are."""
    rows[0] = PASS, held, 0
    if held < num_microbatches or not is_known_first:
        return 1
    rows[0, 0] = FIRST_PASS
    rows[1] = PASS, held - 1, 0
    return 2 if held > 1 else 1


@shared
def _fill_split(rows: Ints, stage: int, num_stages: int, num_microbatches: int, lag: int) -> int:
    """Moments under ZB-H1 and ZB-H2 at a stage after the first (`zero_bubble_h1` has the order); how many there are.

    Forward passes have most micro-batches held, the last of them with most put off; input parts begin with the more put off
    the later they come, until weight parts begin, and then only fewer are held.
    """
    warmup, put_off = min(most_in_flight(num_stages - stage, lag), num_microbatches), lag * stage
    rest, last = num_microbatches - warmup, num_microbatches - 1
    rows[0] = PASS if rest > put_off else EARLY_PASS, warmup, min(rest, put_off)
    count = 1
    if num_microbatches > put_off + 1:  # an input part comes after the first weight part
        rows[count] = INPUT_PART, min(warmup, last - put_off), put_off
        count += 1
    if rest <= put_off:  # the later ones begin with fewer held
        begun = min(rest, last)
        rows[count] = EARLY_INPUT, min(warmup, num_microbatches - begun), begun
        count += 1
        if begun < min(put_off, last):
            begun = min(put_off, last)
            rows[count] = EARLY_INPUT, min(warmup, num_microbatches - begun), begun
            count += 1
    for done in range(2):
        kind, waiting = WEIGHT_PART if done else FIRST_WEIGHT, put_off + done
        if waiting < num_microbatches and (done or rest <= put_off):  # with the input part that this one follows
            rows[count] = kind, min(warmup, num_microbatches - waiting) - 1, put_off + 1
            count += 1
        elif waiting >= num_microbatches > done:
            rows[count] = kind, 0, min(num_microbatches, waiting) - done
            count += 1
    return count


def _most_that_matter(schedule: Schedule, num_stages: int) -> int:
    """More micro-batches change no moment: one more than are in flight, or in flight and put off."""
    if schedule is Schedule.GPIPE:
        return sys.maxsize
    return 1 + most_in_flight(num_stages, schedule.lag) * (2 if schedule.is_split else 1)


def worker_moments(schedule: Schedule, place: int, num_workers: int, num_microbatches: int, num_stages: int) -> Ints:
    """Of a worker with several stages, or one. Shape [moments, 1 + 2 * num_stages].

    Args:
        schedule: order of passes.
        place: of the worker in its pipeline, from 0.
        num_workers: that the stages go round.
        num_microbatches: that enter the pipeline.
        num_stages: the worker's own.
    """
    if num_stages == 1:
        return stage_moments(schedule, place, num_workers, num_microbatches)
    return held_passes(place, num_workers, num_stages, num_microbatches, is_split=schedule.is_split)


def most_held(moments: Ints) -> int:
    """Most micro-batches that a worker keeps anything of at once, in all its stages."""
    return int(moments[:, 1:].sum(axis=1).max())


@lru_cache(maxsize=1024)
def stacked_moments(schedule: Schedule, num_workers: int, num_microbatches: int, num_stages: int) -> Ints:
    """`worker_moments` of every worker; one of them is repeated where they are fewer. Shape [workers, moments, columns]."""
    places = range(num_workers)
    return _stacked([worker_moments(schedule, place, num_workers, num_microbatches, num_stages) for place in places])


class Moments(NamedTuple):
    """Of every worker of a pipeline those of one kind; one of them is repeated where they are fewer."""

    kinds: Ints
    """Shape [workers]."""
    counts: Ints
    """Micro-batches held in each stage, and those put off, shape [workers, moments, 2 * stages per worker]."""


@lru_cache(maxsize=1024)
def all_moments(schedule: Schedule, num_workers: int, num_microbatches: int, num_stages: int) -> tuple[Moments, ...]:
    """`worker_moments` of every worker, kind by kind: as often as a worker has kinds. Arguments as there."""
    by_kind = []
    for place in range(num_workers):
        own = worker_moments(schedule, place, num_workers, num_microbatches, num_stages)
        by_kind.append([own[own[:, 0] == kind] for kind in np.unique(own[:, 0])])
    rounds = [_stacked([own[turn % len(own)] for own in by_kind]) for turn in range(max(map(len, by_kind)))]
    return tuple(Moments(rows[:, 0, 0], rows[:, :, 1:].copy()) for rows in rounds)


def _stacked(moments: list[Ints]) -> Ints:
    """Several workers', one of them repeated where they are fewer. Shape [workers, moments, columns]."""
    most = max(map(len, moments))
    return np.stack([rows[np.minimum(np.arange(most), len(rows) - 1)] for rows in moments])


def kinds_under(schedule: Schedule) -> range:
    """Kinds of the passes that hold most under a schedule, and those before them."""
    return KINDS if schedule.is_split else range(FIRST_PASS + 1)


@shared
def most_running(moments: Ints, kept_bytes: int, deferred_bytes: int, taken: Ints) -> int:
    """The most that a worker with one stage keeps and takes at once while it passes micro-batches, in bytes.

    Args:
        moments: of the stage, shape [moments, 3].
        kept_bytes: of a micro-batch that is held.
        deferred_bytes: of one that is put off.
        taken: what passes take beyond that, by kind; shape [kinds].
    """
    most: int = moments[0, 1] * kept_bytes + moments[0, 2] * deferred_bytes + taken[moments[0, 0]]
    for row in range(1, len(moments)):
        most = max(most, moments[row, 1] * kept_bytes + moments[row, 2] * deferred_bytes + taken[moments[row, 0]])
    return most
