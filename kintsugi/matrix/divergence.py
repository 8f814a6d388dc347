"""How far a cell is from the reference of its suite and seed, step by step (ECRL, sections 5.6 and 6.5)."""

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean

from kintsugi.matrix.cell import Cell
from kintsugi.matrix.results import Results

Series = dict[int, float]
"""By global step."""


@dataclass(frozen=True, slots=True)
class Divergence:
    """The distance of one cell from its reference."""

    loss: Series
    """Absolute difference of the losses."""
    parameters: Series
    """L2 distance of the parameters as a share of the reference's norm; at the steps where it was measured."""

    @property
    def mean_loss(self) -> float:
        """Mean absolute difference of the losses (ECRL, equation 8)."""
        return fmean(self.loss.values())


def divergence(results: Results, cell: Cell) -> Divergence | None:
    """Of a cell; null where it has no reference, or no step in common with it."""
    reference = results.reference_of(cell)
    if reference is None or cell not in results.steps:
        return None
    expected = {step.global_step: step.loss for step in results.steps[reference]}
    own = results.steps[cell]
    loss = {step.global_step: abs(step.loss - expected[step.global_step]) for step in own if step.global_step in expected}
    parameters = {step.global_step: step.parameter_distance for step in own if step.parameter_distance is not None}
    return Divergence(loss, parameters) if loss else None


@dataclass(frozen=True, slots=True)
class Band:
    """What several series say at a step."""

    step: int
    low: float
    mean: float
    high: float


def band(series: Iterable[Series]) -> tuple[Band, ...]:
    """Least, mean and greatest value of every step that all series have, in order."""
    known = tuple(series)
    steps = set[int].intersection(*map(set, known)) if known else set()
    values = {step: [each[step] for each in known] for step in sorted(steps)}
    return tuple(Band(step, min(own), fmean(own), max(own)) for step, own in values.items())
