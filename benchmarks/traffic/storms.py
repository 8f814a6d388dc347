"""Bursts of events that the agents of a job tell at the same time; the job's window gives them one plan."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.service import QUIET
from benchmarks.traffic.connection import Connection
from benchmarks.traffic.events import Row, Told, num_wrong, report_applied, report_event
from benchmarks.traffic.jobs import new_jobs
from benchmarks.traffic.measuring import percentiles, processor_time
from kintsugi.client import Client
from kintsugi.core.cluster import worker_name
from kintsugi.core.handling import Handling
from kintsugi.core.membership import Event, EventKind
from tests.processes import service

SIZES = (8, 12, 16)
"""Workers of the jobs, in turn."""
NUM_OBSERVERS = 5
"""Agents that report the same loss; the worker that the burst before took is back besides."""
BURST = NUM_OBSERVERS + 1
"""Events."""
WINDOW_SECONDS = 0.5
"""The jobs' `coalesce_seconds`."""
SPREAD_SECONDS = 0.3
"""From a burst's first event to its last."""


@dataclass(slots=True, kw_only=True)
class Site(Told):
    """The agents of one job, each with a connection."""

    num_workers: int
    connections: Sequence[Connection]

    async def train(self, start: float, period_seconds: float, num_bursts: int) -> None:
        """Live through a burst in every period from `start` on, late ones at once."""
        for number in range(num_bursts):
            due = start + number * period_seconds
            events = self.burst(number)
            dues = [due + n * SPREAD_SECONDS / len(events) for n in range(len(events))]
            told = map(self._tell, self.connections, events, dues)
            self.generation = max(await asyncio.gather(*told))
            await report_applied(self.connections[0], self.job, self.generation)

    def burst(self, number: int) -> list[Event]:
        """Burst `number`: a worker is lost, and who was lost before is back; the first worker stays."""
        told = [self._event(EventKind.WORKER_FAILED, number, by) for by in range(NUM_OBSERVERS)]
        return [*told, self._event(EventKind.WORKER_JOINED, number - 1, 0)] if number else told

    def _event(self, kind: EventKind, number: int, by: int) -> Event:
        """What becomes of the worker that burst `number` takes, as agent `by` tells it."""
        worker, life = worker_name(1 + number % (self.num_workers - 1)), number // (self.num_workers - 1)
        return Event(
            kind=kind,
            id=f"{kind.value}-{number}-{by}",
            generation=self.generation,
            worker=worker,
            incarnation=life + (kind is EventKind.WORKER_JOINED),
        )

    async def _tell(self, connection: Connection, event: Event, due: float) -> int:
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        generation = await report_event(connection, self.job, event)
        self.seconds.append(time.perf_counter() - due)
        self.generations.append(generation)
        self.acknowledged.append(event.id)
        return generation


def weathered(folder: Path, num_jobs: int, rate: float, seconds: float) -> Iterator[Row]:
    """Bursts at the asked rate of events for so long; then the service is killed, and its next life is asked for them."""
    database, period = folder / "storms.sqlite3", BURST * num_jobs / rate
    with service(database, *QUIET) as process:
        jobs = new_jobs(process.url, num_jobs, SIZES, Handling(coalesce_seconds=WINDOW_SECONDS))
        with processor_time(process.process.pid) as spent:
            sites, elapsed = asyncio.run(_train(process.url, jobs, period, max(2, round(seconds / period))))
        process.kill()
    answered = [second for site in sites for second in site.seconds]
    each = spent.seconds / len(answered) * 1e3
    figures = f"{len(answered) / elapsed:.0f}/s ({percentiles(answered)}; {each:.1f} ms processor each)"
    yield f"bursts of {BURST}, one plan within {WINDOW_SECONDS} s, {num_jobs} jobs", f"{rate:.0f}/s", figures
    with service(database, *QUIET) as process, Client(process.url) as client:
        yield "  lost or doubled by a kill -9", "0", f"{sum(num_wrong(client, site) for site in sites)} of {len(answered)}"


async def _train(url: str, jobs: Sequence[tuple[str, int]], period: float, num_bursts: int) -> tuple[list[Site], float]:
    """Every job's site once all bursts are over, and the seconds that it took."""
    sites = [Site(job=job, num_workers=size, connections=[await Connection.to(url) for _ in range(BURST)]) for job, size in jobs]
    start = time.perf_counter()
    try:
        await asyncio.gather(*(site.train(start + n * period / len(jobs), period, num_bursts) for n, site in enumerate(sites)))
    finally:
        for connection in (one for site in sites for one in site.connections):
            connection.close()
    return sites, time.perf_counter() - start
