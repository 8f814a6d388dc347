"""A real service process under load: many jobs' events, many who wait for one plan, many workers' heartbeats, a long past.

    python -m benchmarks.load [--only events storms waiting heartbeats restart] [--events-per-second 300 --jobs 50 --seconds 10]
                              [--pollers 1000] [--workers 10000] [--past-jobs 1000 --past-events 1000000]

Events come at a steady rate over jobs of 8 to 16 workers, in three mixes: workers that are lost and come back, workers that
become slow and recover (each of these calls for a plan), and links that are measured (which a job of this size answers from a
fresh search, too, where the cost of the link counts). Every worker takes its turn, so that plans are seldom the same; after
every second event the trainer reports its plan as applied. The service is then killed, and what its next life tells is compared
with what was answered: every acknowledged event must be in its log exactly once, and every generation must have been told in
order. A burst is a loss that five agents report, and the worker that was lost before is back, all within 0.3 s; the job gives all
events of 0.5 s one plan. Those who wait hold one long poll or one stream each, and are woken by one plan.
Heartbeats come in batches of 8 workers. The restart is from the start of the process to its first answers.

Everything is on loopback and one SQLite file; the load itself runs beside the service on the same cores. Every answer is on
disk before it is told: beside the figures stands the time that the disk takes to sync.
"""

import argparse
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console

from benchmarks.running import LiveTable, scratch, tell
from benchmarks.service import fsync_seconds
from benchmarks.traffic.beats import heard
from benchmarks.traffic.events import Row, sustained
from benchmarks.traffic.past import restarted
from benchmarks.traffic.storms import weathered
from benchmarks.traffic.waiting import woken

PARTS = ("events", "storms", "waiting", "heartbeats", "restart")


def main() -> None:
    """Measure and print."""
    arguments = _arguments()
    parts: dict[str, Callable[[Path], Iterator[Row]]] = {
        "events": lambda folder: sustained(folder, arguments.jobs, arguments.events_per_second, arguments.seconds),
        "storms": lambda folder: weathered(folder, arguments.jobs, arguments.events_per_second, arguments.seconds),
        "waiting": lambda folder: woken(folder, arguments.pollers),
        "heartbeats": lambda folder: heard(folder, arguments.workers, arguments.seconds),
        "restart": lambda folder: restarted(folder, arguments.past_jobs, arguments.past_events),
    }
    table = LiveTable("load", "asked", "reached", title="the service under load")
    with scratch(Path.cwd()) as folder:
        pace = fsync_seconds(folder)
        for name in arguments.only:
            tell(f"measures {name}")
            for row in parts[name](folder):
                table.add_row(*row)
    console = Console(width=160)
    console.print(table)
    console.print(f"one fsync on this disk: {pace * 1e3:.2f} ms ({1 / pace:.0f} per second); load {os.getloadavg()[0]:.1f}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--events-per-second", type=float, default=300.0)
    parser.add_argument("--jobs", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each mix of events, and of heartbeats")
    parser.add_argument("--pollers", type=int, default=1_000)
    parser.add_argument("--workers", type=int, default=10_000)
    parser.add_argument("--past-jobs", type=int, default=1_000)
    parser.add_argument("--past-events", type=int, default=1_000_000)
    return parser.parse_args()


if __name__ == "__main__":
    main()
