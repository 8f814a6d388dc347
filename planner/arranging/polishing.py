"""Splits that differ a little, where reductions wait for each other: what the objective of single pipelines cannot see."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from planner.arranging.arrangement import Arrangement, PipelineShape

MOST_STEPS = 16
"""Steps that are reckoned for one arrangement."""

ROUNDING = 1e-12
"""Steps that differ by less, as a share, are the same."""


def polished(
    arrangement: Arrangement,
    step_seconds: Callable[[Arrangement], float],
    nearby: Callable[[PipelineShape, float], Iterable[tuple[int, ...]]],
) -> Arrangement:
    """The arrangement with other splits for some of its pipelines, as long as its step becomes shorter by that.

    Pipelines that are alike change together.

    Args:
        arrangement: to start from.
        step_seconds: the step of an arrangement.
        nearby: other stage boundaries for a pipeline, whose objective is below a time, the best first.
    """
    best, left, is_better = step_seconds(arrangement), MOST_STEPS, True
    while is_better and left > 0:
        is_better = False
        for option in _changed(arrangement, best, nearby):
            seconds, left = step_seconds(option), left - 1
            if seconds < best * (1 - ROUNDING):
                arrangement, best, is_better = option, seconds, True
            if is_better or left == 0:
                break
    return arrangement


def _changed(
    arrangement: Arrangement, seconds: float, nearby: Callable[[PipelineShape, float], Iterable[tuple[int, ...]]]
) -> Iterator[Arrangement]:
    """Arrangements with another split for the pipelines of one shape, those with the fewest micro-batches first."""
    for shape in sorted(arrangement.groups, key=lambda shape: (shape.num_microbatches, shape.cuts)):
        for cuts in nearby(shape, seconds):
            other = replace(shape, cuts=cuts)
            yield replace(arrangement, shapes=tuple(other if own == shape else own for own in arrangement.shapes))
