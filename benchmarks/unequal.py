"""Plans for workers that differ: beside leaving the slow ones idle, beside counting all as the slowest, and above the bound.

    python -m benchmarks.unequal [--jobs 60] [--seed 0]

Random jobs of published models' profiles on 18 to 256 workers: a few slow ones, all a little different, half of them slower, or
some with half of the memory. Steps are the estimator's. Prints medians and the worst of each kind of job.
"""

import argparse
import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.progress import track
from rich.table import Table

from kintsugi.core import codec
from kintsugi.core.cluster import Cluster, Worker
from kintsugi.core.decision import Decision
from kintsugi.core.errors import InfeasibleError
from kintsugi.core.job import JobSettings, Ranges, Snapshot
from kintsugi.core.profile import Profile
from planner.replan import replan

MODELS = Path(__file__).parents[1] / "profiles" / "models"
NAMES = ("gpt2-124m.a100-80g", "gpt2-medium.a100-80g", "llama2-7b.a100-80g", "llama2-7b.h100-80g")
SIZES = (18, 24, 32, 48, 64, 128, 256)
KINDS = ("few slow", "all differ", "half slow", "less memory")


@dataclass(frozen=True, slots=True)
class Row:
    """One job."""

    kind: str
    over_without: float
    """Step of the plan for the fast workers alone, or the large ones, over the plan's; infinite where nothing fits these."""
    over_slowest: float
    """Step of the plan for as many workers like the slowest and the smallest, over the plan's."""
    gap: float
    """Of the plan above its bound."""
    search_seconds: float


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    profiles = {name: codec.load(Profile, MODELS / f"{name}.json") for name in NAMES}
    chance = random.Random(arguments.seed)
    jobs = [drawn(chance, profiles) for _ in range(arguments.jobs)]
    rows = [row(*job) for job in track(jobs, description="planning", transient=True)]
    Console().print(table(rows))


def drawn(chance: random.Random, profiles: dict[str, Profile]) -> tuple[str, Profile, Cluster, JobSettings]:
    """A random job."""
    kind, count, profile = chance.choice(KINDS), chance.choice(SIZES), profiles[chance.choice(NAMES)]
    uniform = Cluster.uniform(count, workers_per_host=chance.choice([1, 1, 4]) if count % 4 == 0 else 1)
    slow, speed = set(chance.sample(range(count), chance.randint(1, 3))), chance.choice([0.3, 0.5, 0.7, 0.9])
    spread, memory = chance.choice([0.02, 0.1]), profile.device.memory_bytes // 2

    def changed(place: int, worker: Worker) -> Worker:
        if kind == "all differ":
            return replace(worker, speed_ratio=round(1 - spread * chance.random(), 3))
        if kind == "less memory":
            return replace(worker, memory_bytes=memory) if place % 8 == 0 else worker
        is_slow = place in slow if kind == "few slow" else place % 2 == 0
        return replace(worker, speed_ratio=speed) if is_slow else worker

    cluster = uniform.with_workers(tuple(changed(place, worker) for place, worker in enumerate(uniform.workers)))
    settings = JobSettings(num_microbatches=count * chance.choice([1, 2, 4, 8]), ranges=Ranges(max_pp=16))
    return kind, profile, cluster, settings


def row(kind: str, profile: Profile, cluster: Cluster, settings: JobSettings) -> Row:
    """What comes of a job."""
    workers = cluster.workers
    speeds = [worker.speed_ratio for worker in workers]
    sizes = [worker.memory_bytes or profile.device.memory_bytes for worker in workers]
    best = [
        worker for worker, speed, size in zip(workers, speeds, sizes, strict=True) if (speed, size) == (max(speeds), max(sizes))
    ]
    alike = [replace(worker, speed_ratio=min(speeds), memory_bytes=min(sizes)) for worker in workers]
    ours = decided(profile, cluster, settings)
    step = ours.estimate.iteration_seconds
    return Row(
        kind=kind,
        over_without=step_of(profile, cluster.with_workers(tuple(best)), settings) / step,
        over_slowest=step_of(profile, cluster.with_workers(tuple(alike)), settings) / step,
        gap=ours.search.gap_ratio,
        search_seconds=ours.search.elapsed_seconds,
    )


def decided(profile: Profile, cluster: Cluster, settings: JobSettings) -> Decision:
    """The first plan of a job."""
    everybody = tuple(worker.id for worker in cluster.workers)
    return replan(Snapshot(profile=profile, cluster=cluster, settings=settings, plan=None, alive=everybody, generation=0))


def step_of(profile: Profile, cluster: Cluster, settings: JobSettings) -> float:
    """Of the first plan, in seconds; infinite where nothing fits."""
    try:
        return decided(profile, cluster, settings).estimate.iteration_seconds
    except InfeasibleError:
        return float("inf")


def table(rows: Sequence[Row]) -> Table:
    """Lines for each kind of job."""
    by_kind: dict[str, list[Row]] = defaultdict(list)
    for item in rows:
        by_kind[item.kind].append(item)
    result = Table(title="steps of other plans over ours, ours above its bound, and what the search took")
    for name in ("workers", "jobs", "figure", "median", "least", "most"):
        result.add_column(name, justify="left" if name in ("workers", "figure") else "right")
    for kind, group in by_kind.items():
        figures = {
            "the best alone": ([item.over_without for item in group], ".3f"),
            "all as if the worst": ([item.over_slowest for item in group], ".3f"),
            "gap": ([item.gap for item in group], ".1%"),
            "search, s": ([item.search_seconds for item in group], ".2f"),
        }
        for place, (name, (values, form)) in enumerate(figures.items()):
            first = (kind, str(len(group))) if not place else ("", "")
            result.add_row(*first, name, *(f"{pick(values):{form}}" for pick in (median, min, max)))
    return result


if __name__ == "__main__":
    main()
