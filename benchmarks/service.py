"""Event to plan: a real service process on SQLite, asked over loopback, every event durable before its answer.

    python -m benchmarks.service [--workers 8 64 256] [--events 100]

Workers fail and return in turn. Prints percentiles of the time from an event to its decoded plan, the part of it that is
planning, and beside them how long the same disk takes for one fsync: an event cannot be answered faster than that.
"""

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

import httpx2
from rich.console import Console
from rich.table import Table

from kintsugi.client import Client
from kintsugi.core.cluster import worker_name
from kintsugi.core.job import JobSettings, Ranges
from kintsugi.core.membership import Event, EventKind
from kintsugi.core.messages import Report, ReportStatus
from tests.builders import uniform_profile
from tests.processes import service

NUM_LAYERS = 80
MICROBATCHES_PER_WORKER = 4
WARMUP_EVENTS = 4


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, nargs="+", default=[8, 64, 256])
    parser.add_argument("--events", type=int, default=100)
    arguments = parser.parse_args()
    table = Table("workers", "events", "p50 ms", "p95 ms", "p99 ms", "planning ms (mean)", title="event to plan")
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as directory, service(Path(directory) / "bench.sqlite3") as process:
        pace = fsync_seconds(Path(directory))
        for workers in arguments.workers:
            planning_before = planning_of(process.url)
            with Client(process.url) as client:
                latencies = event_seconds(client, workers, arguments.events)
            seconds, decisions = (b - a for a, b in zip(planning_before, planning_of(process.url), strict=True))
            points = statistics.quantiles(latencies, n=100, method="inclusive")
            cells = [f"{points[percent - 1] * 1e3:.1f}" for percent in (50, 95, 99)]
            table.add_row(str(workers), str(len(latencies)), *cells, f"{seconds / decisions * 1e3:.1f}")
    console = Console()
    console.print(table)
    console.print(f"one fsync on this disk: {pace * 1e3:.2f} ms ({1 / pace:.0f} per second)")


def event_seconds(client: Client, workers: int, num_events: int) -> list[float]:
    """Time from each event to its plan, in seconds. Shape [events]."""
    job = f"bench-{workers}"
    settings = JobSettings(
        num_microbatches=MICROBATCHES_PER_WORKER * workers, ranges=Ranges(min_pp=min(4, workers), max_pp=min(16, workers))
    )
    client.create_job(job=job, profile=uniform_profile(NUM_LAYERS), workers=workers, settings=settings)
    latencies, generation = [], 0
    for number in range(WARMUP_EVENTS + num_events):
        kind = (EventKind.WORKER_FAILED, EventKind.WORKER_JOINED)[number % 2]
        worker = worker_name(number // 2 * 7 % workers)
        start = time.perf_counter()
        answer = client.post_event(job, Event(kind=kind, id=f"e{number}", generation=generation, worker=worker))
        latencies.append(time.perf_counter() - start)
        generation = answer.generation
        client.report(job, Report(generation=generation, status=ReportStatus.APPLIED))
    return latencies[WARMUP_EVENTS:]


def planning_of(url: str) -> tuple[float, float]:
    """Seconds that the service spent on planning, and the number of decisions, both since its start."""
    metrics = dict(line.rsplit(" ", 1) for line in httpx2.get(f"{url}/metrics").text.splitlines() if not line.startswith("#"))
    return float(metrics["kintsugi_planning_seconds_sum"]), float(metrics["kintsugi_planning_seconds_count"])


def fsync_seconds(directory: Path, repeats: int = 200) -> float:
    """Median time of appending 4 KiB to a file and syncing it, in seconds."""
    times = []
    with (directory / "pace").open("wb", buffering=0) as file:
        for _ in range(repeats):
            start = time.perf_counter()
            file.write(bytes(4096))
            os.fsync(file.fileno())
            times.append(time.perf_counter() - start)
    return statistics.median(times)


if __name__ == "__main__":
    main()
