"""Large jobs with many numbers of pipelines to choose from: what plans cost, and what searching all numbers would gain.

Every call is cold: it gets a snapshot of its own and keeps nothing.

Run: python -m benchmarks.large_jobs [--most-workers 2048] [--model llama3-405b.h100-80g-tp8] [--schedule auto] [--exhaustive]
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from unittest.mock import patch

from rich.console import Console

from benchmarks.running import LiveTable
from benchmarks.scaling import timed
from kintsugi.core import codec
from kintsugi.core.cluster import Cluster
from kintsugi.core.decision import Decision
from kintsugi.core.job import JobSettings, Snapshot
from kintsugi.core.plan import Plan, Schedule
from kintsugi.core.profile import Profile
from planner.arranging import search

FOLDER = Path(__file__).parent.parent / "profiles" / "models"
JOBS = {
    "gpt2-medium.a100-80g": ((2048, 819), (2048, 4096)),
    "llama2-7b.h100-80g": ((250, 1000), (777, 3108), (1024, 2048), (2048, 819), (2048, 4096), (2048, 8192)),
    "llama3-405b.h100-80g-tp8": ((250, 500), (512, 1024), (1024, 2048), (2048, 4096)),
}
"""Workers and micro-batches of the jobs of a model."""


def jobs(models: Sequence[str], most_workers: int, schedule: Schedule) -> Iterator[tuple[str, Profile, int, JobSettings]]:
    """Model, workers and settings."""
    for model in models:
        profile = codec.load(Profile, FOLDER / f"{model}.json")
        for workers, count in JOBS[model]:
            if workers <= most_workers:
                yield model, profile, workers, JobSettings(num_microbatches=count, schedule=schedule)


def snapshot(profile: Profile, num_workers: int, settings: JobSettings, *, plan: Plan | None = None) -> Snapshot:
    """The job before its first plan, or with its first worker lost."""
    cluster = Cluster.uniform(num_workers)
    return Snapshot(
        profile=profile,
        cluster=cluster,
        settings=settings,
        plan=plan,
        alive=tuple(worker.id for worker in cluster.workers[plan is not None :]),
        generation=0 if plan is None else plan.generation + 1,
    )


def exhaustive(profile: Profile, num_workers: int, settings: JobSettings) -> tuple[float, Decision]:
    """Seconds and plan where the search goes on to every number of pipelines that could win."""
    with patch.object(search, "MOST_PURSUED", num_workers):
        return timed(snapshot(profile, num_workers, settings))


def main() -> None:
    """Print the table, a row as soon as it is known."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--most-workers", type=int, default=2048)
    arguments.add_argument("--model", choices=JOBS, action="append", help="these alone")
    arguments.add_argument("--schedule", choices=[schedule.value for schedule in Schedule], default="1f1b")
    arguments.add_argument("--exhaustive", action="store_true", help="search every number of pipelines, too")
    options = arguments.parse_args()
    result = LiveTable(title=f"equal workers alone on their hosts, schedule {options.schedule}; CPU time of cold calls")
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
    schedule = Schedule(options.schedule)
    warm = JobSettings(num_microbatches=16, schedule=schedule)
    timed(snapshot(codec.load(Profile, FOLDER / "gpt2-medium.a100-80g.json"), 8, warm))
    for model, profile, workers, settings in jobs(options.model or list(JOBS), options.most_workers, schedule):
        seconds, first = timed(snapshot(profile, workers, settings))
        later, _ = timed(snapshot(profile, workers, settings, plan=first.plan))
        step = first.estimate.iteration_seconds
        row = [
            model,
            f"{workers:,}",
            f"{settings.num_microbatches:,}",
            f"{seconds:.2f} s",
            f"{later:.2f} s",
            f"{step:.4f} s",
            f"{first.search.gap_ratio:.2%}",
        ]
        if options.exhaustive:
            longer, best = exhaustive(profile, workers, settings)
            row += [f"{longer / seconds:.1f} x", f"{best.estimate.iteration_seconds / step - 1:+.2%}"]
        result.add_row(*row)
    Console(width=140).print(result)


if __name__ == "__main__":
    main()
