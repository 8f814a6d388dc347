"""Events of many jobs at a steady rate, and whether all of them are in the logs exactly once after a kill."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.service import QUIET
from benchmarks.traffic.connection import Connection
from benchmarks.traffic.jobs import new_jobs
from benchmarks.traffic.measuring import percentiles, processor_time
from kintsugi.client import Client
from kintsugi.core import codec
from kintsugi.core.cluster import worker_name
from kintsugi.core.membership import Event, EventKind
from kintsugi.core.messages import Report, ReportStatus
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
class Told:
    """What the service acknowledged to one job."""

    job: str
    generation: int = 0
    """The latest that is known."""
    acknowledged: list[str] = field(default_factory=list)
    """Ids of events."""
    generations: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    """From each event to its answer."""


@dataclass(slots=True, kw_only=True)
class Trainer(Told):
    """Reports the events of one job, one after the other, and remembers what was acknowledged."""

    num_workers: int
    kinds: tuple[EventKind, EventKind]
    connection: Connection

    async def report(self, number: int, due: float) -> None:
        """Report event `number` of the job; its time counts from `due`, when it happened."""
        event = self.event(number)
        self.generation = await report_event(self.connection, self.job, event)
        self.seconds.append(time.perf_counter() - due)
        self.generations.append(self.generation)
        self.acknowledged.append(event.id)
        if number % 2:
            await report_applied(self.connection, self.job, self.generation)

    def event(self, number: int) -> Event:
        """Event `number`: workers take turns, each is lost (or slow) and then back."""
        kind, pair = self.kinds[number % 2], number // 2
        if kind is EventKind.LINK_CONNECTED:
            return Event(kind=kind, id=f"e{number}", generation=self.generation, link=("h00", "h01"))
        worker = worker_name((1 + 5 * pair) % self.num_workers)
        ratio = 0.5 if kind is EventKind.STRAGGLER else None
        life = number if kind is EventKind.WORKER_JOINED else 0
        return Event(kind=kind, id=f"e{number}", generation=self.generation, worker=worker, incarnation=life, speed_ratio=ratio)

    async def train(self, start: float, period_seconds: float, num_events: int) -> None:
        """Report an event in every period from `start` on, late ones at once."""
        for number in range(num_events):
            due = start + number * period_seconds
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            await self.report(number, due)


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
    """Each mix at the asked rate for so long; then the service is killed, and its next life is asked for what was acknowledged."""
    for name, kinds in MIXES.items():
        database = folder / f"{kinds[0].value}.sqlite3"
        with service(database, *QUIET) as process:
            jobs = new_jobs(process.url, num_jobs, SIZES)
            with processor_time(process.process.pid) as spent:
                trainers, elapsed = asyncio.run(_train(process.url, jobs, kinds, rate, round(rate * seconds / num_jobs)))
            process.kill()
        answered = [second for trainer in trainers for second in trainer.seconds]
        each = spent.seconds / len(answered) * 1e3
        figures = f"{len(answered) / elapsed:.0f}/s ({percentiles(answered)}; {each:.1f} ms processor each)"
        yield f"{name}, {num_jobs} jobs of {min(SIZES)} to {max(SIZES)}", f"{rate:.0f}/s", figures
        with service(database, *QUIET) as process, Client(process.url) as client:
            wrong = sum(num_wrong(client, trainer) for trainer in trainers)
        yield "  lost or doubled by a kill -9", "0", f"{wrong} of {len(answered)}"


async def _train(
    url: str, jobs: Sequence[tuple[str, int]], kinds: tuple[EventKind, EventKind], rate: float, num_events: int
) -> tuple[list[Trainer], float]:
    """Every job's trainer once all events are answered, and the seconds that it took."""
    trainers = [Trainer(job=job, num_workers=size, kinds=kinds, connection=await Connection.to(url)) for job, size in jobs]
    start, period = time.perf_counter(), len(jobs) / rate
    try:
        await asyncio.gather(
            *(trainer.train(start + n * period / len(jobs), period, num_events) for n, trainer in enumerate(trainers))
        )
    finally:
        for trainer in trainers:
            trainer.connection.close()
    return trainers, time.perf_counter() - start


def num_wrong(client: Client, trainer: Told) -> int:
    """Acknowledged events that are not in the log exactly once, and generations that no plan or several events have."""
    page, records = client.events_after(trainer.job, 0, limit=1_000), []
    while page.events:
        records += page.events
        page = client.events_after(trainer.job, records[-1].number, limit=1_000)
    seen = Counter(record.event.id for record in records)
    decided = sorted(set(trainer.generations))
    is_gapless = decided == list(range(decided[0], decided[-1] + 1))
    is_latest = client.plan(trainer.job, brief=True).generation == decided[-1]
    return sum(seen[name] != 1 for name in trainer.acknowledged) + (not is_gapless) + (not is_latest)
