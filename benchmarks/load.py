"""A real service process under load: many jobs' events, many who wait for one plan, a restart with a long past.

    python -m benchmarks.load [--events 3000] [--pollers 1000] [--past-jobs 1000 --past-events 1000000]

Events come at a steady rate over many jobs: one worker of each is lost and comes back in turn, a plan each time. The service
is then killed, and what its next life tells is compared with what was answered: no acknowledged event may be missing. Those
who wait hold one long poll each, and are woken by one plan. The restart is from the start of the process to its first
answers. Everything is on loopback and one SQLite file, and every answer is on disk before it is told: beside the figures
stands the time that the disk takes to sync.
"""

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rich.console import Console
from rich.table import Table

from api import logs
from api.history import Entry
from api.metrics import Metrics
from api.schemas import NewJob
from api.service import Service, utc_now
from api.settings import Settings
from api.store import Store
from benchmarks.service import QUIET, fsync_seconds, metric
from kintsugi.client import Client
from kintsugi.core import codec
from kintsugi.core.cluster import worker_name
from kintsugi.core.job import JobSettings
from kintsugi.core.membership import Event, EventKind
from tests.builders import uniform_profile
from tests.processes import service

NUM_WORKERS, WORKER = 8, worker_name(7)
JOB: dict[str, Any] = {
    "profile": uniform_profile(8),
    "workers": NUM_WORKERS,
    "settings": JobSettings(num_microbatches=2 * NUM_WORKERS),
}
"""Every job: 8 equal layers, 8 workers."""
PATIENCE_SECONDS = 60.0


@dataclass(slots=True)
class Connection:
    """One HTTP connection, without all that a client library would add to the time that is measured."""

    host: str
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @classmethod
    async def to(cls, url: str) -> "Connection":
        """A connection to a service."""
        parts = urlsplit(url)
        return cls(parts.netloc, *await asyncio.open_connection(parts.hostname, parts.port))

    async def ask(self, method: str, path: str, body: str = "") -> tuple[int, bytes]:
        """Status and body of one answer."""
        head = f"{method} {path} HTTP/1.1\r\nHost: {self.host}\r\nContent-Type: application/json\r\n"
        head += f"Content-Length: {len(body)}\r\n\r\n"
        self.writer.write((head + body).encode())
        async with asyncio.timeout(PATIENCE_SECONDS):
            lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
            length = next(int(line.partition(":")[2]) for line in lines if line.startswith("content-length:"))
            return int(lines[0].split()[1]), await self.reader.readexactly(length)

    def close(self) -> None:
        """End the connection."""
        self.writer.close()


@dataclass(slots=True)
class Trainer:
    """Reports the events of one job, one after the other, and remembers what was acknowledged."""

    job: str
    connection: Connection
    generation: int = 0
    acknowledged: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    async def report(self, number: int, due: float) -> None:
        """Report event `number` of the job; its time counts from `due`, when it happened."""
        kind = (EventKind.WORKER_FAILED, EventKind.WORKER_JOINED)[number % 2]
        event = Event(kind=kind, id=f"e{number}", generation=self.generation, worker=WORKER, incarnation=number)
        status, body = await self.connection.ask("POST", f"/v1/jobs/{self.job}/events?detail=brief", codec.dumps(event))
        if status != 200:
            raise SystemExit(f"job {self.job}, event {number}: {status} {body.decode()[:500]}")
        self.seconds.append(time.perf_counter() - due)
        self.generation = json.loads(body)["generation"]
        self.acknowledged.append(event.id)

    async def train(self, start: float, period_seconds: float, num_events: int) -> None:
        """Report an event in every period from `start` on, late ones at once."""
        for number in range(num_events):
            due = start + number * period_seconds
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            await self.report(number, due)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=3_000)
    parser.add_argument("--jobs", type=int, default=50)
    parser.add_argument("--rate", type=float, default=300.0, help="events per second")
    parser.add_argument("--pollers", type=int, default=1_000)
    parser.add_argument("--past-jobs", type=int, default=1_000)
    parser.add_argument("--past-events", type=int, default=1_000_000)
    arguments = parser.parse_args()
    logs.configure(Settings(log_level="error"))
    table = Table("load", "asked", "reached", title="the service under load")
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as directory:
        pace = fsync_seconds(Path(directory))
        for row in (
            *sustained(Path(directory) / "events.sqlite3", arguments.jobs, arguments.events, arguments.rate),
            woken(Path(directory) / "waiting.sqlite3", arguments.pollers),
            restarted(Path(directory) / "past.sqlite3", arguments.past_jobs, arguments.past_events),
        ):
            table.add_row(*row)
    console = Console(width=120)
    console.print(table)
    console.print(f"one fsync on this disk: {pace * 1e3:.2f} ms ({1 / pace:.0f} per second)")


