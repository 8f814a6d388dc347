"""Loss over thousands of steps with failures beside an uninterrupted run, as figure 13 of Chameleon: real processes, fp64.

A byte-level GPT learns the help texts of Python's standard library. One run is left alone; in the other workers are killed
or frozen every so many steps, alone, two at once or while the job recovers, and come back later. Same job, same seed.

Rounding grows over thousands of steps of AdamW, whoever rounds: sums over other workers are taken in another order. A
third run, on one worker and without failures, shows how much of a difference that alone makes.

    python -m benchmarks.convergence [--steps N] [--strikes K] [--picture docs/convergence] [--write docs/validation.md]

Prints the largest difference in loss, failures and generations. Exits with 1 where the struck run is further from the
uninterrupted one than ALLOWED times the third run is, and than TOLERANCE.
"""

import argparse
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console

from benchmarks.validation.learning import help_job
from benchmarks.validation.tables import replaced
from benchmarks.validation.troubles import DP, PP, Troubles
from kintsugi.core.job import Ranges
from kintsugi.core.profile import Profile
from kintsugi.reporting.pictures import pyplot, save
from kintsugi.runtime.control.agent import Agent, Observer
from kintsugi.runtime.measuring.profiler import profile_job
from kintsugi.runtime.records.compare import difference
from kintsugi.runtime.result import RunResult
from kintsugi.runtime.train import train

STEPS = 3500
"""As many as figure 13 shows."""
CRITERION = 0.1
"""Loss that counts as converged in Chameleon's section V-E."""
TOLERANCE, ALLOWED = 1e-9, 100.0
"""Relative difference of a loss that is always equal, and how many times that of the run on one worker is."""
LAST_STEPS = 100
PART = "convergence"


@dataclass(frozen=True, slots=True)
class Runs:
    """One job, trained three times."""

    reference: RunResult
    """Left alone."""
    struck: RunResult
    troubles: Troubles
    """What struck it."""
    control: RunResult
    """Left alone, on one worker."""

    @property
    def is_same(self) -> bool:
        """Whether the struck run is as close to the uninterrupted one as rounding lets it be."""
        found = difference(self.struck, self.reference)
        rounding = difference(self.control, self.reference).loss_ratio
        return found.loss_ratio <= max(TOLERANCE, ALLOWED * rounding) and found.has_equal_replicas


@dataclass(slots=True)
class Show:
    """An observer that says how far a run is, every few seconds."""

    name: str
    console: Console
    _at: float = field(default_factory=time.monotonic)

    def __call__(self, agent: Agent) -> None:
        """Observe."""
        if agent.losses and time.monotonic() - self._at > 10.0:
            self._at = time.monotonic()
            step = max(agent.losses)
            self.console.print(f"{self.name}: step {step}, loss {agent.losses[step]:.4f}, {len(agent.recoveries)} recoveries")


def all_runs(num_steps: int, num_strikes: int, profile: Profile, console: Console) -> Runs:
    """Train the job three times."""
    troubles = Troubles(num_steps, num_strikes)

    def trained(name: str, dp: int, pp: int, *observers: Observer) -> RunResult:
        observer = _all_of([Show(name, console), *observers])
        ranges = Ranges(min_dp=dp, max_dp=dp)
        return train(partial(help_job, num_steps), workers=dp * pp, dp=dp, pp=pp, ranges=ranges, profile=profile, observer=observer)

    reference = trained("uninterrupted", DP, PP)
    struck = trained("struck", DP, PP, troubles)
    return Runs(reference, struck, troubles, control=trained("on one worker", 1, 1))


def _all_of(observers: Sequence[Observer]) -> Observer:
    def observe(agent: Agent) -> None:
        for observer in observers:
            observer(agent)

    return observe


def loss_differences(run: RunResult, reference: RunResult) -> list[float]:
    """Relative difference of the loss by step. Shape [steps]."""
    return [abs(mine - other) / abs(other) for mine, other in zip(run.losses, reference.losses, strict=True)]


