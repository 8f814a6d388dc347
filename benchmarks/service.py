"""Event to plan: a real service process on SQLite, asked over loopback, every event durable before its answer.

    python -m benchmarks.service [--workers 8 64] [--events 6]

Workers fail and return in turn. Failures are answered from the plans made ahead (each waits until these are made, as a
failure after hours of training would find them: some 40 s of processor time at 256 workers), returns by a fresh search; every
other answer is told in full, the rest brief, as a trainer asks for it. Prints percentiles of the time from an event to its
decoded plan, how much of it the client's processor works (whose median others on the machine hardly move), and how long the
same disk takes for one fsync: no event is answered faster than that.
"""

import argparse
import os
import statistics
import time
from pathlib import Path

import httpx2
from rich.console import Console

from benchmarks.arguments import at_least
from benchmarks.running import LiveTable, scratch, tell
from kintsugi.client import Client
from kintsugi.core.cluster import worker_name
from kintsugi.core.job import JobSettings, Ranges
from kintsugi.core.membership import Event, EventKind
from kintsugi.core.messages import Report, ReportStatus
from tests.builders import uniform_profile
from tests.processes import service

NUM_LAYERS = 80
MICROBATCHES_PER_WORKER = 4
WARMUP_EVENTS = 2
ANSWERED = {EventKind.WORKER_FAILED: "from plans made ahead", EventKind.WORKER_JOINED: "by a fresh search"}
PATIENCE_SECONDS = 600.0
QUIET = ("--log-level", "warning")
"""Nobody reads what the service logs: a pipe full of it would stop the service."""

Times = dict[tuple[EventKind, bool], list[tuple[float, float]]]
"""Seconds from each event to its plan and how many of them its client works, by kind and whether brief. Shapes [events / 2]."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=at_least(8), nargs="+", default=[8, 64])
    parser.add_argument("--events", type=at_least(4), default=6, help="failures, and as many returns; half of each told in full")
    arguments = parser.parse_args()
    os.environ["KINTSUGI_PAIR_WORK"] = "0"  # single losses alone: each failure waits for all of them
    columns = ("workers", "answered", "told", "events", "p50 ms", "p95 ms", "p99 ms", "client works ms")
    table = LiveTable(*columns, title="event to plan")
    with scratch(Path.cwd()) as folder, service(folder / "bench.sqlite3", *QUIET) as process:
        pace = fsync_seconds(folder)
        for workers in arguments.workers:
            with Client(process.url) as client:
                latencies = event_seconds(client, process.url, workers, arguments.events)
            for (kind, brief), pairs in latencies.items():
                seconds, worked = zip(*pairs, strict=True)
                points = statistics.quantiles(seconds, n=100, method="inclusive")
                figures = (f"{figure * 1e3:.1f}" for figure in (*(points[p - 1] for p in (50, 95, 99)), statistics.median(worked)))
                table.add_row(str(workers), ANSWERED[kind], "brief" if brief else "full", str(len(pairs)), *figures)
        made, searched = (metric(process.url, f'kintsugi_contingencies_total{{found="{found}"}}') for found in ("true", "false"))
    console = Console()
    console.print(table)
    console.print(f"found among the plans made ahead: {made:.0f}; searched: {searched:.0f}")
    console.print(f"one fsync on this disk: {pace * 1e3:.2f} ms ({1 / pace:.0f} per second)")


def event_seconds(client: Client, url: str, workers: int, num_events: int) -> Times:
    """How long each event takes, and how long this thread works for it."""
    job = f"bench-{workers}"
    settings = JobSettings(
        num_microbatches=MICROBATCHES_PER_WORKER * workers, ranges=Ranges(min_pp=min(4, workers), max_pp=min(16, workers))
    )
    client.create_job(job=job, profile=uniform_profile(NUM_LAYERS), workers=workers, settings=settings)
    latencies: Times = {(kind, brief): [] for kind in ANSWERED for brief in (True, False)}
    generation = 0
    for number in range(2 * (WARMUP_EVENTS + num_events)):
        kind, brief = list(ANSWERED)[number % 2], number // 2 % 2 == 0
        if kind is EventKind.WORKER_FAILED:
            tell(f"{workers} workers", f"failure {number // 2 + 1} of {WARMUP_EVENTS + num_events}: waits for the plans made ahead")
            wait_for_plans_ahead(url)
        event = Event(kind=kind, id=f"e{number}", generation=generation, worker=worker_name(number // 2 * 7 % workers))
        start, worked = time.perf_counter(), time.thread_time()
        answer = client.post_event(job, event, brief=brief)
        latencies[kind, brief].append((time.perf_counter() - start, time.thread_time() - worked))
        generation = answer.generation
        client.report(job, Report(generation=generation, status=ReportStatus.APPLIED))
    return {key: pairs[WARMUP_EVENTS // 2 :] for key, pairs in latencies.items()}


def wait_for_plans_ahead(url: str) -> None:
    """Until the plans for every single loss, and for pairs as far as they go, are made."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while metric(url, "kintsugi_pending_jobs"):
        if time.monotonic() > deadline:
            raise SystemExit(f"plans were not made ahead within {PATIENCE_SECONDS:g} s")
        time.sleep(0.02)


def metric(url: str, name: str) -> float:
    """The present value of one of the service's metrics; 0 before it counted anything."""
    lines = httpx2.get(f"{url}/metrics", timeout=PATIENCE_SECONDS).text.splitlines()
    return float(next((line.rpartition(" ")[2] for line in lines if line.startswith(f"{name} ")), 0.0))


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
