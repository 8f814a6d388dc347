"""What it takes to come to the ratios that Chameleon publishes: by how much it trains more than Oobleck and ReCycle.

The paper leaves open how long a rearrangement stops the job, how a rerouted step is timed, and how many micro-batches there are.
Here are its three systems on `chameleon-32` under several readings of each; `docs/simulator.md` says what follows.

Run: python -m benchmarks.chameleon_setting [--seeds 6]
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean

from rich.console import Console

from benchmarks.running import LiveTable
from estimator.costs import Costs
from kintsugi.core.decision import Estimate
from kintsugi.core.job import Snapshot
from kintsugi.core.plan import Plan, Policy
from kintsugi.simulator.adviser import Adviser
from kintsugi.simulator.baselines.chameleon import Chameleon, equation_13_seconds
from kintsugi.simulator.baselines.oobleck import Oobleck
from kintsugi.simulator.baselines.recycle import ReCycle
from kintsugi.simulator.job import Job, incidents_of, job_of
from kintsugi.simulator.running import Response, Running, Strategy
from kintsugi.simulator.scenario import Scenario, load, varied
from kintsugi.simulator.simulate import simulate

MICROBATCHES = (64, 16)
STOP_SECONDS = (0.0, 60.0, 300.0, 500.0)
"""That every rearrangement stops the job for, beyond detection, regrouping and migration."""


def stopped(response: Response, seconds: float) -> Response:
    """The response, stopped for longer where it rearranges the job: rerouting's transition is negligible in the paper."""
    is_rearranged = response.pause_seconds > 0 and response.running.plan.policy is not Policy.DATA_REROUTING
    return replace(response, pause_seconds=response.pause_seconds + seconds) if is_rearranged else response


def by_equation_13(running: Running, snapshot: Snapshot) -> Running:
    """What runs, its rerouted step timed by equation 13, which hides nothing in bubbles."""
    if not running.plan.dead_slots:
        return running
    seconds = equation_13_seconds(running.plan, Costs(snapshot.profile, snapshot.cluster)) + running.price.reduction_seconds
    return replace(running, price=running.price.lasting(seconds))


@dataclass(frozen=True)
class SlowChameleon(Chameleon):
    """Chameleon whose rearrangements stop the job; it knows."""

    stop_seconds: float = 0.0
    hides_nothing: bool = False

    def _anew(self, snapshot: Snapshot) -> tuple[Response, float] | None:
        found = super()._anew(snapshot)
        return None if found is None else (stopped(found[0], self.stop_seconds), found[1])

    def of(self, plan: Plan, price: Estimate, snapshot: Snapshot) -> Running:
        """A plan with its price."""
        running = super().of(plan, price, snapshot)
        return by_equation_13(running, snapshot) if self.hides_nothing else running


@dataclass(frozen=True)
class SlowOobleck(Oobleck):
    """Oobleck whose rearrangements stop the job."""

    stop_seconds: float = 0.0

    def respond(self, snapshot: Snapshot) -> Response:
        """As ever, but slowly."""
        return stopped(super().respond(snapshot), self.stop_seconds)


@dataclass(frozen=True)
class PlainReCycle(ReCycle):
    """ReCycle as Chameleon's equation 13 sees it."""

    def of(self, plan: Plan, price: Estimate, snapshot: Snapshot) -> Running:
        """A plan with its price."""
        return by_equation_13(super().of(plan, price, snapshot), snapshot)


def rate(scenario: Scenario, make: Callable[[Job], Strategy], seeds: int) -> float:
    """Mean samples per second."""
    job = job_of(scenario, ())
    adviser = Adviser(make(job), job)
    runs = (
        simulate(adviser, scenario.cluster, incidents_of(scenario, seed), duration_seconds=scenario.duration_seconds, seed=seed)
        for seed in range(seeds)
    )
    return fmean(run.samples_per_second for run in runs)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--seeds", type=int, default=6)
    seeds, console = arguments.parse_args().seeds, Console(width=120)
    table = LiveTable(title=f"chameleon-32, {seeds} seeds: Chameleon as published trains so many times as much")
    for name in ("micro-batches", "a rearrangement stops for", "rerouted steps", "Oobleck", "ReCycle"):
        table.add_column(name, justify="right")
    for count in MICROBATCHES:
        scenario = varied(load("chameleon-32"), {"microbatches": count})
        rerouters: dict[bool, Callable[[Job], Strategy]] = {False: ReCycle, True: PlainReCycle}
        recycles = {plain: rate(scenario, make, seeds) for plain, make in rerouters.items()}
        for stop in STOP_SECONDS:
            oobleck = rate(scenario, partial(SlowOobleck, stop_seconds=stop), seeds)
            for plain, recycle in recycles.items():
                own = rate(scenario, partial(SlowChameleon, stop_seconds=stop, hides_nothing=plain), seeds)
                timed = "equation 13" if plain else "scheduled"
                table.add_row(str(count), f"{stop:g} s", timed, f"{own / oobleck:.3f}", f"{own / recycle:.3f}")
    table.add_row("", "", "published", "1.229", "1.355")
    console.print(table)


if __name__ == "__main__":
    main()
