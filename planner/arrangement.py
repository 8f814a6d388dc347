"""Pipelines without names: what a search arranges."""

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

from planner.kinds import WorkerKind


@dataclass(frozen=True, slots=True)
class PipelineShape:
    """One pipeline without names: its stage boundaries and its micro-batches."""

    cuts: tuple[int, ...]
    num_microbatches: int

    @property
    def num_stages(self) -> int:
        """Length of the pipeline."""
        return len(self.cuts) - 1


@dataclass(frozen=True)
class Arrangement:
    """Pipelines without names, longest first, and what is known of their time."""

    shapes: tuple[PipelineShape, ...]
    seconds: float
    """The objective: the pipelines, on their first stages the reduction that follows, and the update."""
    kinds: tuple[WorkerKind, ...] | None = None
    """Kind of worker that each slot was planned for; None where all workers are equal."""

    @cached_property
    def groups(self) -> Counter[PipelineShape]:
        """How many pipelines there are of each shape."""
        result: Counter[PipelineShape] = Counter()
        for shape, run in groupby(self.shapes):
            result[shape] += len(list(run))
        return result