def sustained(database: Path, num_jobs: int, num_events: int, rate: float) -> list[tuple[str, str, str]]:
    """Events of many jobs at a steady rate; then the service is killed, and its next life is asked for them."""
    with service(database, *QUIET) as process:
        names = new_jobs(process.url, num_jobs)
        trainers, elapsed = asyncio.run(train(process.url, names, num_events // num_jobs, rate))
        process.kill()
    with service(database, *QUIET) as process, Client(process.url) as client:
        lost = sum(len(set(trainer.acknowledged) - logged(client, trainer.job)) for trainer in trainers)
    seconds = [second for trainer in trainers for second in trainer.seconds]
    return [
        (f"events over {num_jobs} jobs, each on disk", f"{rate:.0f}/s", f"{len(seconds) / elapsed:.0f}/s ({percentiles(seconds)})"),
        ("acknowledged events lost by a kill -9", "0", f"{lost} of {len(seconds)}"),
    ]


async def train(url: str, jobs: Sequence[str], num_events: int, rate: float) -> tuple[list[Trainer], float]:
    """Every job's trainer once all events are answered, and the seconds that it took."""
    trainers = [Trainer(job, await Connection.to(url)) for job in jobs]
    start, period = time.perf_counter(), len(jobs) / rate
    try:
        await asyncio.gather(
            *(trainer.train(start + n * period / len(jobs), period, num_events) for n, trainer in enumerate(trainers))
        )
    finally:
        for trainer in trainers:
            trainer.connection.close()
    return trainers, time.perf_counter() - start


def woken(database: Path, num_pollers: int) -> tuple[str, str, str]:
    """Time from an event to the plan's arrival at each of those who wait for it."""
    with service(database, *QUIET) as process:
        (job,) = new_jobs(process.url, 1)
        seconds = asyncio.run(wake(process.url, job, num_pollers))
    return f"{num_pollers} long polls woken by one event", "p99 250 ms", percentiles(seconds)


async def wake(url: str, job: str, num_pollers: int) -> list[float]:
    """Seconds from one event to each arrival of its plan. Shape [num_pollers]."""
    connections = [await Connection.to(url) for _ in range(num_pollers)]

    async def poll(connection: Connection) -> float:
        status, _ = await connection.ask("GET", f"/v1/jobs/{job}/plan?after_generation=0&wait_seconds=30&detail=brief")
        assert status == 200
        return time.perf_counter()

    try:
        polls = [asyncio.create_task(poll(connection)) for connection in connections]
        await asyncio.to_thread(wait_for_pollers, url, num_pollers)
        trainer, start = Trainer(job, await Connection.to(url)), time.perf_counter()
        await trainer.report(0, start)
        trainer.connection.close()
        return [arrival - start for arrival in await asyncio.gather(*polls)]
    finally:
        for connection in connections:
            connection.close()


def wait_for_pollers(url: str, num_pollers: int) -> None:
    """Until so many clients wait for a plan."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while metric(url, "kintsugi_waiting_clients") < num_pollers:
        if time.monotonic() > deadline:
            raise SystemExit(f"not all of {num_pollers} clients wait after {PATIENCE_SECONDS:g} s")
        time.sleep(0.1)


def restarted(database: Path, num_jobs: int, num_events: int) -> tuple[str, str, str]:
    """Time from the start of a service with a long past until it has answered for its first and its last job."""
    jobs = with_a_past(database, num_jobs, num_events)
    start = time.perf_counter()
    with service(database, *QUIET) as process, Client(process.url) as client:
        ready = time.perf_counter() - start
        for job in (jobs[0], jobs[-1]):
            assert len(client.events(job, limit=10).events) == 10
        answered = time.perf_counter() - start
    return f"restart with {num_jobs} jobs, {num_events} events", "3 s", f"ready {ready:.1f} s, first jobs told {answered:.1f} s"


def with_a_past(database: Path, num_jobs: int, num_events: int) -> list[str]:
    """Names of stored jobs that share one decision and have so many events, of links that came back, between them."""
    store = Store(f"sqlite:///{database}")
    store.open()
    first = Service(store, Metrics())
    first.create_job(NewJob(id="job-0", **JOB))
    stored, decision = first.state("job-0").job, store.decision("job-0", 0)
    jobs = [f"job-{n}" for n in range(num_jobs)]
    events = [
        Event(kind=EventKind.LINK_CONNECTED, id=f"e{n}", generation=0, link=("h00", "h01")) for n in range(num_events // num_jobs)
    ]
    past = [
        Entry(number=n, received_at=utc_now(), content=event, generation=0, decided=False, problem=None)
        for n, event in enumerate(events, start=1)
    ]
    for job in jobs:
        if job != stored.id:
            store.create(replace(stored, id=job), (), decision, None)
        store.append(job, past)
    store.close()
    return jobs


def new_jobs(url: str, num_jobs: int) -> list[str]:
    """Names of new jobs."""
    with Client(url) as client:
        return [client.create_job(job=f"job-{n}", **JOB).summary.id for n in range(num_jobs)]


def logged(client: Client, job: str) -> set[str]:
    """Ids of all events in a job's log."""
    pages = [client.events(job, limit=1_000)]
    while pages[-1].next_cursor is not None:
        pages.append(client.events(job, cursor=pages[-1].next_cursor, limit=1_000))
    return {record.event.id for page in pages for record in page.events}


def percentiles(seconds: Sequence[float]) -> str:
    """Median, 99th percentile and maximum, in milliseconds."""
    points = statistics.quantiles(seconds, n=100, method="inclusive")
    return f"p50 {points[49] * 1e3:.0f} ms, p99 {points[98] * 1e3:.0f} ms, most {max(seconds) * 1e3:.0f} ms"


if __name__ == "__main__":
    main()
