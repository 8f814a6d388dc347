"""Events of many jobs at a steady rate, and whether all of them are in the logs exactly once after a kill."""

import asyncio
import json
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from benchmarks.service import QUIET
from benchmarks.traffic.connection import Connection
from benchmarks.traffic.jobs import new_jobs
from benchmarks.traffic.measuring import percentiles, processor_time
from kintsugi.client import Client
from kintsugi.core import codec
from kintsugi.core.cluster import worker_name
from kintsugi.core.handling import Handling
from kintsugi.core.membership import Event, EventKind
from kintsugi.core.messages import EventRecord, Report, ReportStatus
from tests.processes import service

SIZES = (8, 12, 16)
"""Workers of the jobs, in turn."""
MIXES = {
    "failures and returns": (EventKind.WORKER_FAILED, EventKind.WORKER_JOINED),
    "stragglers and recoveries": (EventKind.STRAGGLER, EventKind.RECOVERED),
    "links measured": (EventKind.LINK_CONNECTED, EventKind.LINK_CONNECTED),
}
"""Pairs of events that take turns; every one of the first two mixes calls for a new plan."""

Row = tuple[str, str, str]


@dataclass(slots=True, kw_only=True)
class Told(ABC):
    """Whoever reports the events of one job, and what the service acknowledged."""

    job: str
    num_workers: int
    connections: Sequence[Connection]
    generation: int = 0
    """The latest that is known."""
    acknowledged: list[str] = field(default_factory=list)
    """Ids of events."""
    generations: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    """From each event to its answer."""

    @abstractmethod
    async def train(self, start: float, period_seconds: float, num_periods: int) -> None:
        """Report what happens in every period from `start` on, late ones at once."""

    async def tell(self, connection: Connection, event: Event, due: float) -> int:
        """Report an event that happens at `due`, from which its time counts; the generation that answers it."""
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        generation = await report_event(connection, self.job, event)
        self.seconds.append(time.perf_counter() - due)
        self.generations.append(generation)
        self.acknowledged.append(event.id)
        return generation


