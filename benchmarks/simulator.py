"""Kintsugi against every published policy on `chameleon-32`, what the open assumptions change, and how fast that is simulated.

Run: python -m benchmarks.simulator [--seeds 20] [--jobs 2] [--only comparison|published|sensitivity|speed]
"""

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from rich.console import Console
from rich.table import Table

from estimator.costs import Costs
from estimator.estimate import estimate
from kintsugi.core.cluster import Cluster
from kintsugi.reporting.intervals import Interval
from kintsugi.simulator.adviser import Adviser
from kintsugi.simulator.baselines.bamboo import Bamboo
from kintsugi.simulator.baselines.hot_spares import HotSpares
from kintsugi.simulator.baselines.oobleck import Oobleck
from kintsugi.simulator.baselines.parcae import Parcae
from kintsugi.simulator.baselines.recycle import ReCycle, staggered_seconds
from kintsugi.simulator.baselines.varuna import Varuna
from kintsugi.simulator.job import Job, incidents_of, job_of
from kintsugi.simulator.policies import ALL, FREE_SCHEDULE, KINTSUGI, PINNED, PUBLISHED
from kintsugi.simulator.running import Strategy
from kintsugi.simulator.scenario import Scenario, load, varied
from kintsugi.simulator.simulate import simulate
from kintsugi.simulator.summary import by_seed, ratio, regrets
from kintsugi.simulator.sweep import Result, Task, executor_for, run_all, run_one, tasks_of
from planner.policies.rerouting import reroute
from tests.builders import grid_plan, uniform_profile

ASKED = {"oobleck": 1.229, "recycle": 1.355, "chameleon": 1.03}
"""Published by Chameleon of itself over the first two; asked of us over all three."""

VARIED = {
    "settings.num_microbatches": (16, 32, 64, 128),
    "mtbf": (562.5, 1125.0, 4500.0),
    "faults.repair_seconds": (None, 3600.0),
    "first": ({"dp": 8, "pp": 4}, {"dp": 4, "pp": 8}),
    "device_memory_bytes": (64_000_000_000, 80_000_000_000),
    "recovery.regroup_seconds": (1.93, 10.0, 60.0),
    "checkpoint_pause_seconds": (0.0, 2.0, 20.0),
}
"""Assumptions of the scenario, the one that is used among them."""

OPEN: Mapping[str, Callable[[Job], Strategy]] = {
    "oobleck, f = 1": lambda job: Oobleck(job, fault_tolerance=1),
    "recycle, optimizer not staggered": lambda job: ReCycle(job, staggers_optimizer=False),
    "bamboo, forward passes never hidden": lambda job: Bamboo(job, hides_forward=False),
    "bamboo, pipelines no deeper": lambda job: Bamboo(job, depth_ratio=1.0),
    "varuna, a checkpoint every minute": lambda job: Varuna(job, checkpoint_seconds=60.0),
    "varuna, a checkpoint every hour": lambda job: Varuna(job, checkpoint_seconds=3600.0),
    "parcae, looks ahead for an hour": lambda job: Parcae(job, look_ahead_seconds=3600.0),
    "parcae, does not look ahead": lambda job: Parcae(job, look_ahead_seconds=0.0),
    "hot-spares, two pipelines wait": lambda job: HotSpares(job, waiting_pipelines=2),
}
"""What papers leave open, read otherwise than in `baselines.constants`."""


def results_of(tasks: Sequence[Task], jobs: int) -> list[Result]:
    with executor_for(jobs, None) as executor:
        return [result for part in run_all(tasks, executor) for result in part]


def shown(value: Interval) -> str:
    return f"{value.mean:.3f}" if value.margin is None else f"{value.mean:.3f} ± {value.margin:.3f}"


def comparison(seeds: int, jobs: int, console: Console) -> None:
    """Average throughput against every other policy, and the regret of not having chosen the best one."""
    started = time.perf_counter()
    tasks = tasks_of(load("chameleon-32"), {}, tuple(ALL), range(seeds))
    results = results_of(tasks, jobs)
    rates = {policy: by_seed(results, policy) for policy in ALL}
    took = time.perf_counter() - started
    table = Table(title=f"chameleon-32, {seeds} seeds, {took:.0f} s; times as much as the other trains (95 % confidence)")
    for name in ("policy", "samples/s", "kintsugi is", "kintsugi-auto is", "asked"):
        table.add_column(name, justify="left" if name == "policy" else "right")
    for policy, own in rates.items():
        figures = [shown(Interval.of(list(own.values()))), *(shown(ratio(rates[us], own)) for us in (KINTSUGI, FREE_SCHEDULE))]
        table.add_row(policy, *figures, f"{ASKED[policy]:.3f}" if policy in ASKED else "")
    console.print(table)
    others = [rates[policy] for policy in (*PUBLISHED, *PINNED)]
    for us in (KINTSUGI, FREE_SCHEDULE):
        regret = regrets(rates[us], others)
        worst = max(regret, key=regret.__getitem__)
        mean = fmean(regret.values())
        console.print(f"{us}: mean regret {mean:.2%} (asked 0.5 %), worst seed {worst}: {regret[worst]:.2%}", highlight=False)


