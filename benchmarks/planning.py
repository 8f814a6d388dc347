"""How long planning and estimating take; prints medians of cold calls beside what was asked for.

Run: python -m benchmarks.planning
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from benchmarks.running import LiveTable
from estimator.estimate import estimate
from kintsugi.core import codec
from kintsugi.core.cluster import Cluster
from kintsugi.core.job import JobSettings, Ranges, Snapshot
from kintsugi.core.plan import Plan
from kintsugi.core.profile import Profile
from planner.replan import replan

PROFILES = Path(__file__).parent.parent / "profiles" / "models"
NUM_WORKERS, NUM_MICROBATCHES, REPEATS = 32, 128, 15
PLANNING_SECONDS, ESTIMATE_SECONDS = 0.050, 0.001


def median_seconds(call: Callable[[], object]) -> float:
    """Median processor time of `REPEATS` calls, none of which keeps anything for the next."""
    times = []
    for _ in range(REPEATS):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return statistics.median(times)


def snapshot(profile: Profile, ranges: Ranges, plan: Plan | None = None, lost: str = "") -> Snapshot:
    cluster = Cluster.uniform(NUM_WORKERS)
    return Snapshot(
        profile=profile,
        cluster=cluster,
        settings=JobSettings(num_microbatches=NUM_MICROBATCHES, ranges=ranges),
        plan=plan,
        alive=tuple(worker for worker in cluster.by_id if worker != lost),
        generation=0 if plan is None else plan.generation + 1,
    )


def rows(profile: Profile) -> list[tuple[str, float, float]]:
    """What was timed, its seconds, and the seconds asked for."""
    free, fixed = Ranges(), Ranges(min_dp=8, max_dp=8, min_pp=4, max_pp=4)
    grid = replan(snapshot(profile, fixed)).plan
    after = snapshot(profile, free, grid, "w13")
    narrow = replace(after, settings=replace(after.settings, ranges=Ranges(min_pp=2, max_pp=8)))
    return [
        ("plan, all ranges", median_seconds(lambda: replan(snapshot(profile, free))), PLANNING_SECONDS),
        ("replan after a loss, all ranges, all policies", median_seconds(lambda: replan(after)), PLANNING_SECONDS),
        ("replan after a loss, PP 2-8, all policies", median_seconds(lambda: replan(narrow)), PLANNING_SECONDS),
        (
            "estimate of DP 8 x PP 4",
            median_seconds(lambda: estimate(grid, profile, Cluster.uniform(NUM_WORKERS))),
            ESTIMATE_SECONDS,
        ),
    ]


def main() -> None:
    table = LiveTable(
        title=f"{NUM_WORKERS} workers, {NUM_MICROBATCHES} micro-batches, processor time, medians of {REPEATS} cold calls"
    )
    for name in ("profile", "what", "median", "asked"):
        table.add_column(name, justify="right" if name in ("median", "asked") else "left")
    for name in ("llama2-7b.a100-80g", "gpt2-medium.a100-80g"):
        for what, seconds, asked in rows(codec.load(Profile, PROFILES / f"{name}.json")):
            table.add_row(name, what, f"{seconds * 1e3:.2f} ms", f"{asked * 1e3:.0f} ms")
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
