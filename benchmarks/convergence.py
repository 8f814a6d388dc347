"""Loss over thousands of steps with failures beside an uninterrupted run, as figure 13 of Chameleon: real processes, fp64.

A byte-level GPT learns the help texts of Python's standard library. One run is left alone; in the other workers are killed
or frozen every so many steps, alone, two at once or while the job recovers, and come back later. Same job, same seed.

    python -m benchmarks.convergence [--steps N] [--strikes K] [--picture docs/convergence]

Prints the largest difference in loss, failures and generations; exits with 1 where the runs differ by more than TOLERANCE.
"""

import argparse
import math
import pydoc_data.topics
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from rich.console import Console

from benchmarks.trouble.campaign import Fault, Kind, Run, Strike
from benchmarks.trouble.victims import Victims
from kintsugi.core.job import Ranges
from kintsugi.core.profile import Profile
from kintsugi.reporting.pictures import pyplot, save
from kintsugi.runtime.agent import Agent, Observer
from kintsugi.runtime.attempt import Phase
from kintsugi.runtime.compare import difference
from kintsugi.runtime.faults import Fault as ArmedFault
from kintsugi.runtime.faults import FaultKind, FaultPoint
from kintsugi.runtime.gpt import ByteText, GptShape, adamw, byte_loss, gpt_layers
from kintsugi.runtime.messages import Arm
from kintsugi.runtime.models import TrainingJob
from kintsugi.runtime.profiler import profile_job
from kintsugi.runtime.result import RunResult
from kintsugi.runtime.train import train

STEPS = 3500
"""As many as figure 13 shows."""
CRITERION = 0.1
"""Loss that counts as converged in Chameleon's section V-E."""
TOLERANCE = 1e-6
"""Largest relative difference of a loss that counts as the same curve, in fp64 after thousands of steps of AdamW."""
DP, PP = 2, 3
SHAPE = GptShape(num_blocks=4, width=32, num_heads=4, sequence_length=64, dropout=0.01)
TEXT_BYTES = 6144
NUM_MICROBATCHES, MICROBATCH_SIZE = 4, 2
LEARNING_RATE, WARMUP_STEPS, LEAST_FACTOR = 3e-3, 50, 0.05
LAST_STEPS = 100
AWAY_RATIO = 0.4
"""Share of the steps between two strikes for which a lost worker is away."""
KINDS = (
    Strike(kind=Kind.KILL, at=FaultPoint.FORWARD),
    Strike(kind=Kind.KILL, at=FaultPoint.BACKWARD),
    Strike(kind=Kind.KILL, at=FaultPoint.REDUCE),
    Strike(kind=Kind.KILL, at=FaultPoint.COMMIT),
    Strike(kind=Kind.KILL, at=FaultPoint.APPLIED),
    Strike(kind=Kind.FREEZE, at=FaultPoint.BACKWARD),
    Strike(kind=Kind.KILL, at=FaultPoint.FORWARD, then=(Fault(kind=Kind.KILL, at=FaultPoint.BACKWARD),)),
    Strike(kind=Kind.KILL, at=FaultPoint.BACKWARD, then=(Fault(kind=Kind.KILL, at=FaultPoint.TRANSFER),)),
)
"""What strikes, again and again in an order by the seed."""


def help_text() -> bytes:
    """The first bytes of Python's help texts, topics in alphabetical order."""
    topics = pydoc_data.topics.topics
    return "\n".join(topics[name] for name in sorted(topics)).encode()[:TEXT_BYTES]


def learning_rate_factor(step: int, *, num_steps: int) -> float:
    """Linear warm-up, then half a cosine down to the least."""
    falling = 0.5 * (1.0 + math.cos(math.pi * step / num_steps))
    return min(1.0, (step + 1) / WARMUP_STEPS) * (LEAST_FACTOR + (1.0 - LEAST_FACTOR) * falling)


def help_job(num_steps: int) -> TrainingJob:
    """The job that both runs train."""
    return TrainingJob(
        layers=gpt_layers(SHAPE),
        optimizer=partial(adamw, learning_rate=LEARNING_RATE),
        loss=byte_loss,
        dataset=ByteText(help_text(), SHAPE.sequence_length),
        microbatch_size=MICROBATCH_SIZE,
        num_microbatches=NUM_MICROBATCHES,
        num_steps=num_steps,
        max_grad_norm=1.0,
        learning_rate_factor=partial(learning_rate_factor, num_steps=num_steps),
        dtype=torch.float64,
    )