@dataclass(slots=True, kw_only=True)
class Trainer(Told):
    """Reports the events of one job, one after the other."""

    kinds: tuple[EventKind, EventKind]

    async def report(self, number: int, due: float) -> None:
        """Report event `number` of the job, which happens at `due`."""
        (connection,) = self.connections
        self.generation = await self.tell(connection, self.event(number), due)
        if number % 2:
            await report_applied(connection, self.job, self.generation)

    def event(self, number: int) -> Event:
        """Event `number`: workers take turns, each is lost (or slow) and then back."""
        kind, pair = self.kinds[number % 2], number // 2
        if kind is EventKind.LINK_CONNECTED:
            return Event(kind=kind, id=f"e{number}", generation=self.generation, link=("h00", "h01"))
        worker = worker_name((1 + 5 * pair) % self.num_workers)
        ratio = 0.5 if kind is EventKind.STRAGGLER else None
        life = number if kind is EventKind.WORKER_JOINED else 0
        return Event(kind=kind, id=f"e{number}", generation=self.generation, worker=worker, incarnation=life, speed_ratio=ratio)

    async def train(self, start: float, period_seconds: float, num_periods: int) -> None:
        """Report an event in every period from `start` on, late ones at once."""
        for number in range(num_periods):
            await self.report(number, start + number * period_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Events of many jobs at a steady rate."""

    name: str
    database: Path
    num_jobs: int
    events_per_second: float
    num_periods: int
    """How often something happens to each job."""
    events_per_period: int = 1
    """Of one job, each told over a connection of its own."""
    handling: Handling | None = None
    teller: Callable[..., Told]
    """Begins to report for a job; takes `job`, `num_workers` and `connections`."""

    @property
    def period_seconds(self) -> float:
        """From one to the next of a job."""
        return self.num_jobs * self.events_per_period / self.events_per_second


async def report_event(connection: Connection, job: str, event: Event) -> int:
    """Report an event, again where others were first; the generation of the plan that answers it."""
    path = f"/v1/jobs/{job}/events?detail=brief&wait_seconds=30"
    while True:
        status, body = await connection.ask("POST", path, codec.dumps(event))
        document = json.loads(body)
        if status == 200:
            generation: int = document["generation"]
            return generation
        if document.get("error", {}).get("code") != "stale_generation":
            raise SystemExit(f"job {job}, event {event.id}: {status} {body.decode()[:500]}")
        event = replace(event, generation=document["current_generation"])


async def report_applied(connection: Connection, job: str, generation: int) -> None:
    """Report that a plan was carried out: whoever came back holds state again, and may lose it again."""
    report = Report(generation=generation, status=ReportStatus.APPLIED)
    status, body = await connection.ask("POST", f"/v1/jobs/{job}/reports", codec.dumps(report))
    if status != 201:
        raise SystemExit(f"job {job}, plan {generation}: {status} {body.decode()[:500]}")


def sustained(folder: Path, num_jobs: int, rate: float, seconds: float) -> Iterator[Row]:
    """Each mix at the asked rate for so long, and what a kill leaves of it."""
    for name, kinds in MIXES.items():
        yield from survived(
            Load(
                name=f"{name}, {num_jobs} jobs of {min(SIZES)} to {max(SIZES)}",
                database=folder / f"{kinds[0].value}.sqlite3",
                num_jobs=num_jobs,
                events_per_second=rate,
                num_periods=round(rate * seconds / num_jobs),
                teller=partial(Trainer, kinds=kinds),
            )
        )


def survived(load: Load) -> Iterator[Row]:
    """What the load came to; then the service is killed, and its next life is asked for what was acknowledged."""
    with service(load.database, *QUIET) as process:
        jobs = new_jobs(process.url, load.num_jobs, SIZES, load.handling)
        with processor_time(process.process.pid) as spent:
            tellers, elapsed = asyncio.run(_told(process.url, jobs, load))
        process.kill()
    answered = [second for teller in tellers for second in teller.seconds]
    each = spent.seconds / len(answered) * 1e3
    figures = f"{len(answered) / elapsed:.0f}/s ({percentiles(answered)}; {each:.1f} ms processor each)"
    yield load.name, f"{load.events_per_second:.0f}/s", figures
    with service(load.database, *QUIET) as process, Client(process.url) as client:
        wrong = sum(num_wrong(client, teller) for teller in tellers)
    yield "  lost or doubled by a kill -9", "0", f"{wrong} of {len(answered)}"


async def _told(url: str, jobs: Sequence[tuple[str, int]], load: Load) -> tuple[list[Told], float]:
    """Whoever reported for each job once all events are answered, and the seconds that it took."""
    tellers = []
    for job, size in jobs:
        connections = [await Connection.to(url) for _ in range(load.events_per_period)]
        tellers.append(load.teller(job=job, num_workers=size, connections=connections))
    start, period = time.perf_counter(), load.period_seconds
    starts = [start + n * period / len(jobs) for n in range(len(jobs))]
    try:
        await asyncio.gather(*(teller.train(own, period, load.num_periods) for teller, own in zip(tellers, starts, strict=True)))
    finally:
        for connection in (one for teller in tellers for one in teller.connections):
            connection.close()
    return tellers, time.perf_counter() - start


def num_wrong(client: Client, trainer: Told) -> int:
    """Acknowledged events that are not in the log exactly once, and generations that no plan or several events have."""
    page = client.events_after(trainer.job, 0, limit=1_000)
    records: list[EventRecord] = []
    while page.events:
        records += page.events
        page = client.events_after(trainer.job, records[-1].number, limit=1_000)
    seen = Counter(record.event.id for record in records)
    decided = sorted(set(trainer.generations))
    is_gapless = decided == list(range(decided[0], decided[-1] + 1))
    is_latest = client.plan(trainer.job, brief=True).generation == decided[-1]
    return sum(seen[name] != 1 for name in trainer.acknowledged) + (not is_gapless) + (not is_latest)
