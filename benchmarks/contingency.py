"""Time to answer a loss: from the plans made ahead, and by a fresh search.

    python -m benchmarks.contingency [--workers 32 64 256] [--answers 50]

80 equal layers, 4 micro-batches a worker, PP 4-16. An answer from the contingencies is the fingerprint of the snapshot and
the decision's JSON read from a SQLite file, as the service tells it; a fresh one is the search and its JSON. The
fingerprint finds the parts that all snapshots share as it does in a running service: digested before.
"""

import argparse
import statistics
import time

from rich.console import Console

from api import logs
from api.metrics import Metrics
from api.schemas import NewJob
from api.service import Service
from api.settings import Settings
from api.storage.shelf import Decided, Shelf
from api.storage.store import Store
from benchmarks.running import LiveTable, scratch
from kintsugi.core.job import JobSettings, Ranges, Snapshot
from planner.contingency import after, fingerprint, losses
from planner.replan import replan
from tests.builders import uniform_profile

NUM_LAYERS, MICROBATCHES_PER_WORKER = 80, 4
FRESH_SEARCHES = 5
ASKED_SECONDS = 0.005


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, nargs="+", default=[32, 64, 256])
    parser.add_argument("--answers", type=int, default=50)
    arguments = parser.parse_args()
    logs.configure(Settings(log_level="error"))
    table = LiveTable(title="one worker lost: time to answer")
    for name in ("workers", "from contingency: median", "largest", "asked", "fresh: median"):
        table.add_column(name, justify="right")
    for workers in arguments.workers:
        ahead, fresh = measured(workers, arguments.answers)
        figures = (statistics.median(ahead), max(ahead), ASKED_SECONDS, statistics.median(fresh))
        table.add_row(str(workers), *(f"{seconds * 1e3:.2f} ms" for seconds in figures))
    Console(width=120).print(table)


def measured(num_workers: int, num_answers: int) -> tuple[list[float], list[float]]:
    """Seconds of every answer from the contingencies and of every fresh one. Shapes [num_answers], [FRESH_SEARCHES]."""
    with scratch() as folder:
        store = Store(f"sqlite:///{folder / 'bench.sqlite3'}")
        store.open()
        base = running(store, num_workers)
        snapshots = [after(base, loss) for loss in losses(base, 0)]
        fresh, made = [], {}
        for snapshot in snapshots[:FRESH_SEARCHES]:
            start = time.perf_counter()
            decided = Decided.of(replan(snapshot))
            fresh.append(time.perf_counter() - start)
            made[fingerprint(snapshot)] = decided
        store.shelf.put("job", base.generation, made)
        answers = [answer_seconds(store.shelf, snapshots[n % len(made)]) for n in range(num_answers)]
        store.close()
    return answers, fresh


def running(store: Store, num_workers: int) -> Snapshot:
    """The snapshot of the next decision of a stored job that runs its first plan."""
    settings = JobSettings(num_microbatches=MICROBATCHES_PER_WORKER * num_workers, ranges=Ranges(min_pp=4, max_pp=16))
    service = Service(store, Metrics())
    service.create_job(NewJob(id="job", profile=uniform_profile(NUM_LAYERS), workers=num_workers, settings=settings))
    state = service.state("job")
    return service.snapshot(state, state.history)


def answer_seconds(shelf: Shelf, snapshot: Snapshot) -> float:
    """Time to find the decision for a snapshot, in seconds."""
    start = time.perf_counter()
    found = shelf.find("job", fingerprint(snapshot))
    seconds = time.perf_counter() - start
    assert found is not None
    return seconds


if __name__ == "__main__":
    main()