@dataclass(slots=True)
class Troubles:
    """An observer that strikes workers at given steps, and has them come back later."""

    num_steps: int
    num_strikes: int
    seed: int = 0
    struck_at: list[int] = field(default_factory=list)
    """Steps at which a strike was ordered; workers strike themselves within the next one."""
    strength: list[tuple[int, int]] = field(default_factory=list)
    """Step from which on so many workers train."""
    _left: list[Strike] = field(init=False)
    _victims: Victims = field(init=False)

    def __post_init__(self) -> None:
        repeat = -(-self.num_strikes // len(KINDS))
        strikes = tuple(strike.model_copy(update={"repeat": repeat}) for strike in KINDS)
        run = Run(name="convergence", dp=DP, pp=PP, strikes=strikes)
        self._left = list(run.order(self.seed))[: self.num_strikes]
        self._victims = Victims(run, random.Random(self.seed))

    @property
    def spacing(self) -> int:
        """Steps from one strike to the next."""
        return self.num_steps // (self.num_strikes + 1)

    def __call__(self, agent: Agent) -> None:
        """Observe."""
        step = max(agent.losses, default=-1) + 1
        if agent.phase is not Phase.TRAINING or any(r.committed_at is None for r in agent.recoveries[-1:]):
            return
        workers = len(agent.decision.plan.workers)
        if not self.strength or self.strength[-1][1] != workers:
            self.strength.append((step, workers))
        since = step - self.struck_at[-1] if self.struck_at else 0
        if self.struck_at and since >= AWAY_RATIO * self.spacing:
            for worker in self._victims.missing(agent):
                agent.invite(worker)
        if self._left and step >= (len(self.struck_at) + 1) * self.spacing and not agent.arriving:
            self._strike(agent, step)

    def _strike(self, agent: Agent, step: int) -> None:
        """Have workers strike themselves, such that every layer keeps a holder; wait where too few are here for that."""
        strike = self._left[0]
        faults = (strike, *strike.then)
        victims = list(self._victims.choose(agent, faults, ()))
        if not all(victims):
            return
        self._left.pop(0)
        self.struck_at.append(step)
        for (victim,), fault in zip(victims, faults, strict=True):
            how = FaultKind.FREEZE if fault.kind is Kind.FREEZE else FaultKind.KILL
            agent.handle(victim).send(Arm((ArmedFault(worker=victim, at=fault.at, how=how),)))


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


def both_runs(num_steps: int, num_strikes: int, profile: Profile, console: Console) -> tuple[RunResult, RunResult, Troubles]:
    """The run that was left alone, the one that was struck, and what struck it."""
    make_job = partial(help_job, num_steps)
    troubles = Troubles(num_steps, num_strikes)
    results = []
    for name, observers in (("uninterrupted", []), ("struck", [troubles])):
        observer = _all_of([Show(name, console), *observers])
        ranges = Ranges(min_dp=DP, max_dp=DP)
        results.append(train(make_job, workers=DP * PP, dp=DP, pp=PP, ranges=ranges, profile=profile, observer=observer))
    return results[0], results[1], troubles


def _all_of(observers: Sequence[Observer]) -> Observer:
    def observe(agent: Agent) -> None:
        for observer in observers:
            observer(agent)

    return observe


def loss_differences(struck: RunResult, reference: RunResult) -> list[float]:
    """Relative difference of the loss by step. Shape [steps]."""
    return [abs(mine - other) / abs(other) for mine, other in zip(struck.losses, reference.losses, strict=True)]


def draw(struck: RunResult, reference: RunResult, troubles: Troubles, path: Path) -> list[Path]:
    """Both losses, their difference, and how many workers trained, by step, as PNG and SVG."""
    plot = pyplot()
    steps = range(1, len(reference.losses) + 1)
    figure, (top, middle, bottom) = plot.subplots(
        3, 1, figsize=(8.0, 6.5), sharex=True, height_ratios=(3, 1.3, 1), layout="constrained"
    )
    top.semilogy(steps, reference.losses, color="#f2b134", linewidth=3.0, label="uninterrupted")
    top.semilogy(steps, struck.losses, color="#1f4e79", linewidth=0.7, label="with failures, joins and recoveries")
    top.axhline(
        CRITERION, color="#7a1f1f", linestyle="--", linewidth=1, label=f"convergence criterion of the paper ({CRITERION:g})"
    )
    top.set_ylabel("training loss (nats per byte)")
    top.legend(fontsize="small")
    found = loss_differences(struck, reference)
    middle.semilogy(steps, [value if value > 0 else math.nan for value in found], color="#1f4e79", linewidth=0.7)
    middle.set_ylabel("relative\ndifference of loss")
    _draw_strength(bottom, troubles, len(reference.losses))
    for axes in (top, middle, bottom):
        axes.grid(alpha=0.3)
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
    axes.legend(fontsize="small", loc="center right")


def report(struck: RunResult, reference: RunResult) -> str:
    """The figures of the comparison, as Markdown."""
    recoveries = struck.recoveries
    policies = sorted({recovery.policy for recovery in recoveries})
    found = difference(struck, reference)
    lines = ["| | |", "|---|---|"]
    lines += [
        f"| steps | {len(struck.losses)} |",
        f"| workers lost, and come back | {sum(len(r.lost) for r in recoveries)}, {sum(len(r.joined) for r in recoveries)} |",
        f"| recoveries, generations | {len(recoveries)}, {struck.decisions[-1].plan.generation + 1} |",
        f"| policies | {', '.join(policies)} |",
        f"| loss at first, and on average over the last {LAST_STEPS} steps | {reference.losses[0]:.4f}, {_last(reference):.4f} |",
        f"| first step at {CRITERION:g} or below, uninterrupted and struck | {_converged(reference)}, {_converged(struck)} |",
        f"| largest relative difference of a loss (fp64) | {found.loss_ratio:.2g} |",
        f"| largest relative difference of a parameter | {found.parameter_ratio:.2g} |",
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
    """Train both runs, compare and draw them; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=STEPS, help=f"of each run (default {STEPS})")
    parser.add_argument("--strikes", type=int, default=32, help="on the second run, at equal distances (default 32)")
    parser.add_argument("--picture", type=Path, default=Path("docs/convergence"), help="to write, without .png and .svg")
    arguments = parser.parse_args()
    console = Console(stderr=True, highlight=False)
    began = time.monotonic()
    profile = profile_job(partial(help_job, 1), name="convergence", num_workers=DP * PP)
    reference, struck, troubles = both_runs(arguments.steps, arguments.strikes, profile, console)
    print(report(struck, reference))
    print(
        f"\n{time.monotonic() - began:.0f} s; pictures: {', '.join(map(str, draw(struck, reference, troubles, arguments.picture)))}"
    )
    return int(not difference(struck, reference).is_within(TOLERANCE))


if __name__ == "__main__":
    sys.exit(main())
