"""Large jobs with many numbers of pipelines to choose from: what plans cost, and what searching all numbers would gain.

Every call is cold: it gets a snapshot of its own and keeps nothing.

Run: python -m benchmarks.large_jobs [--most-workers 2048] [--exhaustive]
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

from rich.console import Console

from benchmarks.running import LiveTable
from benchmarks.scaling import timed
from kintsugi.core import codec
from kintsugi.core.cluster import Cluster
from kintsugi.core.decision import Decision
from kintsugi.core.job import JobSettings, Snapshot
from kintsugi.core.plan import Plan
from kintsugi.core.profile import Profile
from planner.arranging import search

FOLDER = Path(__file__).parent.parent / "profiles" / "models"
JOBS = {
    "gpt2-medium.a100-80g": ((2048, 819), (2048, 4096)),
    "llama2-7b.h100-80g": ((250, 1000), (777, 3108), (1024, 2048), (2048, 819), (2048, 4096), (2048, 8192)),
    "llama3-405b.h100-80g-tp8": ((250, 500), (512, 1024), (1024, 2048), (2048, 4096)),
}
"""Workers and micro-batches of the jobs of a model."""


def jobs(most_workers: int) -> Iterator[tuple[str, Profile, int, int]]:
    """Model, workers and micro-batches."""
    for model, sizes in JOBS.items():
        profile = codec.load(Profile, FOLDER / f"{model}.json")
        yield from ((model, profile, workers, count) for workers, count in sizes if workers <= most_workers)


def snapshot(profile: Profile, num_workers: int, num_microbatches: int, *, plan: Plan | None = None) -> Snapshot:
    """The job before its first plan, or with its first worker lost."""
    cluster = Cluster.uniform(num_workers)
    return Snapshot(
        profile=profile,
        cluster=cluster,
        settings=JobSettings(num_microbatches=num_microbatches),
        plan=plan,
        alive=tuple(worker.id for worker in cluster.workers[plan is not None :]),
        generation=0 if plan is None else plan.generation + 1,
    )


def exhaustive(profile: Profile, num_workers: int, num_microbatches: int) -> tuple[float, Decision]:
    """Seconds and plan where the search goes on to every number of pipelines that could win."""
    with patch.object(search, "MOST_PURSUED", num_workers):
        return timed(snapshot(profile, num_workers, num_microbatches))


def main() -> None:
    """Print the table, a row as soon as it is known."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--most-workers", type=int, default=2048)
    arguments.add_argument("--exhaustive", action="store_true", help="search every number of pipelines, too")
    options = arguments.parse_args()
    result = LiveTable(title="equal workers alone on their hosts, all defaults; CPU time of cold calls")
    for name in (
        "model",
        "workers",
        "micro-batches",
        "first plan",
        "after a loss",
        "step",
        "gap",
        "every number: time",
        "and step",
    ):
        result.add_column(name, justify="left" if name == "model" else "right")
    timed(snapshot(codec.load(Profile, FOLDER / "gpt2-medium.a100-80g.json"), 8, 16))
    for model, profile, workers, count in jobs(options.most_workers):
        seconds, first = timed(snapshot(profile, workers, count))
        later, _ = timed(snapshot(profile, workers, count, plan=first.plan))
        step = first.estimate.iteration_seconds
        row = [
            model,
            f"{workers:,}",
            f"{count:,}",
            f"{seconds:.2f} s",
            f"{later:.2f} s",
            f"{step:.4f} s",
            f"{first.search.gap_ratio:.2%}",
        ]
        if options.exhaustive:
            longer, best = exhaustive(profile, workers, count)
            row += [f"{longer / seconds:.1f} x", f"{best.estimate.iteration_seconds / step - 1:+.2%}"]
        result.add_row(*row)
    Console(width=140).print(result)


if __name__ == "__main__":
    main()
