"""The search against brute force on thousands of random small jobs, against CP-SAT on larger ones, against Algorithm 1.

Run: python -m benchmarks.proof [--instances 2000]
"""

import argparse
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ortools.sat.python import cp_model
from rich.console import Console
from rich.table import Table

from estimator.costs import Costs
from kintsugi.core.cluster import Cluster
from kintsugi.core.errors import InfeasibleError
from kintsugi.core.job import JobSettings, Ranges
from kintsugi.core.plan import Policy
from kintsugi.core.profile import Profile
from planner.arranging.request import Request
from planner.baseline import algorithm_1
from planner.placing.placement import Holdings
from planner.policies.reshaping import realise
from planner.replan import replan
from tests.builders import layer, profile_of, snapshot_of, transformer_profile, uniform_profile
from tests.planner.oracle import best_pipeline_seconds, best_split_seconds

FREE = {"gradient_bytes": 0, "optimizer_seconds": 0.0}
SCALE = 10**9


@dataclass
class Tally:
    """How often, and how far at most, ours differs."""

    compared: int = 0
    worse: int = 0
    most_ratio: float = 0.0

    def add(self, ours: float, other: float) -> None:
        """Count one comparison of two times."""
        self.compared += 1
        ratio = ours / other - 1
        self.worse += ratio > 1e-9
        self.most_ratio = max(self.most_ratio, ratio)


def planned(profile: Profile, workers: int, microbatches: int, dp: int) -> float:
    """Pipeline time of our plan with so many pipelines, in seconds; infinite where nothing fits."""
    ranges = Ranges(min_dp=dp, max_dp=dp)
    try:
        decision = replan(snapshot_of(profile, Cluster.uniform(workers), microbatches, ranges=ranges))
    except InfeasibleError:
        return float("inf")
    assert decision.search.lower_bound_seconds <= decision.estimate.iteration_seconds * (1 + 1e-12)
    return decision.estimate.pipeline_seconds


KINDS: Sequence[Callable[[int], Profile]] = (uniform_profile, transformer_profile)


def brute_force(instances: int, *, is_equal: bool) -> Tally:
    """All lengths, shares and splits of random small jobs."""
    chance, tally = random.Random(0), Tally()
    for _ in range(instances):
        count, workers, microbatches = chance.randint(2, 6), chance.randint(2, 6), chance.randint(1, 6)
        memory = chance.choice([80_000_000_000, 3_000_000_000, 2_000_000_000])
        if is_equal:
            profile = uniform_profile(count, memory_bytes=memory, layer_changes=FREE)
        else:
            times = [chance.uniform(0.002, 0.02) for _ in range(count)]
            profile = profile_of(
                [layer(f"l{n}", forward_seconds=t, backward_weight_seconds=t, **FREE) for n, t in enumerate(times)],
                memory_bytes=memory,
            )
        dp = chance.randint(1, min(workers, microbatches, 3))
        best, ours = best_pipeline_seconds(profile, workers, microbatches, dp), planned(profile, workers, microbatches, dp)
        if best == float("inf"):
            assert ours == best, "a plan that does not fit memory"
            continue
        tally.add(ours, best)
    return tally


def cp_sat_seconds(profile: Profile, workers: int, microbatches: int, dp: int) -> float:
    """Least pipeline time by constraint programming over lengths and shares, with every split's time as data."""
    longest = min(workers - dp + 1, profile.num_layers)
    model = cp_model.CpModel()
    options = {
        (p, m): round(best_split_seconds(profile, p, m) * SCALE)
        for p in range(1, longest + 1)
        for m in range(1, microbatches - dp + 2)
    }
    counts = {key: model.new_int_var(0, dp, f"n{key}") for key in options}
    slowest = model.new_int_var(0, max(options.values()), "slowest")
    model.add(sum(counts.values()) == dp)
    model.add(sum(p * n for (p, _), n in counts.items()) <= workers)
    model.add(sum(m * n for (_, m), n in counts.items()) == microbatches)
    for key, count in counts.items():
        used = model.new_bool_var(f"u{key}")
        model.add(count <= dp * used)
        model.add(slowest >= options[key]).only_enforce_if(used)
    model.minimize(slowest)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    assert solver.solve(model) == cp_model.OPTIMAL
    return solver.objective_value / SCALE


def cp_sat(instances: int) -> Tally:
    """Middle-sized jobs of equal layers."""
    chance, tally = random.Random(1), Tally()
    for _ in range(instances):
        workers, microbatches, dp = chance.randint(10, 24), chance.randint(12, 40), chance.randint(2, 6)
        profile = uniform_profile(chance.randint(6, 9), layer_changes=FREE)
        tally.add(
            round(planned(profile, workers, microbatches, dp) * SCALE),
            round(cp_sat_seconds(profile, workers, microbatches, dp) * SCALE),
        )
    return tally


def baseline(instances: int) -> Tally:
    """Algorithm 1 on equal and on transformer-shaped layers, by the estimator's price of its plan."""
    chance, tally = random.Random(2), Tally()
    for _ in range(instances):
        workers, per_worker, dp = chance.randint(9, 48), chance.randint(2, 4), chance.randint(2, 8)
        profile = chance.choice(KINDS)(chance.randint(16, 40))
        job = JobSettings(num_microbatches=per_worker * workers, ranges=Ranges(min_pp=2, max_pp=8))
        cluster = Cluster.uniform(workers)
        names, costs = tuple(worker.id for worker in cluster.workers), Costs(profile, cluster)
        try:
            arrangement = algorithm_1(costs, job, names, dp)
        except InfeasibleError:
            continue
        theirs = realise(
            Request(costs, job, names, Holdings(None, ()), 0, Policy.FAULT_FREE), arrangement
        ).estimate.iteration_seconds
        ours = replan(snapshot_of(profile, cluster, job.num_microbatches, ranges=job.ranges)).estimate.iteration_seconds
        tally.add(ours, theirs)
    return tally


def main() -> None:
    """Print how often ours is worse."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--instances", type=int, default=2000)
    count = arguments.parse_args().instances
    table = Table(title="ours against others; worse: slower by more than 1e-9")
    for name in ("against", "jobs", "ours worse", "at most by", "seconds"):
        table.add_column(name, justify="right" if name != "against" else "left")
    comparisons: dict[str, Callable[[], Tally]] = {
        "brute force, equal layers": lambda: brute_force(count, is_equal=True),
        "brute force, unequal layers": lambda: brute_force(count, is_equal=False),
        "CP-SAT, equal layers": lambda: cp_sat(count // 40),
        "Algorithm 1, step": lambda: baseline(count // 20),
    }
    for name, compare in comparisons.items():
        start = time.perf_counter()
        tally = compare()
        row = (name, str(tally.compared), str(tally.worse), f"{tally.most_ratio:.4%}", f"{time.perf_counter() - start:.0f}")
        table.add_row(*row)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
