"""Pipelines without names: what a search arranges."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, groupby, pairwise

from planner.pipelines.kinds import WorkerKind


@dataclass(frozen=True, slots=True)
class PipelineShape:
    """One pipeline without names: its stage boundaries, its micro-batches, and how many stages each worker holds."""

    cuts: tuple[int, ...]
    num_microbatches: int
    stages_per_worker: int = 1

    @property
    def num_stages(self) -> int:
        """Number of stages, which go round the workers."""
        return len(self.cuts) - 1

    @property
    def num_workers(self) -> int:
        """Length of the pipeline."""
        return self.num_stages // self.stages_per_worker

    @property
    def slots(self) -> tuple[tuple[int, ...], ...]:
        """Layers of each worker, ascending. Shape [num_workers]."""
        stages = [range(start, stop) for start, stop in pairwise(self.cuts)]
        return tuple(tuple(chain.from_iterable(stages[place :: self.num_workers])) for place in range(self.num_workers))


@dataclass(frozen=True)
class Arrangement:
    """Pipelines without names, longest first, and what is known of their time."""

    shapes: tuple[PipelineShape, ...]
    seconds: float
    """The objective: the pipelines, on their first stages the reduction that follows, and the update."""
    kinds: tuple[WorkerKind, ...] | None = None
    """Kind of worker that each place was planned for, pipeline by pipeline; None where all workers are equal."""
    levels: Mapping[WorkerKind, WorkerKind] | None = None
    """Which of these kinds each worker's own counts as; None for itself."""
    sides: tuple[int, ...] | None = None
    """Side of slow links that each place was planned for (`planner.placing.paths.sides`); None where that was not asked."""

    @cached_property
    def groups(self) -> Counter[PipelineShape]:
        """How many pipelines there are of each shape."""
        result: Counter[PipelineShape] = Counter()
        for shape, run in groupby(self.shapes):
            result[shape] += len(list(run))
        return result
