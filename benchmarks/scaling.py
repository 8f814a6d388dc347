"""How planning grows with workers, layers, micro-batches and pipeline range: the published figures beside ours, and plots.

Every call is cold: it gets a snapshot of its own and keeps nothing.

Run: python -m benchmarks.scaling [--plot docs/planning.svg] [--large]
"""

import argparse
import statistics
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.running import LiveTable
from kintsugi.core import codec
from kintsugi.core.cluster import Cluster
from kintsugi.core.decision import Decision
from kintsugi.core.job import JobSettings, Ranges, Snapshot
from kintsugi.core.plan import Plan
from kintsugi.core.profile import Profile
from planner.replan import replan
from tests.builders import transformer_profile, uniform_profile

PUBLISHED_SECONDS = {256: 1.152, 1024: 19.25, 2048: 40.48}
ASKED_SECONDS = {256: 0.015, 1024: 0.050, 2048: 0.100, 16_384: 1.0, 100_000: 10.0}
RANGES = Ranges(min_pp=4, max_pp=16)
NUM_LAYERS, MICROBATCHES_PER_WORKER = 80, 4
PROFILES = {"equal": uniform_profile(NUM_LAYERS), "transformer": transformer_profile(NUM_LAYERS - 2)}


def snapshot(
    profile: Profile,
    num_workers: int,
    *,
    plan: Plan | None = None,
    lost: int = 0,
    ranges: Ranges = RANGES,
    per_worker: int = MICROBATCHES_PER_WORKER,
) -> Snapshot:
    """A job on equal workers, the first `lost` of which are gone."""
    cluster = Cluster.uniform(num_workers)
    return Snapshot(
        profile=profile,
        cluster=cluster,
        settings=JobSettings(num_microbatches=per_worker * num_workers, ranges=ranges),
        plan=None if plan is None else codec.loads(Plan, codec.dumps(plan)),
        alive=tuple(worker.id for worker in cluster.workers[lost:]),
        generation=0 if plan is None else plan.generation + 1,
    )


def timed(asked: Snapshot) -> tuple[float, Decision]:
    """Seconds of one call on the processor, whatever else runs there, and its decision."""
    start = time.process_time()
    decision = replan(asked)
    return time.process_time() - start, decision


def median(asked: list[Snapshot]) -> float:
    """Median seconds over equal snapshots."""
    return statistics.median(timed(item)[0] for item in asked)


def table(sizes: list[int], repeats: int) -> Table:
    """Search for the workers that are left, and the whole decision over all policies."""
    result = LiveTable(
        title=f"one worker lost, {NUM_LAYERS} layers, PP 4-16, DP free, 4 micro-batches a worker; CPU time, medians of cold calls"
    )
    for name in ("workers", "layers", "search", "all policies", "asked", "published", "gap of the search", "chosen"):
        result.add_column(name, justify="right")
    for num_workers in sizes:
        count = repeats if num_workers <= 2048 else 1
        for name, profile in PROFILES.items():
            search = [snapshot(profile, num_workers, lost=1) for _ in range(count)]
            first = replan(snapshot(profile, num_workers))
            recovery = [snapshot(profile, num_workers, plan=first.plan, lost=1) for _ in range(count)]
            result.add_row(
                f"{num_workers:,}",
                name,
                f"{median(search) * 1e3:,.1f} ms",
                f"{median(recovery) * 1e3:,.1f} ms",
                f"{ASKED_SECONDS[num_workers] * 1e3:,.0f} ms",
                f"{PUBLISHED_SECONDS[num_workers]:.2f} s" if num_workers in PUBLISHED_SECONDS else "-",
                f"{replan(search[0]).search.gap_ratio:.4%}",
                replan(recovery[0]).policy.value,
            )
    return result


def growth() -> dict[str, dict[str, list[tuple[int, float]]]]:
    """Milliseconds of the search by what grows; everything else as in the table for 256 workers."""
    result: dict[str, dict[str, list[tuple[int, float]]]] = {}
    for name, profile in PROFILES.items():
        build = uniform_profile if name == "equal" else transformer_profile
        variants = {
            "workers": [(n, snapshot(profile, n, lost=1)) for n in (64, 128, 256, 512, 1024, 2048, 4096)],
            "layers": [(n, snapshot(build(n), 256, lost=1)) for n in (20, 40, 80, 160, 320)],
            "micro-batches a worker": [(n, snapshot(profile, 256, lost=1, per_worker=n)) for n in (1, 2, 4, 8, 16, 32)],
            "longest pipeline": [
                (n, snapshot(profile, 256, lost=1, ranges=Ranges(min_pp=4, max_pp=n))) for n in (4, 8, 16, 32, 64)
            ],
        }
        for what, asked in variants.items():
            points = [(n, median([item] * 3) * 1e3) for n, item in asked]
            result.setdefault(what, {})[name] = points
    return result


def plot(path: Path) -> None:
    """Draw the growth, one panel for each thing that grows."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "planning"
    from matplotlib import pyplot as plt
    from matplotlib.ticker import NullFormatter, NullLocator

    figure, panels = plt.subplots(2, 2, figsize=(9, 6), layout="constrained")
    for panel, (what, lines) in zip(panels.flat, growth().items(), strict=True):
        for name, points in lines.items():
            panel.plot(*zip(*points, strict=True), marker="o", markersize=3, label=f"{name} layers")
        panel.set(xscale="log", yscale="log", xlabel=what, ylabel="search, ms")
        values = [n for n, _ in points]
        panel.set_xticks(values, labels=[f"{n:,}" for n in values], minor=False)
        panel.xaxis.set_minor_locator(NullLocator())
        panel.yaxis.set_major_formatter("{x:g}")
        panel.yaxis.set_minor_formatter(NullFormatter())
        panel.grid(visible=True, which="both", alpha=0.2)
    panels.flat[0].legend(frameon=False)
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Print the table; draw the growth where a path is given."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--plot", type=Path, help="draw the growth into this file")
    arguments.add_argument("--large", action="store_true", help="16,384 and 100,000 workers too")
    arguments.add_argument("--repeats", type=int, default=5)
    options = arguments.parse_args()
    replan(snapshot(PROFILES["equal"], 32))
    sizes = [size for size in ASKED_SECONDS if options.large or size <= 2048]
    Console(width=140).print(table(sizes, options.repeats))
    if options.plot:
        plot(options.plot)


if __name__ == "__main__":
    main()
