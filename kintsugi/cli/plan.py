"""`kintsugi plan`: the fault-free plan of a job."""

from pathlib import Path
from typing import Annotated

import typer

from kintsugi.cli.deciding import decide
from kintsugi.cli.output import Format, plan_document, print_decision, print_json
from kintsugi.core import checks, codec
from kintsugi.core.cluster import MOST_WORKERS, Cluster
from kintsugi.core.errors import InvalidInputError, told_as
from kintsugi.core.job import JobSettings, Ranges, Snapshot
from kintsugi.core.plan import Schedule
from kintsugi.core.profile import Profile

ProfileFile = Annotated[Path, typer.Option("--profile", help="Profile of the model on the device (JSON).")]
ClusterFile = Annotated[Path | None, typer.Option("--cluster", help="The workers and their links (JSON).")]
Microbatches = Annotated[int, typer.Option("--num-microbatches", help="Micro-batches per step over all pipelines.")]
WorkersPerHost = Annotated[int, typer.Option("--workers-per-host", help="Workers that share a host.")]
MinDp = Annotated[int, typer.Option("--min-dp", help="Fewest pipelines.")]
MaxDp = Annotated[int | None, typer.Option("--max-dp", help="Most pipelines; all workers by default.")]
MinPp = Annotated[int, typer.Option("--min-pp", help="Fewest workers of a pipeline.")]
MaxPp = Annotated[
    int | None, typer.Option("--max-pp", help="Most workers of a pipeline; as many as workers and layers by default.")
]
ScheduleName = Annotated[
    Schedule,
    typer.Option("--schedule", help="Order of passes within a pipeline; interleaved ones have several stages on each worker."),
]
OutputFormat = Annotated[Format, typer.Option("--format", help="A table for people or one JSON document.")]

AS_OPTIONS = {"settings.num_microbatches": "num_microbatches"}
"""What a snapshot refuses, as whoever gave the options knows it."""


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("plan", help="The best plan for a job, from its profile and its workers.")(plan)


def plan(
    *,
    profile: ProfileFile,
    num_microbatches: Microbatches,
    workers: Annotated[int | None, typer.Option("--workers", help=f"Number of equal workers, at most {MOST_WORKERS:,}.")] = None,
    workers_per_host: WorkersPerHost = 1,
    cluster: ClusterFile = None,
    min_dp: MinDp = 1,
    max_dp: MaxDp = None,
    min_pp: MinPp = 1,
    max_pp: MaxPp = None,
    schedule: ScheduleName = Schedule.ONE_F_ONE_B,
    format: OutputFormat = Format.TABLE,  # noqa: A002  # the option's name
) -> None:
    """The best plan for a job, from its profile and its workers."""
    ranges = Ranges(min_dp=min_dp, max_dp=max_dp, min_pp=min_pp, max_pp=max_pp)
    settings = JobSettings(num_microbatches=num_microbatches, ranges=ranges, schedule=schedule)
    decision = decide(first_snapshot(load_profile(profile), cluster_of(workers, workers_per_host, cluster), settings))
    if format is Format.JSON:
        print_json(plan_document(decision))
    else:
        print_decision(decision)


def load_profile(path: Path) -> Profile:
    """Read a profile; an error names the field."""
    return codec.load(Profile, path, named="--profile")


def load_cluster(path: Path) -> Cluster:
    """Read a cluster; an error names the field."""
    return codec.load(Cluster, path, named="--cluster")


def cluster_of(workers: int | None, workers_per_host: int, path: Path | None) -> Cluster:
    """The cluster of a file, or of equal workers.

    Raises:
        InvalidInputError: neither or both are given, or no worker at all, or workers per host beside a file.
    """
    if (workers is None) == (path is None):
        raise InvalidInputError("give either --workers or --cluster", field="workers", value=workers)
    if path is not None:
        refuse_beside_cluster(workers_per_host, path)
        return load_cluster(path)
    assert workers is not None
    checks.count("workers", workers)
    require_few("workers", workers)
    return Cluster.uniform(workers, workers_per_host=workers_per_host)


def require_few(field: str, num_workers: int, value: object = None) -> None:
    """A job has so many workers at most that it can be planned for; `value` is told where it is not their number.

    Raises:
        InvalidInputError: they are more.
    """
    if num_workers > MOST_WORKERS:
        message = f"makes {num_workers:,} workers in all; {MOST_WORKERS:,} are the most of one job"
        raise InvalidInputError(message, field=field, value=num_workers if value is None else value)


def refuse_beside_cluster(workers_per_host: int, cluster: Path | None) -> None:
    """A cluster's file says itself who shares a host.

    Raises:
        InvalidInputError: it is said beside it.
    """
    if cluster is not None and workers_per_host != 1:
        message = "contradicts --cluster, whose file says each worker's host; leave one of them out"
        raise InvalidInputError(message, field="workers_per_host", value=workers_per_host)


def first_snapshot(profile: Profile, cluster: Cluster, settings: JobSettings) -> Snapshot:
    """A job before its first plan, with all workers alive."""
    alive = tuple(worker.id for worker in cluster.workers)
    with told_as(AS_OPTIONS):
        return Snapshot(profile=profile, cluster=cluster, settings=settings, plan=None, alive=alive, generation=0)
