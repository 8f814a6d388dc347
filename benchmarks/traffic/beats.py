"""Heartbeats of many workers, in batches by host."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.service import QUIET, metric
from benchmarks.traffic.connection import Connection
from benchmarks.traffic.events import Row
from benchmarks.traffic.jobs import job
from benchmarks.traffic.measuring import percentiles, processor_time
from kintsugi.client import Client
from kintsugi.core import codec
from kintsugi.core.cluster import Cluster
from kintsugi.core.heartbeats import Heartbeats
from tests.processes import service

WORKERS_PER_HOST, WORKERS_PER_JOB = 8, 200
PERIOD_SECONDS, TIMEOUT_SECONDS = 2.0, 60.0
NUM_CONNECTIONS = 64


def heard(folder: Path, num_workers: int, seconds: float) -> Iterator[Row]:
    """The service's processor time, as a share of one core, while every host sends a heartbeat every two seconds."""
    num_jobs = max(1, num_workers // WORKERS_PER_JOB)
    with service(folder / "beats.sqlite3", *QUIET) as process:
        size = num_workers // num_jobs
        request = {**job(size, heartbeat_timeout_seconds=TIMEOUT_SECONDS), "workers_per_host": WORKERS_PER_HOST}
        with Client(process.url) as client:
            names = [client.create_job(job=f"job-{n}", **request).summary.id for n in range(num_jobs)]
        beats = [(name, body) for name in names for body in _bodies(size)]
        asyncio.run(_send(process.url, beats, PERIOD_SECONDS))
        with processor_time(process.process.pid) as spent:
            answers, elapsed = asyncio.run(_send(process.url, beats, seconds))
        watched = metric(process.url, "kintsugi_watched_workers")
        lost = sum(len(client_events(process.url, name)) for name in names)
    each, rate = spent.seconds / len(answers), len(beats) / PERIOD_SECONDS
    pace = f"{len(answers) / elapsed:.0f} of {rate:.0f}/s, {percentiles(answers)}"
    figures = f"{each * rate:.2f} cores at that rate ({each * 1e3:.2f} ms a batch; {pace})"
    yield f"{watched:.0f} workers' heartbeats every {PERIOD_SECONDS:g} s", "0.5 cores", figures
    yield "  workers falsely declared lost", "0", str(lost)


def client_events(url: str, name: str) -> Sequence[object]:
    """Events of a job's log."""
    with Client(url) as client:
        return client.events(name).events


def _bodies(num_workers: int) -> list[str]:
    """One heartbeat of every host."""
    cluster = Cluster.uniform(num_workers, workers_per_host=WORKERS_PER_HOST)
    return [
        codec.dumps(Heartbeats(host=host, workers=cluster.workers_on(host), observed_at="2026-01-31T12:00:00Z", step=100))
        for host in cluster.hosts
    ]


async def _send(url: str, beats: Sequence[tuple[str, str]], seconds: float) -> tuple[list[float], float]:
    """Seconds to each answer, beats spread evenly over every period, and the seconds that all took."""
    connections = [await Connection.to(url) for _ in range(NUM_CONNECTIONS)]
    start, answers = time.perf_counter(), list[float]()

    async def carry(index: int) -> None:
        for round_ in range(max(1, round(seconds / PERIOD_SECONDS))):
            for at in range(index, len(beats), NUM_CONNECTIONS):
                due = start + (round_ + at / len(beats)) * PERIOD_SECONDS
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
                name, body = beats[at]
                status, text = await connections[index].ask("POST", f"/v1/jobs/{name}/heartbeats", body)
                assert status == 200, text
                answers.append(time.perf_counter() - due)

    try:
        await asyncio.gather(*(carry(index) for index in range(NUM_CONNECTIONS)))
    finally:
        for connection in connections:
            connection.close()
    return answers, time.perf_counter() - start
