"""Many who wait for one plan: by long poll, and on streams."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.service import QUIET, metric
from benchmarks.traffic.connection import PATIENCE_SECONDS, Connection
from benchmarks.traffic.events import MIXES, Row, Trainer
from benchmarks.traffic.jobs import new_jobs
from benchmarks.traffic.measuring import percentiles, processor_time
from tests.processes import service

ROUNDS = 3
NUM_WORKERS = 8


def woken(folder: Path, num_pollers: int) -> Iterator[Row]:
    """Time from an event to its plan's arrival at each of those who wait."""
    with service(folder / "waiting.sqlite3", *QUIET) as process:
        ((job, _),) = new_jobs(process.url, 1, (NUM_WORKERS,))
        for name, wake in (("long polls", _wake_polls), ("streams", _wake_streams)):
            with processor_time(process.process.pid) as spent:
                seconds = asyncio.run(wake(process.url, job, num_pollers))
            figures = f"{percentiles(seconds)}; {spent.seconds / ROUNDS:.2f} s processor each time, connections included"
            yield f"{num_pollers} {name} woken by one event", "p99 250 ms", figures


async def _wake_polls(url: str, job: str, num_pollers: int) -> list[float]:
    seconds: list[float] = []
    generation = 0

    async def poll() -> float:
        connection = await Connection.to(url)
        try:
            path = f"/v1/jobs/{job}/plan?after_generation={generation}&wait_seconds=60&detail=brief"
            status, _ = await connection.ask("GET", path)
        finally:
            connection.close()
        assert status == 200, status
        return time.perf_counter()

    for generation in range(ROUNDS):
        polls = [asyncio.create_task(poll()) for _ in range(num_pollers)]
        await asyncio.to_thread(_until_waiting, url, "kintsugi_waiting_clients", num_pollers)
        seconds += await _times(url, job, generation, polls)
    return seconds


async def _wake_streams(url: str, job: str, num_pollers: int) -> list[float]:
    connections = [await Connection.to(url) for _ in range(num_pollers)]

    async def hear(connection: Connection) -> float:
        await connection.listen("plan")
        return time.perf_counter()

    seconds: list[float] = []
    try:
        path = f"/v1/jobs/{job}/stream?kinds=plan"
        await asyncio.gather(*(connection.open_stream(path) for connection in connections))
        for generation in range(ROUNDS, 2 * ROUNDS):
            heard = [asyncio.create_task(hear(connection)) for connection in connections]
            seconds += await _times(url, job, generation, heard)
        return seconds
    finally:
        for connection in connections:
            connection.close()


async def _times(url: str, job: str, generation: int, arrivals: list[asyncio.Task[float]]) -> list[float]:
    """Seconds from the event that ends `generation` to each arrival of the plan that follows."""
    connection = await Connection.to(url)
    try:
        kinds = MIXES["failures and returns"]
        trainer = Trainer(job=job, num_workers=NUM_WORKERS, kinds=kinds, connections=[connection], generation=generation)
        start = time.perf_counter()
        await trainer.report(generation, start)
        return [arrival - start for arrival in await asyncio.gather(*arrivals)]
    finally:
        connection.close()


def _until_waiting(url: str, name: str, number: int) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while metric(url, name) < number:
        if time.monotonic() > deadline:
            raise SystemExit(f"not all of {number} clients wait after {PATIENCE_SECONDS:g} s")
        time.sleep(0.1)
