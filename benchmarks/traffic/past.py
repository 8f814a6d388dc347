"""A service with a long past, started again."""

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from api import logs
from api.jobs.history import Entry
from api.metrics import Metrics
from api.schemas import NewJob
from api.service import Service, utc_now
from api.settings import Settings
from api.storage.continuity import Head
from api.storage.store import Store
from benchmarks.service import QUIET
from benchmarks.traffic.events import Row
from benchmarks.traffic.jobs import job
from kintsugi.client import Client
from kintsugi.core.membership import Event, EventKind
from tests.processes import service

NUM_WORKERS = 8


def restarted(folder: Path, num_jobs: int, num_events: int) -> Iterator[Row]:
    """Time from the start of a service with a long past until it has answered for its first and its last job."""
    database = folder / "past.sqlite3"
    jobs = with_a_past(database, num_jobs, num_events)
    start = time.perf_counter()
    with service(database, *QUIET) as process, Client(process.url) as client:
        ready = time.perf_counter() - start
        for name in (jobs[0], jobs[-1]):
            assert len(client.events(name, limit=10).events) == 10
        answered = time.perf_counter() - start
    yield f"restart with {num_jobs} jobs, {num_events} events", "3 s", f"ready {ready:.1f} s, first jobs told {answered:.1f} s"


def with_a_past(database: Path, num_jobs: int, num_events: int) -> list[str]:
    """Names of stored jobs that share one decision and have so many events, of links that came back, between them."""
    logs.configure(Settings(log_level="error"))
    store = Store(f"sqlite:///{database}")
    store.open()
    first = Service(store, Metrics())
    first.create_job(NewJob(id="job-0", **job(NUM_WORKERS)))
    stored, decision = first.state("job-0").job, store.decision("job-0", 0)
    jobs = [f"job-{n}" for n in range(num_jobs)]
    events = [
        Event(kind=EventKind.LINK_CONNECTED, id=f"e{n}", generation=0, link=("h00", "h01")) for n in range(num_events // num_jobs)
    ]
    past = [
        Entry(number=n, received_at=utc_now(), content=event, generation=0, decided=False, problem=None)
        for n, event in enumerate(events, start=1)
    ]
    for name in jobs:
        if name != stored.id:
            store.create(replace(stored, id=name), (), decision, None)
        store.append(name, Head(number=0, at=stored.created_at), past)
    store.close()
    return jobs
