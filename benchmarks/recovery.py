"""Kill to training again: real workers, a real service, SIGKILL at a random moment of a step.

    python -m benchmarks.recovery [--kills 30] [--workers 6 9 16] [--seed 0]

Prints the median and the 95th percentile over all kills of each cell beside the figure asked for, the medians of the
phases, and the largest relative difference to an undisturbed run (fp64). `resumed` is when the last survivor begins its
first step under the new plan; `first step` is when that step is committed. Workers share this machine's cores, and
its load shows in every figure.
"""

import argparse
import itertools
import random
import statistics
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

from rich.console import Console
from rich.table import Table

from benchmarks.running import scratch
from kintsugi.cli.demo import service
from kintsugi.core.job import Ranges
from kintsugi.core.plan import Policy
from kintsugi.core.profile import Profile
from kintsugi.runtime.control.agent import Agent
from kintsugi.runtime.control.attempt import Phase
from kintsugi.runtime.control.recovery import RecoveryTimeline
from kintsugi.runtime.gpt import GptShape, gpt_job
from kintsugi.runtime.measuring.profiler import profile_job
from kintsugi.runtime.records.compare import difference
from kintsugi.runtime.result import RunResult
from kintsugi.runtime.train import train

GRIDS = {6: (2, 3), 8: (4, 2), 9: (3, 3), 16: (4, 4)}
ASKED_SECONDS = {6: 0.3, 8: 0.3, 9: 0.3, 16: 0.5}
KILLS_PER_RUN = {6: 2, 8: 3, 9: 4, 16: 6}
"""At most: a run ends with fewer when no worker is expendable any more."""
STEPS_PER_KILL = 3
PHASES = ("detected", "planned", "quiesced", "regrouped", "transferred", "resumed", "first_step")

SHAPE = GptShape(num_blocks=8, width=32)


class Striker:
    """Kills a random worker at a random moment of a step, again and again, as long as every layer keeps a holder."""

    def __init__(self, generator: random.Random, num_kills: int) -> None:
        self._generator = generator
        self._left = num_kills
        self._next_step = 2
        self._timer: threading.Timer | None = None

    def __call__(self, agent: Agent) -> None:
        """Observe: strike two steps after the last recovery ended."""
        is_calm = agent.phase is Phase.TRAINING and all(recovery.committed_at is not None for recovery in agent.recoveries)
        step = max(agent.losses, default=-1)
        if self._left == 0 or not is_calm or step < self._next_step or (self._timer is not None and self._timer.is_alive()):
            return
        self._left -= 1
        self._next_step = step + STEPS_PER_KILL
        candidates = [worker for worker in agent.decision.plan.workers if _is_expendable(agent, worker)]
        if not candidates:
            self._left = 0
            return
        victim = self._generator.choice(candidates)
        self._timer = threading.Timer(self._generator.uniform(0.0, 0.1), agent.handle(victim).strike)
        self._timer.start()

    def close(self) -> None:
        """Wait for a strike under way."""
        if self._timer is not None:
            self._timer.join()


def _is_expendable(agent: Agent, worker: str) -> bool:
    """Whether every slot's layers are still held, as a whole, by some other worker: both policies can mend that."""
    plan = agent.decision.plan
    others = [other for other in plan.workers if other != worker]
    slots = [stage for pipeline in plan.pipelines for stage in pipeline.stages]
    return all(any(plan.holds(other, slot) for other in others) for slot in slots)