def draw(runs: Runs, path: Path) -> list[Path]:
    """Losses, their differences, and how many workers trained, by step, as PNG and SVG."""
    plot = pyplot()
    steps = range(1, len(runs.reference.losses) + 1)
    figure, panels = plot.subplots(3, 1, figsize=(8.0, 6.5), sharex=True, height_ratios=(3, 1.5, 1), layout="constrained")
    top, middle, bottom = panels
    top.semilogy(steps, runs.reference.losses, color="#f2b134", linewidth=3.0, label="uninterrupted")
    top.semilogy(steps, runs.struck.losses, color="#1f4e79", linewidth=0.7, label="with failures, joins and recoveries")
    top.axhline(CRITERION, color="#7a1f1f", linestyle="--", linewidth=1, label=f"criterion of the paper ({CRITERION:g})")
    top.set_ylabel("training loss (nats per byte)")
    for run, colour, label in (
        (runs.control, "#9bc53d", "uninterrupted on one worker"),
        (runs.struck, "#1f4e79", "with failures, joins and recoveries"),
    ):
        values = [value if value > 0 else math.nan for value in loss_differences(run, runs.reference)]
        middle.semilogy(steps, values, color=colour, linewidth=0.7, label=label)
    middle.set_ylabel("relative difference\nto uninterrupted")
    _draw_strength(bottom, runs.troubles, len(steps))
    for axes in panels:
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small", loc=(0.87, 0.2) if axes is bottom else "best")
    written = save(figure, path)
    plot.close(figure)
    return written


def _draw_strength(axes: Any, troubles: Troubles, num_steps: int) -> None:
    """Workers that train, and a tick for every strike."""
    moments, numbers = zip(*troubles.strength, strict=True)
    axes.step([*moments, num_steps], [*numbers, numbers[-1]], where="post", color="black", linewidth=1)
    axes.plot(troubles.struck_at, [0.5] * len(troubles.struck_at), "|", color="#e4572e", markersize=8, label="strike")
    axes.set_ylim(0, DP * PP + 1)
    axes.set_yticks(range(0, DP * PP + 1, 2))
    axes.set_ylabel("workers\ntraining")
    axes.set_xlabel("step")


def report(runs: Runs) -> str:
    """The figures of the comparison, as Markdown."""
    reference, struck, recoveries = runs.reference, runs.struck, runs.struck.recoveries
    found, rounding = difference(struck, reference), difference(runs.control, reference)
    lines = ["| | |", "|---|---|"]
    lines += [
        f"| steps | {len(struck.losses)} |",
        f"| workers lost, and come back | {sum(len(r.lost) for r in recoveries)}, {sum(len(r.joined) for r in recoveries)} |",
        f"| recoveries, generations | {len(recoveries)}, {struck.decisions[-1].plan.generation + 1} |",
        f"| policies | {', '.join(sorted({recovery.policy for recovery in recoveries}))} |",
        f"| loss at first, and on average over the last {LAST_STEPS} steps | {reference.losses[0]:.4f}, {_last(reference):.4f} |",
        f"| first step at {CRITERION:g} or below, uninterrupted and struck | {_converged(reference)}, {_converged(struck)} |",
        f"| largest relative difference of a loss (fp64) | {found.loss_ratio:.2g} |",
        f"| the same of a run on one worker without failures | {rounding.loss_ratio:.2g} |",
        f"| largest relative difference of a parameter, struck and on one worker "
        f"| {found.parameter_ratio:.2g}, {rounding.parameter_ratio:.2g} |",
        f"| replicas bitwise equal in the end | {'yes' if found.has_equal_replicas else 'no'} |",
    ]
    return "\n".join(lines)


def _last(result: RunResult) -> float:
    """Mean loss of the last steps; single ones vary with their samples."""
    return fmean(result.losses[-LAST_STEPS:])


def _converged(result: RunResult) -> str:
    """The first step whose loss meets the criterion."""
    return next((str(step) for step, loss in enumerate(result.losses, 1) if loss <= CRITERION), "never")


def main() -> int:
    """Train all runs, compare and draw them; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=STEPS, help=f"of each run (default {STEPS})")
    parser.add_argument("--strikes", type=int, default=32, help="on the second run, at equal distances (default 32)")
    parser.add_argument("--picture", type=Path, default=Path("docs/convergence"), help="to write, without .png and .svg")
    parser.add_argument("--write", type=Path, help="renew the table between its markers in this document")
    arguments = parser.parse_args()
    if arguments.write is not None:
        replaced(arguments.write.read_text(), PART, "")  # refuse before training
    console, began = Console(stderr=True, highlight=False), time.monotonic()
    profile = profile_job(partial(help_job, 1), name=PART, num_workers=DP * PP)
    runs = all_runs(arguments.steps, arguments.strikes, profile, console)
    text = report(runs)
    print(text)
    if arguments.write is not None:
        arguments.write.write_text(replaced(arguments.write.read_text(), PART, text))
    pictures = draw(runs, arguments.picture)
    print(f"\n{time.monotonic() - began:.0f} s; pictures: {', '.join(map(str, pictures))}")
    return 0 if runs.is_same else 1


if __name__ == "__main__":
    sys.exit(main())
