"""Who is struck, who comes back, and who is new."""

import itertools
import random
from collections.abc import Collection, Iterator, Sequence

from benchmarks.trouble.campaign import FEWEST_WORKERS, Fault, Kind, Run
from kintsugi.core.cluster import Cluster
from kintsugi.core.plan import Plan
from kintsugi.runtime.control.agent import Agent


class Victims:
    """Chooses workers such that every layer keeps a holder, whatever else was chosen with them."""

    def __init__(self, run: Run, generator: random.Random) -> None:
        cluster = Cluster.uniform(run.dp * run.pp, workers_per_host=run.workers_per_host)
        self._host_of = {worker.id: worker.host for worker in cluster.workers}
        self._full_strength = run.dp * run.pp
        self._random = generator
        self._names = (f"n{index:02d}" for index in itertools.count())

    def newcomer(self) -> str:
        """The name of a worker that is new to the job; it has a host of its own."""
        name = next(self._names)
        self._host_of[name] = f"h-{name}"
        return name

    def missing(self, agent: Agent) -> list[str]:
        """Workers that were lost and are to come back, up to the strength that the job began with."""
        here = {*agent.alive, *agent.arriving}
        return [worker for worker in self._host_of if worker not in here][: max(0, self._full_strength - len(here))]

    def choose(self, agent: Agent, faults: Sequence[Fault], spoken_for: Collection[str]) -> Iterator[tuple[str, ...]]:
        """The workers that each fault strikes; none where nobody more can be spared."""
        gone = set(spoken_for)
        for fault in faults:
            chosen = self._one(agent, fault, gone)
            gone |= set(chosen)
            yield chosen

    def _one(self, agent: Agent, fault: Fault, gone: Collection[str]) -> tuple[str, ...]:
        plan = agent.decision.plan
        busy = [worker for worker in plan.workers if worker in agent.alive and worker not in gone]
        groups = self._hosts(busy) if fault.kind is Kind.HOST else [(worker,) for worker in busy]
        spared = [group for group in groups if _can_spare(plan, {*gone, *group}, agent.alive)]
        return self._random.choice(spared) if spared else ()

    def _hosts(self, workers: Sequence[str]) -> list[tuple[str, ...]]:
        by_host: dict[str, list[str]] = {}
        for worker in workers:
            by_host.setdefault(self._host_of[worker], []).append(worker)
        return [tuple(group) for group in by_host.values()]


def _can_spare(plan: Plan, gone: Collection[str], alive: Sequence[str]) -> bool:
    """Whether every layer is still held by some living worker."""
    left = {worker for worker in plan.workers if worker not in gone and worker in alive}
    return len(set(alive) - set(gone)) >= FEWEST_WORKERS and all(left & set(holders) for holders in plan.holders)
