"""Restart: how long a service takes until it answers again, on a database full of jobs and events.

    python -m benchmarks.restart [--jobs 1000] [--events 1000] [--starts 5]

Fills a SQLite database: one job lives through its events (a worker is lost and comes back again and again, with the decisions
that follow), the others are copies of it. Then starts `kintsugi serve` several times and prints the seconds from the start of the
process to its first `readyz`, to a job as it stands (folded from the newest stored history), and to the plan that answers an
event. The database lies in the page cache, as after a restart of the service; after one of the machine the disk counts too.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
from rich.console import Console
from rich.table import Table
from sqlalchemy import ColumnElement, Select, insert, literal, select

from api import logs
from api.metrics import Metrics
from api.schemas import NewJob
from api.service import Service
from api.settings import Settings
from api.storage.store import Store
from api.storage.tables import DECISIONS, JOBS, LOG, STATES
from benchmarks.running import scratch, tell
from kintsugi.client import Client
from kintsugi.core.job import JobSettings
from kintsugi.core.membership import Event, EventKind
from tests.builders import uniform_profile
from tests.processes import service

BATCH = 50
"""Events that are reported together and lead to one decision."""
FIRST, LOST = "job-0000", "w01"
QUIET = ("--log-level", "warning")
MOMENTS = ("ready", "a job as it stands", "a plan after an event")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1_000)
    parser.add_argument("--events", type=int, default=1_000, help="of each job")
    parser.add_argument("--starts", type=int, default=5)
    arguments = parser.parse_args()
    logs.configure(Settings(log_level="warning"))
    with scratch(Path.cwd()) as folder:
        database = folder / "restart.sqlite3"
        tell(f"fills a database with {arguments.jobs:,} jobs")
        fill(f"sqlite:///{database}", arguments.jobs, arguments.events)
        size = database.stat().st_size
        starts = []
        for number in range(arguments.starts):
            starts.append(seconds_until(database, number, arguments.jobs))
            tell(f"start {number + 1} of {arguments.starts}", *(f"{seconds:.2f} s" for seconds in starts[-1]))
    title = f"{arguments.jobs:,} jobs, {arguments.jobs * arguments.events:,} events, {size / 1e6:,.0f} MB"
    table = Table("from the start of the process to", "median s", "longest s", title=title)
    for moment, seconds in zip(MOMENTS, zip(*starts, strict=True), strict=True):
        table.add_row(moment, f"{statistics.median(seconds):.2f}", f"{max(seconds):.2f}")
    Console().print(table)


def fill(url: str, num_jobs: int, num_events: int) -> None:
    """Store so many jobs of so many events each in an empty database."""
    store = Store(url)
    try:
        store.open()
        live(Service(store, Metrics()), num_events)
        for number in range(1, num_jobs):
            copy(store, number, num_events)
    finally:
        store.close()


def live(jobs: Service, num_events: int) -> None:
    """The first job, through all its events: of each batch the last one loses a worker or takes it back."""
    settings = JobSettings(num_microbatches=16)
    jobs.create_job(NewJob(id=FIRST, profile=uniform_profile(8), workers=8, settings=settings))
    generation = 0
    for start in range(0, num_events, BATCH):
        numbers = range(start, min(start + BATCH, num_events))
        kinds = [EventKind.RECOVERED] * len(numbers)
        kinds[-1] = (EventKind.WORKER_FAILED, EventKind.WORKER_JOINED)[start // BATCH % 2]
        events = [
            Event(kind=kind, id=f"e{number}", generation=generation, worker=LOST)
            for number, kind in zip(numbers, kinds, strict=True)
        ]
        generation = jobs.post_events(FIRST, events).generation


def copy(store: Store, number: int, num_events: int) -> None:
    """Another job that had the same life as the first."""
    name = f"job-{number:04d}"
    with store.database.writing() as connection:
        for table in (JOBS, LOG, DECISIONS, STATES):
            replaced: dict[str, ColumnElement[Any]] = {"id": literal(name), "job": literal(name)}
            if "position" in table.c:
                replaced["position"] = table.c.position + number * num_events
            columns = [replaced.get(column.name, column).label(column.name) for column in table.c]
            owner = table.c.id if table is JOBS else table.c.job
            rows: Select[tuple[object, ...]] = select(*columns).where(owner == FIRST)
            connection.execute(insert(table).from_select([column.name for column in table.c], rows))


def seconds_until(database: Path, number: int, num_jobs: int) -> tuple[float, ...]:
    """Seconds from the start of a service to each of `MOMENTS`; each start asks for other jobs."""
    start = time.perf_counter()
    viewed, struck = (f"job-{(2 * number + offset) % num_jobs:04d}" for offset in (0, 1))
    with service(database, *QUIET) as process, Client(process.url) as client:

        def strike() -> None:
            generation = client.plan(struck, brief=True).generation
            client.post_event(struck, Event(kind=EventKind.WORKER_FAILED, id="lost", generation=generation, worker="w03"))

        steps: tuple[Callable[[], object], ...] = (
            lambda: httpx2.get(f"{process.url}/readyz").raise_for_status(),
            lambda: client.job(viewed),
            strike,
        )
        moments = []
        for step in steps:
            step()
            moments.append(time.perf_counter() - start)
        return tuple(moments)


if __name__ == "__main__":
    main()
