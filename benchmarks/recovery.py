"""Kill to training again: real workers, a real service, SIGKILL at a random moment of a step.

    python -m benchmarks.recovery [--kills 30] [--workers 6 9 16] [--seed 0]

Prints the median and the 95th percentile over all kills of each cell beside the figure asked for, and the medians of
the phases. `resumed` is when the last survivor begins its first step under the new plan; `first step` is when that
step is committed. The machine's load shows in every figure: workers share its cores.
"""

import argparse
import random
import statistics
import tempfile
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from kintsugi.cli.demo import service
from kintsugi.core.job import Ranges
from kintsugi.core.plan import Policy
from kintsugi.core.profile import Profile
from kintsugi.runtime.agent import Agent, Phase
from kintsugi.runtime.gpt import GptShape, gpt_job
from kintsugi.runtime.profiler import profile_job
from kintsugi.runtime.recovery import RecoveryTimeline
from kintsugi.runtime.train import train

GRIDS = {6: (2, 3), 8: (4, 2), 9: (3, 3), 16: (4, 4)}
ASKED_SECONDS = {6: 0.3, 8: 0.3, 9: 0.3, 16: 0.5}
KILLS_PER_RUN = {6: 1, 8: 2, 9: 2, 16: 3}
STEPS_PER_KILL = 4
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
    others = [stage for holder, stage in plan.stage_of.items() if holder != worker]
    slots = [stage for pipeline in plan.pipelines for stage in pipeline.stages]
    return all(any(other.holds(slot) for other in others) for slot in slots)


def run(url: str, profile: Profile, num_workers: int, policy: Policy, *, seed: int, num_kills: int) -> tuple[RecoveryTimeline, ...]:
    """One job, struck `num_kills` times."""
    dp, pp = GRIDS[num_workers]
    striker = Striker(random.Random(seed), num_kills)
    make_job = partial(gpt_job, num_microbatches=8, num_steps=6 + STEPS_PER_KILL * num_kills, shape=SHAPE)
    name = f"recovery-{num_workers}-{policy.value}-{seed}"
    try:
        result = train(
            make_job,
            workers=num_workers,
            dp=dp,
            pp=pp,
            name=name,
            profile=profile,
            service=url,
            policy=policy,
            ranges=Ranges(min_pp=2),
            observer=striker,
        )
    finally:
        striker.close()
    return result.recoveries


def cells(arguments: argparse.Namespace, console: Console) -> Iterator[tuple[int, Policy, list[RecoveryTimeline]]]:
    """All recoveries of each (workers, policy)."""
    profile = profile_job(partial(gpt_job, num_microbatches=8, num_steps=1, shape=SHAPE), name="recovery", num_workers=6)
    with tempfile.TemporaryDirectory() as folder, service(Path(folder)) as url:
        for num_workers in arguments.workers:
            for policy in (Policy.DATA_REROUTING, Policy.DYNAMIC_PARALLELISM):
                recoveries: list[RecoveryTimeline] = []
                runs = -(-arguments.kills // KILLS_PER_RUN[num_workers])
                for index in track(range(runs), f"{num_workers} workers, {policy.value}", console=console):
                    seed = arguments.seed * 1000 + index
                    recoveries += run(url, profile, num_workers, policy, seed=seed, num_kills=KILLS_PER_RUN[num_workers])
                yield num_workers, policy, recoveries


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=30, help="kills in each cell, at least")
    parser.add_argument("--workers", type=int, nargs="+", default=[6, 9, 16], choices=sorted(GRIDS))
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    table = Table(title="kill to training again, seconds")
    for column in ("workers", "policy", "kills", "median", "95th pct", "asked", *(f"{phase} (median)" for phase in PHASES)):
        table.add_column(column.replace("_", " "), justify="right")
    for num_workers, policy, recoveries in cells(arguments, Console(stderr=True)):
        seconds = [recovery.phase_seconds() for recovery in recoveries]
        resumed = sorted(phases["resumed"] for phases in seconds)
        medians = [f"{statistics.median(phases.get(phase, 0.0) for phases in seconds):.3f}" for phase in PHASES]
        p95 = resumed[min(len(resumed) - 1, round(0.95 * (len(resumed) - 1)))]
        table.add_row(
            str(num_workers),
            policy.value,
            str(len(resumed)),
            f"{statistics.median(resumed):.3f}",
            f"{p95:.3f}",
            f"{ASKED_SECONDS[num_workers]:.1f}",
            *medians,
        )
    Console(width=200).print(table)


if __name__ == "__main__":
    main()
