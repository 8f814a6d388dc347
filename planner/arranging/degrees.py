"""How many pipelines, and how long: the job's ranges with their defaults filled in."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kintsugi.core.job import Ranges

PER_OCTAVE = 6
"""Of numbers of pipelines up to twice each other so many come before the others."""


@dataclass(frozen=True, slots=True)
class Degrees:
    """Ranges with their defaults filled in."""

    dp: range
    pp: range


def degrees(ranges: Ranges, num_workers: int, num_layers: int, num_microbatches: int) -> Degrees:
    """Fill in and check the ranges.

    Raises:
        InvalidInputError: more pipelines are asked for than there are micro-batches, or more stages than layers.
        InfeasibleError: there are too few workers or layers for the ranges.
    """
    ranges.require_carried_out(num_layers, num_microbatches)
    ranges.require_workers(num_workers)
    max_dp = min(ranges.max_dp or num_workers, num_workers // ranges.min_pp, num_microbatches)
    max_pp = min(ranges.max_pp or num_workers, num_workers, num_layers)
    return Degrees(dp=range(ranges.min_dp, max_dp + 1), pp=range(ranges.min_pp, max_pp + 1))


def turning_points_first(numbers: Sequence[int], num_workers: int, num_microbatches: int) -> list[int]:
    """Numbers of pipelines, some from everywhere in their range before the others; otherwise in the order in which they are given.

    Steps of neighbouring numbers hardly differ, but where the largest share of the micro-batches has just become smaller, or
    the mean length is about to: such numbers stand for those around them.
    """
    chosen = dict[int, int]()
    for dp in sorted(numbers, key=lambda dp: _is_turning_point(dp, num_workers, num_microbatches), reverse=True):
        chosen.setdefault(int(PER_OCTAVE * math.log2(dp)), dp)
    first = set(chosen.values())
    return sorted(numbers, key=lambda dp: dp not in first)


def _is_turning_point(dp: int, num_workers: int, num_microbatches: int) -> tuple[bool, bool]:
    """Whether one pipeline fewer has a larger share of the micro-batches, and whether with one more they are shorter."""
    return dp == 1 or -(-num_microbatches // dp) < -(-num_microbatches // (dp - 1)), num_workers // (dp + 1) < num_workers // dp