@dataclass(slots=True)
class Cell:
    """All struck runs of one number of workers under one policy."""

    num_workers: int
    policy: Policy
    recoveries: list[RecoveryTimeline] = field(default_factory=list)
    loss_ratio: float = 0.0
    """Largest relative difference of any loss to the undisturbed run."""
    parameter_ratio: float = 0.0
    has_equal_replicas: bool = True

    def take(self, result: RunResult, reference: RunResult) -> None:
        """Add one struck run; nobody trains again after a kill behind the last step."""
        found = difference(result, reference)
        self.recoveries += [recovery for recovery in result.recoveries if recovery.resumed_at is not None]
        self.loss_ratio = max(self.loss_ratio, found.loss_ratio)
        self.parameter_ratio = max(self.parameter_ratio, found.parameter_ratio)
        self.has_equal_replicas &= found.has_equal_replicas

    def row(self) -> list[str]:
        """As printed."""
        seconds = [recovery.phase_seconds() for recovery in self.recoveries]
        resumed = sorted(phases["resumed"] for phases in seconds)
        medians = [f"{statistics.median(phases.get(phase, 0.0) for phases in seconds):.3f}" for phase in PHASES]
        return [
            str(self.num_workers),
            self.policy.value,
            str(len(resumed)),
            f"{statistics.median(resumed):.3f}",
            f"{resumed[round(0.95 * (len(resumed) - 1))]:.3f}",
            f"{ASKED_SECONDS[self.num_workers]:.1f}",
            *medians,
            f"{self.loss_ratio:.0e}",
            f"{self.parameter_ratio:.0e}",
            "equal" if self.has_equal_replicas else "DIFFER",
        ]


def run(url: str, profile: Profile, num_workers: int, policy: Policy | None, *, seed: int, num_kills: int) -> RunResult:
    """One job, struck `num_kills` times under `policy`; with null undisturbed."""
    dp, pp = GRIDS[num_workers]
    striker = Striker(random.Random(seed), num_kills if policy else 0)
    make_job = partial(gpt_job, num_microbatches=8, num_steps=6 + STEPS_PER_KILL * num_kills, shape=SHAPE)
    name = f"recovery-{num_workers}-{policy.value if policy else 'undisturbed'}-{seed}"
    ranges = Ranges(min_dp=2, min_pp=2)
    try:
        return train(
            make_job,
            workers=num_workers,
            dp=dp,
            pp=pp,
            ranges=ranges,
            name=name,
            profile=profile,
            service=url,
            policy=policy,
            observer=striker,
        )
    finally:
        striker.close()


def cells(arguments: argparse.Namespace, console: Console) -> Iterator[Cell]:
    """Each number of workers under each policy."""
    profile = profile_job(partial(gpt_job, num_microbatches=8, num_steps=1, shape=SHAPE), name="recovery", num_workers=6)
    with scratch() as folder, service(folder) as url:
        for num_workers in arguments.workers:
            num_kills = KILLS_PER_RUN[num_workers]
            reference = run(url, profile, num_workers, None, seed=arguments.seed, num_kills=num_kills)
            for policy in (Policy.DATA_REROUTING, Policy.DYNAMIC_PARALLELISM):
                cell = Cell(num_workers, policy)
                for index in itertools.count():
                    if len(cell.recoveries) >= arguments.kills:
                        break
                    seed = arguments.seed * 1000 + index
                    cell.take(run(url, profile, num_workers, policy, seed=seed, num_kills=num_kills), reference)
                    console.print(f"{num_workers} workers, {policy.value}: {len(cell.recoveries)} of {arguments.kills} kills")
                yield cell


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=30, help="kills in each cell, at least")
    parser.add_argument("--workers", type=int, nargs="+", default=[6, 9, 16], choices=sorted(GRIDS))
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    table = Table(
        title="kill to training again, seconds (resumed); then each phase's median; then fp64 against the undisturbed run"
    )
    columns = (
        "workers",
        "policy",
        "kills",
        "median",
        "95th pct",
        "asked",
        *PHASES,
        "max loss diff",
        "max parameter diff",
        "replicas",
    )
    for column in columns:
        table.add_column(column.replace("_", " "), justify="right")
    for cell in cells(arguments, Console(stderr=True)):
        table.add_row(*cell.row())
    Console(width=200).print(table)


if __name__ == "__main__":
    main()
