"""A prediction beside what was measured, kind of action by kind of action."""

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from estimator.trace import CATEGORIES, TracedStep
from kintsugi.core.errors import InvalidInputError


@dataclass(frozen=True, slots=True, kw_only=True)
class KindComparison:
    """One kind of action, summed over all workers of a step."""

    kind: str
    """A category of `estimator.trace`, or `step`: from the first action's start to the last one's end."""
    num_actions: int
    """Per step."""
    predicted_seconds: float
    measured_seconds: float
    """Median over the measured steps."""

    @property
    def difference_ratio(self) -> float | None:
        """measured_seconds / predicted_seconds - 1; null where nothing was predicted."""
        return self.measured_seconds / self.predicted_seconds - 1 if self.predicted_seconds > 0 else None


def compared(predicted: TracedStep, measured: Sequence[TracedStep]) -> tuple[KindComparison, ...]:
    """Every kind of action that is predicted or was measured, and the step as a whole.

    Args:
        predicted: one step.
        measured: steps of the same plan, whole ones.

    Raises:
        InvalidInputError: no step was measured.
    """
    if not measured:
        raise InvalidInputError("has no step that all workers recorded; record more steps", field="run")
    expected, seen = category_seconds(predicted), [category_seconds(step) for step in measured]
    kinds = [kind for kind in dict.fromkeys(CATEGORIES.values()) if expected[kind] or any(each[kind] for each in seen)]
    counts = Counter(CATEGORIES[timing.action.kind] for own in predicted.timings.values() for timing in own)
    rows = [_row(kind, counts[kind], expected[kind], [each[kind] for each in seen]) for kind in kinds]
    whole = [span_seconds(step) for step in measured]
    return (*rows, _row("step", counts.total(), span_seconds(predicted), whole))


def category_seconds(step: TracedStep) -> dict[str, float]:
    """Seconds of all actions of each category, over all workers."""
    result: dict[str, float] = defaultdict(float)
    for own in step.timings.values():
        for timing in own:
            result[CATEGORIES[timing.action.kind]] += timing.end_seconds - timing.start_seconds
    return result


def span_seconds(step: TracedStep) -> float:
    """From the first action's start to the last one's end, over all workers."""
    timings = [timing for own in step.timings.values() for timing in own]
    return max(timing.end_seconds for timing in timings) - begin_seconds(step)


def begin_seconds(step: TracedStep) -> float:
    """The first action's start."""
    return min(timing.start_seconds for own in step.timings.values() for timing in own)


def whole_steps(steps: Iterable[TracedStep], workers: Sequence[str]) -> tuple[TracedStep, ...]:
    """Those that all workers recorded."""
    return tuple(step for step in steps if set(workers) <= step.timings.keys())


def _row(kind: str, count: int, predicted: float, measured: Sequence[float]) -> KindComparison:
    return KindComparison(kind=kind, num_actions=count, predicted_seconds=predicted, measured_seconds=statistics.median(measured))
