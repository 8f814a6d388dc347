"""What checkpoints cost beyond the stall that is told of: steps beside which they are written may take longer.

Steps of the first half of every checkpoint's interval are held against those of the second half, in which nothing is being
written any more; what the former take more is what the checkpoint cost, stall and slower training together.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from kintsugi.matrix.cell import Variant
from kintsugi.matrix.record import CellRecord, StepRecord
from kintsugi.matrix.results import Results
from kintsugi.matrix.setup_tables import SUITE_COLUMNS, suite_cells
from kintsugi.reporting.intervals import Interval
from kintsugi.reporting.tables import Column, Table, Value

WRITING = (Variant.BLOCKING, Variant.OVERLAPPED)
"""Variants that write checkpoints beside or between their steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Excess:
    """Of one cell, per checkpoint."""

    other_seconds: float
    """Median step that does not follow a checkpoint."""
    excess_seconds: float
    """That the steps after a checkpoint take beyond that, all together."""


def excess_of(steps: Sequence[StepRecord], every_steps: int) -> Excess | None:
    """What the steps after a checkpoint take more than others; null where there are not both kinds. O(steps)."""
    following: dict[int, list[float]] = {}
    others: list[float] = []
    num_following = (every_steps + 1) // 2
    for step in steps:
        interval, place = divmod(step.global_step, every_steps)
        if step.seconds is None or not interval:
            continue
        if place < num_following:
            following.setdefault(interval, []).append(step.seconds)
        else:
            others.append(step.seconds)
    whole = [own for own in following.values() if len(own) == num_following]
    if not whole or not others:
        return None
    usual = median(others)
    return Excess(other_seconds=usual, excess_seconds=fmean(sum(own) - num_following * usual for own in whole))


def excess(results: Results) -> Table:
    """Per checkpoint: the stall that is told of, what the steps after it take longer, and what of that was not told."""
    rows: list[tuple[Value, ...]] = []
    for suite in results.suites:
        for variant in WRITING:
            runs = results.runs(suite, variant).values()
            found = [(run, own) for run in runs if (own := excess_of(results.steps[run.cell], run.cell.every_steps)) is not None]
            if found:
                rows.append((*suite_cells(suite), variant.value, *_figures(found)))
    return Table(
        name="excess",
        title="What steps after a checkpoint take longer",
        columns=(
            *SUITE_COLUMNS,
            Column(key="variant", title="variant"),
            Column(key="other_seconds", title="other steps (s)", form=".4f"),
            Column(key="stall_seconds", title="stall told (s)", form=".4f"),
            Column(key="excess_seconds", title="steps after it take longer by (s)", form=".4f"),
            Column(key="hidden_seconds", title="not told (s)", form="+.4f"),
        ),
        rows=tuple(rows),
        note="Per checkpoint. Steps of the first half of an interval are held against the median of its second half; the "
        "stall of the last checkpoint, after which there is no step, is told of, too.",
    )


def _figures(found: Sequence[tuple[CellRecord, Excess]]) -> tuple[Interval, ...]:
    told = [run.wall.stall_seconds / max(run.checkpoints.num_written, 1) for run, _ in found]
    longer = [own.excess_seconds for _, own in found]
    return (
        Interval.of([own.other_seconds for _, own in found]),
        Interval.of(told),
        Interval.of(longer),
        Interval.of([own - stall for own, stall in zip(longer, told, strict=True)]),
    )
