"""Looks at a run while it is struck: what its processes hold, which there were, and that the job does not hang.

Steps of these jobs take milliseconds, and what strikes wait for (a process that starts again) takes seconds: no number of
steps is enough for all strikes on every machine. So the job is concluded once they are over.
"""

import os
import time

from rich.console import Console

from benchmarks.trouble.campaign import Campaign, Run
from benchmarks.trouble.footprint import NOTHING, Growths, explained_by, start_ticks
from benchmarks.trouble.report import grown_beyond, growth_of
from benchmarks.trouble.service import ServiceProcess
from benchmarks.trouble.striker import Striker
from kintsugi.runtime.control.agent import Agent
from kintsugi.runtime.control.recovery import RecoveryTimeline

PROGRESS_SECONDS = 5.0
SETTLE_SECONDS, PATIENCE_SECONDS = 3.0, 30.0
"""After which nothing is left of what a recovery puts off: quiet connections are shut down, old groups torn down. And for how long
that is looked at again where something is, for a busy machine takes longer."""


class HungError(Exception):
    """A job made no step for too long, or took too long altogether."""


class Witness:
    """Observes a run after its striker."""

    def __init__(self, campaign: Campaign, run: Run, striker: Striker, service: ServiceProcess, console: Console) -> None:
        self._campaign = campaign
        self._run = run
        self._striker = striker
        self._service = service
        self._console = console
        self._began_at = self._moved_at = self._told_at = time.monotonic()
        self.num_steps = 0
        """That were seen to be committed."""
        self._sampled_generation = -1
        self._looked_at = 0.0
        self._has_looked_last = False
        self._patient_until: float | None = None
        self.growths = Growths()
        self.recoveries: list[RecoveryTimeline] = []
        """The agent's own list."""
        self.generation = 0
        self.processes: dict[int, str] = {}
        """Start of every worker process that was ever seen, by id."""

    def __call__(self, agent: Agent) -> None:
        """Observe."""
        if self._striker.is_rested(agent):
            self._look(agent)
            if self._has_looked_last:
                agent.conclude()
        self._striker(agent)
        self.recoveries, self.generation = agent.recoveries, agent.decision.plan.generation
        for worker in (*agent.alive, *agent.arriving):
            pid = agent.handle(worker).pid
            if pid not in self.processes and (ticks := start_ticks(pid)) is not None:
                self.processes[pid] = ticks
        self._service.require_running()
        self._require_progress(agent)

    def _look(self, agent: Agent) -> None:
        """At what processes hold: once in every generation, and when all is over until old groups are torn down."""
        plan, now = agent.decision.plan, time.monotonic()
        is_over = self._striker.is_over(agent) and now - self._looked_at > SETTLE_SECONDS and not self._has_looked_last
        if plan.generation <= self._sampled_generation and not is_over:
            return
        self._sampled_generation, self._looked_at = plan.generation, now
        workers = [("worker", agent.handle(worker).pid, explained_by(plan, worker)) for worker in agent.alive]
        self.growths.sample([*workers, ("agent", os.getpid(), NOTHING), ("service", self._service.pid, NOTHING)])
        if is_over:
            self._patient_until = self._patient_until or now + PATIENCE_SECONDS
            self._has_looked_last = now > self._patient_until or not grown_beyond(growth_of(self.growths), self._campaign.growth)

    def _require_progress(self, agent: Agent) -> None:
        now, step = time.monotonic(), max(agent.losses, default=-1)
        if step >= self.num_steps:
            self.num_steps, self._moved_at = step + 1, now
        if now - self._moved_at > self._campaign.hung_after_seconds:
            raise HungError(f"no step for {now - self._moved_at:.0f} s after step {step}, {agent.phase.value}")
        if now - self._began_at > self._campaign.limit_seconds:
            raise HungError(
                f"not done within {self._campaign.limit_seconds:g} s: step {step}, {self._striker.num_left} strikes left"
            )
        if now - self._told_at > PROGRESS_SECONDS:
            self._told_at = now
            faults = sum(self._striker.num_faults.values())
            generation = agent.decision.plan.generation
            self._console.print(f"  {self._run.name}: step {step}, generation {generation}, {faults} faults", highlight=False)


def orphans(processes: dict[int, str], patience_seconds: float) -> int:
    """How many of these processes are still there when patience is over."""
    deadline = time.monotonic() + patience_seconds
    while left := [pid for pid, ticks in processes.items() if start_ticks(pid) == ticks]:
        if time.monotonic() > deadline:
            return len(left)
        time.sleep(0.05)
    return 0
