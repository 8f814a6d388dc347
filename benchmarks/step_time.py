"""The estimator validated: step time estimated and measured, and throughput retained beside what is published.

Workers and messages are real, computing is emulated. Every model is profiled; runs of their own correct the profiles
(`estimator.calibration`); then every configuration of `benchmarks/validation/configurations.json` trains under the agent, loses
workers where it says so, and the median step before and after that is set against the estimates that came with the plans.

    python -m benchmarks.step_time [--write docs/validation.md] [--steps N] [--repeats R] [--only NAME]
"""

import argparse
import os
import time
from pathlib import Path

from rich.console import Console

from benchmarks.validation import retained, tables
from benchmarks.validation.configurations import Configuration, Configurations, job_of, load
from benchmarks.validation.measuring import Phase, measured_step, ranked_first, run
from estimator.calibration import Calibration, MeasuredStep, calibrate
from kintsugi.core.errors import InvalidInputError
from kintsugi.core.profile import Profile
from kintsugi.runtime.machine import description
from kintsugi.runtime.measuring.profiler import profile_job

PARTS = ("step-time", "retained")
SWEEPS = 10
"""Pairs of sweeps over each model for its profile."""


def profiles_of(known: Configurations, console: Console) -> dict[str, Profile]:
    """Measured profiles of the emulated models, by their names."""
    result = {}
    for name, model in known.models.items():
        console.print(f"profiling {name}: {len(model.forward_milliseconds)} layers of {model.width} numbers")
        alone = Configuration(name=name, model=name, dp=1, pp=1, num_microbatches=1)
        result[name] = profile_job(job_of(model, alone, num_steps=1), name=name, repeats=SWEEPS, num_workers=8)
    return result


def calibrated(
    known: Configurations, profiles: dict[str, Profile], steps: int, console: Console
) -> tuple[Calibration, list[MeasuredStep]]:
    """What the runs to calibrate from say, and their steps."""
    measured = []
    for own in known.calibration:
        measured.append(measured_step(own, known.models[own.model], profiles[own.model], steps=steps))
        console.print(f"calibrating from {own.name}: profile alone {measured[-1].error_ratio():+.2%}")
    return calibrate(measured), measured


def compared(
    known: Configurations, profiles: dict[str, Profile], calibration: Calibration, *, steps: int, repeats: int, console: Console
) -> list[Phase]:
    """Every configuration to compare with, before and after its loss."""
    phases: list[Phase] = []
    for own in known.compared:
        profile = profiles[own.model]
        found = run(own, known.models[own.model], (calibration.applied_to(profile), profile), steps=steps, repeats=repeats)
        console.print(f"{own.name}: {', '.join(f'{phase.error_ratio:+.2%}' for phase in found)}")
        phases += found
    return phases


def step_time_part(*, steps: int, repeats: int, console: Console) -> str:
    """Everything that is measured, as Markdown."""
    known, load_before, began = load(), os.getloadavg()[0], time.monotonic()
    with ranked_first() as priority:
        profiles = profiles_of(known, console)
        calibration, measured = calibrated(known, profiles, steps, console)
        phases = compared(known, profiles, calibration, steps=steps, repeats=repeats, console=console)
    conditions = (
        f"{description()}. Computing emulated by sleeping; {priority}; load {load_before:.1f} at the beginning and "
        f"{os.getloadavg()[0]:.1f} at the end. Medians of {steps} steps before and {steps} after the loss, and of {repeats} runs; "
        f"{(time.monotonic() - began) / 60:.0f} minutes in all."
    )
    return "\n\n".join((tables.step_times(phases), tables.calibration_line(calibration, measured), conditions))


def retained_part() -> str:
    """What is published beside what is estimated, as Markdown."""
    return retained.table(retained.all_retained())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=5, help="that count before and after the loss")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each configuration, of which the median counts")
    parser.add_argument("--only", choices=PARTS, help="this part alone")
    parser.add_argument("--write", type=Path, help="renew the parts between their markers in this document")
    arguments = parser.parse_args()
    console = Console(stderr=True, highlight=False)
    document = arguments.write.read_text() if arguments.write is not None else None
    for part in PARTS if arguments.only is None else (arguments.only,):
        if document is not None:
            tables.replaced(document, part, "")  # refuse before measuring
        if part == "step-time":
            text = step_time_part(steps=arguments.steps, repeats=arguments.repeats, console=console)
        else:
            text = retained_part()
        print(f"{text}\n", flush=True)
        if document is not None:
            document = tables.replaced(document, part, text)
            arguments.write.write_text(document)


if __name__ == "__main__":
    try:
        main()
    except InvalidInputError as error:
        raise SystemExit(str(error)) from error