def published(console: Console) -> None:
    """What Oobleck and ReCycle publish of themselves."""
    free = {"gradient_bytes": 0, "optimizer_seconds": 0.0}
    profile, cluster, plan = uniform_profile(4, layer_changes=free), Cluster.uniform(12), grid_plan(4, [4] * 3, [6] * 3)
    costs = Costs(profile, cluster)
    before = estimate(plan, profile, cluster).iteration_seconds
    rerouted, price = reroute(plan, [worker for worker in plan.workers if worker != "w06"], costs)
    console.print(
        f"ReCycle, 3 x 4 stages, 6 micro-batches each, one failure: published, its step as without; "
        f"here {staggered_seconds(rerouted, costs) / before:.3f} of it staggered, {price.iteration_seconds / before:.3f} not",
        highlight=False,
    )
    scenario = load("chameleon-32")
    job = job_of(scenario, ())
    adviser = Adviser(Oobleck(job), job)
    for seed in range(4):
        simulate(adviser, scenario.cluster, incidents_of(scenario, seed), duration_seconds=scenario.duration_seconds, seed=seed)
    plans = [response.running.plan for response in adviser.answers()]
    share = fmean(len(p.workers) / (len(p.workers) + len(p.idle_workers)) for p in plans)
    console.print(
        f"Oobleck, templates cover all workers: published 100 %; here {share:.1%} of the workers of {len(plans)} plans",
        highlight=False,
    )
    rates = {policy: [run_one(scenario, policy, seed).samples_per_second for seed in range(4)] for policy in ("recycle", "oobleck")}
    best = max(a / b for a, b in zip(rates["recycle"], rates["oobleck"], strict=True))
    console.print(f"ReCycle over Oobleck: published up to 1.46; here up to {best:.3f} on 4 seeds of chameleon-32", highlight=False)


def sensitivity(seeds: int, jobs: int, console: Console) -> None:
    """The three asked ratios under other assumptions, and baselines whose constants are read otherwise."""
    base = load("chameleon-32")
    base = replace(base, recovery=base.load_profile().recovery)
    table = Table(title=f"chameleon-32 under other assumptions, {seeds} seeds; kintsugi trains so many times as much as")
    for name in ("assumption", "value", *ASKED):
        table.add_column(name, justify="right" if name in ASKED else "left")
    for field, values in VARIED.items():
        for value in values:
            results = results_of(tasks_of(varied(base, {field: value}), {}, (KINTSUGI, *ASKED), range(seeds)), jobs)
            ours = by_seed(results, KINTSUGI)
            table.add_row(field, str(value), *(shown(ratio(ours, by_seed(results, policy))) for policy in ASKED))
    console.print(table)
    _open_constants(base, seeds, console)


def _open_constants(base: Scenario, seeds: int, console: Console) -> None:
    job = job_of(base, ())
    table = Table(title="baselines whose open constants are read otherwise")
    for name in ("reading", "samples/s", "as committed"):
        table.add_column(name, justify="left" if name == "reading" else "right")
    for reading, make in OPEN.items():
        adviser, policy = Adviser(make(job), job), reading.split(",")[0]
        runs = [
            simulate(adviser, base.cluster, incidents_of(base, seed), duration_seconds=base.duration_seconds, seed=seed)
            for seed in range(seeds)
        ]
        committed = fmean(run_one(base, policy, seed).samples_per_second for seed in range(seeds))
        table.add_row(reading, f"{fmean(run.samples_per_second for run in runs):.3f}", f"{committed:.3f}")
    console.print(table)


def speed(jobs: int, console: Console) -> None:
    """Processor time of `llama3-16k` under all policies in one process, and of 1,000 runs of `chameleon-32`.

    All policies keep the scenario's schedule; the one that searches under every schedule is left out.
    """
    scenario, total = load("llama3-16k"), 0.0
    for policy in (policy for policy in ALL if policy != FREE_SCHEDULE):
        started = time.process_time()
        run = run_one(scenario, policy, 0)
        took = time.process_time() - started
        total += took
        console.print(f"llama3-16k, {policy}: {run.samples_per_second:.2f} samples/s, {took:.1f} s", highlight=False)
    console.print(f"llama3-16k, all policies: {total:.1f} s of one core (asked 60 s)", highlight=False)
    started = time.perf_counter()
    results_of(tasks_of(load("chameleon-32"), {}, (KINTSUGI,), range(1000)), jobs)
    took = time.perf_counter() - started
    console.print(
        f"chameleon-32, 1,000 runs under kintsugi: {took:.0f} s on {jobs} processes (asked 300 s on two)", highlight=False
    )


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--seeds", type=int, default=20)
    arguments.add_argument("--jobs", type=int, default=2)
    arguments.add_argument("--only", choices=("comparison", "published", "sensitivity", "speed"))
    given, console = arguments.parse_args(), Console(width=140)
    parts: dict[str, Callable[[], None]] = {
        "comparison": lambda: comparison(given.seeds, given.jobs, console),
        "published": lambda: published(console),
        "sensitivity": lambda: sensitivity(min(given.seeds, 4), given.jobs, console),
        "speed": lambda: speed(given.jobs, console),
    }
    for name, part in parts.items():
        if given.only in (None, name):
            part()


if __name__ == "__main__":
    main()
