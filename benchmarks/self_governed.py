"""Loss to training again: workers that mend their ring themselves, beside the same workers conducted by their agent.

    python -m benchmarks.self_governed [--workers 8 16] [--losses 1 2 3] [--runs 10] [--seed 0]

Data-parallel workers, real gloo processes on loopback. Each run SIGKILLs random workers at once, at a random moment of a step.
Prints the median and the maximum, over all runs of a cell, of the time from the loss until the last survivor begins its first
step; the ratio of both medians; the medians of the phases on the way there; and the largest relative difference of a loss to the
undisturbed run (fp64). Both kinds of runs alternate. Workers share this machine's cores, and its load shows in every figure.
"""

import argparse
import random
import statistics
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from rich.console import Console
from rich.table import Table

from kintsugi.core.job import Ranges
from kintsugi.core.profile import Profile
from kintsugi.runtime.control.agent import Agent
from kintsugi.runtime.control.attempt import Phase
from kintsugi.runtime.control.recovery import RecoveryTimeline
from kintsugi.runtime.forking import PLANNER, preload
from kintsugi.runtime.gpt import GptShape, gpt_job
from kintsugi.runtime.measuring.profiler import profile_job
from kintsugi.runtime.options import AgentOptions, Governance
from kintsugi.runtime.processes import WorkerHandle
from kintsugi.runtime.records.compare import difference
from kintsugi.runtime.result import RunResult
from kintsugi.runtime.train import train

ASKED_SECONDS = {8: 0.150, 16: 0.350}
"""Medians."""
ASKED_MAXIMUM_SECONDS = {8: 0.300}
PHASES = ("detected", "planned", "regrouped", "transferred", "resumed", "first_step")
STRIKE_STEP = 4
NUM_STEPS = 16
NUM_MICROBATCHES = 16
SHAPE = GptShape(num_blocks=2, width=32)


class Striker:
    """Kills some workers at once, at a random moment of a step."""

    def __init__(self, generator: random.Random, num_losses: int) -> None:
        self._generator = generator
        self._num_losses = num_losses
        self._timer: threading.Timer | None = None

    def __call__(self, agent: Agent) -> None:
        """Observe: strike once."""
        if self._timer is not None or self._num_losses == 0 or agent.phase is not Phase.TRAINING:
            return
        if max(agent.losses, default=-1) < STRIKE_STEP:
            return
        victims = self._generator.sample(sorted(agent.alive), self._num_losses)
        handles = [agent.handle(victim) for victim in victims]
        self._timer = threading.Timer(self._generator.uniform(0.0, 0.05), _strike, [handles])
        self._timer.start()

    def close(self) -> None:
        """Wait for a strike under way."""
        if self._timer is not None:
            self._timer.join()


@dataclass(slots=True)
class Cell:
    """All struck runs of one number of workers and losses under one governance."""

    recoveries: list[RecoveryTimeline] = field(default_factory=list)
    loss_ratio: float = 0.0
    has_equal_replicas: bool = True

    def take(self, result: RunResult, reference: RunResult) -> None:
        """Add one struck run."""
        found = difference(result, reference)
        self.recoveries += result.recoveries
        self.loss_ratio = max(self.loss_ratio, found.loss_ratio)
        self.has_equal_replicas &= found.has_equal_replicas

    @property
    def seconds(self) -> list[float]:
        """From the loss to training again, of each run."""
        return [recovery.phase_seconds()["resumed"] for recovery in self.recoveries]

    def median(self, phase: str) -> str:
        """Of one phase's end."""
        return f"{statistics.median(recovery.phase_seconds()[phase] for recovery in self.recoveries):.3f}"


def _strike(handles: Sequence[WorkerHandle]) -> None:
    for handle in handles:
        handle.strike()


def run(profile: Profile, num_workers: int, num_losses: int, governance: Governance, seed: int) -> RunResult:
    """One job, struck once."""
    striker = Striker(random.Random(seed), num_losses)
    make_job = partial(gpt_job, num_microbatches=NUM_MICROBATCHES, num_steps=NUM_STEPS, shape=SHAPE)
    try:
        return train(
            make_job,
            workers=num_workers,
            dp=num_workers,
            pp=1,
            ranges=Ranges(max_pp=1),
            profile=profile,
            observer=striker,
            membership=governance,
            options=AgentOptions(),
        )
    finally:
        striker.close()


def rows(arguments: argparse.Namespace, console: Console) -> Iterator[list[str]]:
    """One per number of workers, number of losses and governance."""
    make_job = partial(gpt_job, num_microbatches=NUM_MICROBATCHES, num_steps=1, shape=SHAPE)
    preload(PLANNER)
    profile = profile_job(make_job, name="self-governed", num_workers=4)
    for num_workers in arguments.workers:
        reference = run(profile, num_workers, 0, Governance.RING, 0)
        for num_losses in arguments.losses:
            cells = {governance: Cell() for governance in (Governance.RING, Governance.AGENT)}
            for index in range(arguments.runs):
                for governance, cell in cells.items():
                    cell.take(run(profile, num_workers, num_losses, governance, arguments.seed * 1000 + index), reference)
                console.print(f"{num_workers} workers, {num_losses} lost: {index + 1} of {arguments.runs} runs")
            baseline = statistics.median(cells[Governance.AGENT].seconds)
            for governance, cell in cells.items():
                yield _row(num_workers, num_losses, governance, cell, statistics.median(cell.seconds) / baseline)


def _row(num_workers: int, num_losses: int, governance: Governance, cell: Cell, ratio: float) -> list[str]:
    asked, maximum = ASKED_SECONDS.get(num_workers), ASKED_MAXIMUM_SECONDS.get(num_workers)
    return [
        str(num_workers),
        str(num_losses),
        governance.value,
        f"{statistics.median(cell.seconds):.3f}",
        f"{asked:.3f}" if asked else "",
        f"{max(cell.seconds):.3f}",
        f"{maximum:.3f}" if maximum else "",
        f"{ratio:.2f}",
        *(cell.median(phase) for phase in PHASES),
        f"{cell.loss_ratio:.0e}",
        "equal" if cell.has_equal_replicas else "DIFFER",
    ]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[8, 16])
    parser.add_argument("--losses", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--runs", type=int, default=10, help="of each cell")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    columns = ("workers", "lost", "mended by", "median", "asked", "maximum", "asked", "ratio", *PHASES, "max loss diff", "replicas")
    table = Table(title="loss to training again, seconds; ratio to the agent's; then each phase's median")
    for column in columns:
        table.add_column(column.replace("_", " "), justify="right")
    for row in rows(arguments, Console(stderr=True)):
        table.add_row(*row)
    Console(width=200).print(table)


if __name__ == "__main__":
    main()
