"""Tables of the validation as Markdown, and their places in a document."""

import statistics
from collections.abc import Sequence

from benchmarks.validation.measuring import Phase
from estimator.calibration import Calibration, MeasuredStep
from kintsugi.core.errors import InvalidInputError
from kintsugi.core.plan import Plan, Policy

ASKED_ERROR = 0.05
PUBLISHED_ERROR = 0.0802
"""Largest error that Chameleon reports of its estimator (section V-C)."""


def shape_of(plan: Plan) -> str:
    """Layers per stage of every pipeline; `-` is a dead slot; equal pipelines are counted."""
    shapes = ["+".join(str(len(stage.layers)) if stage.worker else "-" for stage in own.stages) for own in plan.pipelines]
    counted = {shape: shapes.count(shape) for shape in shapes}
    return " / ".join(f"{count} x ({shape})" if count > 1 else shape for shape, count in counted.items())


def step_times(phases: Sequence[Phase]) -> str:
    """A row for every plan that was run, and the mean and the largest error."""
    lines = [
        "| configuration | layers per stage | estimated (s) | measured (s) | error | profile alone |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {_name(phase)} | {shape_of(phase.plan)} | {phase.estimated_seconds:.3f} | {phase.measured_seconds:.3f} "
        f"| {phase.error_ratio:+.2%} | {phase.uncalibrated_error_ratio:+.2%} |"
        for phase in phases
    ]
    calibrated = [abs(phase.error_ratio) for phase in phases]
    alone = [abs(phase.uncalibrated_error_ratio) for phase in phases]
    spread = max(max(phase.run_seconds) / min(phase.run_seconds) - 1.0 for phase in phases)
    lines += [
        "",
        f"{len({phase.configuration.name for phase in phases})} configurations, {len(phases)} plans: mean error "
        f"{statistics.mean(calibrated):.2%}, largest {max(calibrated):.2%} (profile alone: {statistics.mean(alone):.2%} and "
        f"{max(alone):.2%}). Asked for: {ASKED_ERROR:.0%} at most; published by Chameleon: {PUBLISHED_ERROR:.2%}. Runs of one "
        f"row differ by at most {spread:.1%}.",
    ]
    return "\n".join(lines)


def _name(phase: Phase) -> str:
    own = phase.configuration
    if not phase.is_mended:
        return f"{own.name}, {own.num_microbatches} micro-batches"
    mended = "rerouted" if phase.plan.policy is Policy.DATA_REROUTING else "new pipelines"
    return f"- {', '.join(own.lost)} lost, {mended}"


def calibration_line(calibration: Calibration, steps: Sequence[MeasuredStep]) -> str:
    """What was fitted, and how far the steps that it was fitted to are from it."""
    before = [abs(step.error_ratio()) for step in steps]
    after = [abs(step.error_ratio(calibration)) for step in steps]
    return (
        f"Calibrated from {len(steps)} other runs, which no loss interrupted: passes take {calibration.compute_ratio:.4f} times as "
        f"long as in the profile, messages {calibration.alpha_seconds * 1e6:.0f} us and "
        f"{calibration.beta_seconds_per_byte * 1e12:.0f} us per MB longer. With that these runs are {statistics.mean(after):.2%} "
        f"off on average and {max(after):.2%} at most; with the profile alone {statistics.mean(before):.2%} and {max(before):.2%}."
    )


def replaced(document: str, name: str, text: str) -> str:
    """The document with `text` between its markers `<!-- NAME: begin -->` and `<!-- NAME: end -->`.

    Raises:
        InvalidInputError: the document has no such markers, or more than one pair.
    """
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    if document.count(begin) != 1 or document.count(end) != 1:
        raise InvalidInputError(f"must have {begin} and {end} once each", field="--write", value=name)
    head, rest = document.split(begin)
    _, tail = rest.split(end)
    return f"{head}{begin}\n\n{text}\n\n{end}{tail}"
