"""Steps of first plans over racks by the count of workers: by how much more workers lengthen them, where that should never be.

Each count is planned twice, the second time without the pipelines that are looked for within racks, or as the best
plan is before it is bettered by itself.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from unittest.mock import patch

from benchmarks.uneven_links import with_links
from kintsugi.core import codec
from kintsugi.core.cluster import Cluster
from kintsugi.core.job import JobSettings, Snapshot
from kintsugi.core.profile import Profile
from planner.arranging.refining import Refinery
from planner.policies import reshaping
from planner.replan import replan
from planner.warmup import warm_up

NUM_MICROBATCHES = 64
SPEEDS: dict[str, Callable[[int], float]] = {
    "equal": lambda _: 1.0,
    "two slow": lambda number: 0.7 if number in {3, 8} else 1.0,
    "every other slow": lambda number: 0.5 if number % 2 else 1.0,
}
"""Of workers, by their numbers."""


@dataclass(frozen=True, slots=True)
class Case:
    """Workers on hosts that are dealt out to racks in turn, with links at 8e-10 s a byte between racks."""

    model: str
    speeds: str
    num_racks: int
    workers_per_host: int

    def cluster(self, num_workers: int) -> Cluster:
        """So many workers."""
        cluster = Cluster.uniform(num_workers, workers_per_host=self.workers_per_host)
        speed = SPEEDS[self.speeds]
        workers = [replace(own, speed_ratio=speed(number)) for number, own in enumerate(cluster.workers)]
        return with_links(
            cluster.with_workers(tuple(workers)),
            lambda a, b: 8e-10 if a % self.num_racks != b % self.num_racks else None,
            alpha_seconds=5e-5,
        )


CASES = tuple(
    Case(model, speeds, num_racks, workers_per_host)
    for model in ("gpt2-medium.a100-80g", "llama2-7b.a100-80g")
    for num_racks, workers_per_host in ((3, 2), (2, 4))
    for speeds in SPEEDS
)

HOSTS_OF_EIGHT = Case("llama2-7b.a100-80g", "equal", num_racks=4, workers_per_host=8)


@dataclass(frozen=True, slots=True)
class Planned:
    """What first plans of several counts of workers come to."""

    steps: tuple[float, ...]
    """In seconds, by count."""
    planning_seconds: float
    """In the middle, of this process's own time."""

    @property
    def excesses(self) -> list[float]:
        """By what share steps are longer than one of fewer workers, of those that are."""
        shortest = accumulate(self.steps, min)
        return [step / least - 1 for step, least in zip(self.steps, shortest, strict=True) if step > least * (1 + 1e-9)]

    def told(self) -> str:
        """How many steps are longer than with fewer workers, and the largest of these."""
        return f"{len(self.excesses)}, {max(self.excesses):.1%}" if self.excesses else "none"


def planned(case: Case, counts: Sequence[int]) -> Planned:
    """A first plan for each count."""
    steps, seconds = zip(*(first_plan(case, count) for count in counts), strict=True)
    return Planned(steps, statistics.median(seconds))


def first_plan(case: Case, num_workers: int) -> tuple[float, float]:
    """Step of a first plan, and this process's own time for it, in seconds."""
    profile, cluster = codec.load(Profile, Path(f"profiles/models/{case.model}.json")), case.cluster(num_workers)
    settings, alive = JobSettings(num_microbatches=NUM_MICROBATCHES), tuple(cluster.by_id)
    asked = Snapshot(profile=profile, cluster=cluster, settings=settings, plan=None, alive=alive, generation=0)
    began = time.process_time()
    return replan(asked).estimate.iteration_seconds, time.process_time() - began


def rows(cases: Sequence[Case], counts: Sequence[int], *, is_last: bool) -> Iterator[str]:
    """A row for each case; `is_last` leaves the best plan as it is in the second run."""
    for case in cases:
        ours = planned(case, counts)
        with _without_last() if is_last else patch.object(Refinery, "descended", return_value=None):
            plain = planned(case, counts)
        ratios = [own / other for own, other in zip(ours.steps, plain.steps, strict=True)]
        racks = f"{case.num_racks} racks, {case.workers_per_host} a host"
        changes = " | ".join(f"{change - 1:+.1%}" for change in (statistics.mean(ratios), min(ratios), max(ratios)))
        planning = f"{ours.planning_seconds:.2f} | {ours.planning_seconds / plain.planning_seconds:.2f}"
        yield f"| {case.model} | {case.speeds} | {racks} | {plain.told()} | {ours.told()} | {changes} | {planning} |"


def _without_last() -> AbstractContextManager[object]:
    return patch.object(reshaping, "_refined_last", side_effect=lambda _, found: found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--counts", type=int, nargs=2, default=(17, 32), metavar=("LEAST", "MOST"), help="of workers")
    parser.add_argument("--every", type=int, default=1, help="so many workers are between counts")
    parser.add_argument("--last", action="store_true", help="leave out the bettering of the best plan instead; hosts of eight, too")
    parser.add_argument("--model", default="", help="plan for models alone whose names have this in them")
    arguments = parser.parse_args()
    (least, most), every, is_last = arguments.counts, arguments.every, arguments.last
    if not 1 <= least <= most or every < 1:
        parser.error(f"--counts: {least} to {most} by {every} are no counts of workers; say the lower one first, from 1 on")
    warm_up()
    left_out = "what betters the best plan of all" if is_last else "what is looked for within racks"
    print(f"First plans of {least} to {most} workers, {NUM_MICROBATCHES} micro-batches; without: {left_out}\n")
    print("| model | workers | racks | longer than with fewer, without | with | step, mean | least | most | planning (s) | ratio |")
    print("|---" * 10 + "|")
    cases = [case for case in (*CASES, *([HOSTS_OF_EIGHT] if is_last else [])) if arguments.model in case.model]
    for row in rows(cases, range(least, most + 1, every), is_last=is_last):
        print(row, flush=True)


if __name__ == "__main__":
    main()
