"""Fresh searches of a job whose workers are lost and come back in turn.

    python -m benchmarks.returns [--workers 256] [--layers 80] [--losses 8]

Going on without who comes back may be worth more than moving state, so that dead slots add up: each is another place that a
rerouted step goes around. Prints processor time, policy and dead slots of every decision, a row as soon as it is known.
"""

import argparse
from dataclasses import replace
from statistics import median

from rich.console import Console

from benchmarks.running import LiveTable
from benchmarks.scaling import timed
from kintsugi.core.cluster import Cluster
from kintsugi.core.decision import Decision
from kintsugi.core.job import JobSettings, Ranges, Snapshot
from tests.builders import uniform_profile

REPEATS = 3
APART = 7
"""Workers that are lost one after the other lie so far from each other."""


def decided(asked: Snapshot) -> tuple[float, Decision]:
    """Median seconds of several equal searches, and what they decide."""
    runs = [timed(replace(asked)) for _ in range(REPEATS)]
    return median(seconds for seconds, _ in runs), runs[0][1]


def after(asked: Snapshot, decision: Decision, *lost: str) -> Snapshot:
    """The job under that decision, with all of its workers but the lost ones; who was idle or gone holds nothing."""
    alive = tuple(worker.id for worker in asked.cluster.workers if worker.id not in lost)
    holders = set(decision.plan.workers)
    stateless = tuple(worker for worker in alive if worker not in holders)
    return replace(asked, plan=decision.plan, alive=alive, stateless=stateless, generation=asked.generation + 1)


def main() -> None:
    """Lose and regain workers, one after the other, and print what that took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=256)
    parser.add_argument("--layers", type=int, default=80)
    parser.add_argument("--losses", type=int, default=8)
    given = parser.parse_args()
    cluster = Cluster.uniform(given.workers)
    ids = tuple(worker.id for worker in cluster.workers)
    settings = JobSettings(num_microbatches=4 * given.workers, ranges=Ranges(min_pp=4, max_pp=16))
    asked = Snapshot(profile=uniform_profile(given.layers), cluster=cluster, settings=settings, plan=None, alive=ids, generation=0)
    result = LiveTable(title=f"{given.workers} workers, {given.layers} layers; processor time of a search, median of {REPEATS}")
    for name in ("loss", "lost: time", "policy", "dead slots", "back: time", "policy", "dead slots"):
        result.add_column(name, justify="left" if name == "policy" else "right")
    _, decision = decided(asked)
    for number in range(given.losses):
        cells = [str(number + 1)]
        for lost in ((ids[number * APART % len(ids)],), ()):
            asked = after(asked, decision, *lost)
            seconds, decision = decided(asked)
            cells += [f"{seconds * 1e3:.1f} ms", decision.policy.value, str(len(decision.plan.dead_slots))]
        result.add_row(*cells)
    Console(width=140).print(result)


if __name__ == "__main__":
    main()
