"""How far plans are from their proven bounds: the gap of every case of a sample, the largest first.

Run: python -m benchmarks.gaps [--schedules 1f1b zb-h1 interleaved] [--most 20]
"""

import argparse
import itertools
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.running import tell
from kintsugi.core import codec
from kintsugi.core.cluster import Cluster
from kintsugi.core.errors import InfeasibleError
from kintsugi.core.job import JobSettings, Snapshot
from kintsugi.core.plan import Schedule
from kintsugi.core.profile import Profile
from planner.replan import replan
from tests.builders import transformer_profile, uniform_profile

FOLDER = Path(__file__).parent.parent / "profiles" / "models"
PROFILES = {
    "32 equal layers": uniform_profile(32),
    "30 blocks": transformer_profile(30),
    **{path.stem: codec.load(Profile, path) for path in sorted(FOLDER.glob("*.json")) if "cpu" not in path.stem},
}
WORKERS, PER_WORKER, PER_HOST = (6, 8, 13, 16, 24, 31, 32, 48, 64), (2, 4), (1, 8)
ASKED_RATIO = 0.005


def uneven_microbatches(num_workers: int) -> tuple[int, ...]:
    """Scarce counts, which leave few and long pipelines or idle workers, and one that no number of pipelines divides well."""
    return tuple(dict.fromkeys((1, num_workers // 3, num_workers // 2 + 1, num_workers * 5 // 2 - 1)))


@dataclass(frozen=True, slots=True)
class Case:
    """A job on equal workers."""

    profile: str
    schedule: Schedule
    num_workers: int
    num_microbatches: int
    workers_per_host: int

    @property
    def kind(self) -> str:
        """How micro-batches go with workers."""
        per_worker, rest = divmod(self.num_microbatches, self.num_workers)
        return " or ".join(map(str, PER_WORKER)) if per_worker in PER_WORKER and not rest else "scarce or odd"


@dataclass(frozen=True, slots=True)
class Gap:
    """What a case came to."""

    case: Case
    ratio: float
    shape: str
    """Pipelines by length."""
    seconds: float
    """Of the processor."""


def cases(schedules: Sequence[Schedule]) -> Iterator[Case]:
    """Every combination."""
    for schedule, profile, workers, per_host in itertools.product(schedules, PROFILES, WORKERS, PER_HOST):
        for count in (*(workers * per_worker for per_worker in PER_WORKER), *uneven_microbatches(workers)):
            yield Case(profile, schedule, workers, count, per_host)


def asked(case: Case) -> Snapshot:
    """The case as the planner is asked."""
    cluster = Cluster.uniform(case.num_workers, workers_per_host=case.workers_per_host)
    return Snapshot(
        profile=PROFILES[case.profile],
        cluster=cluster,
        settings=JobSettings(num_microbatches=case.num_microbatches, schedule=case.schedule),
        plan=None,
        alive=tuple(worker.id for worker in cluster.workers),
        generation=0,
    )


def measured(case: Case) -> Gap | None:
    """The gap of the first plan, told at once; None where nothing fits memory."""
    start = time.process_time()
    try:
        decision = replan(asked(case))
    except InfeasibleError:
        return None
    lengths = [pipeline.num_workers for pipeline in decision.plan.pipelines]
    shape = " ".join(f"{lengths.count(length)}x{length}" for length in sorted(set(lengths), reverse=True))
    gap = Gap(case, decision.search.gap_ratio, shape, time.process_time() - start)
    tell(*_cells(gap))
    return gap


def summary(gaps: Sequence[Gap]) -> Table:
    """How gaps are spread, by schedule, workers per host, and how micro-batches go with workers."""
    result = Table(title=f"gaps of first plans on equal workers; asked for: at most {ASKED_RATIO:.1%}")
    for name in (
        "schedule",
        "workers per host",
        "micro-batches a worker",
        "cases",
        "within",
        "median",
        "90 %",
        "largest",
        "CPU seconds, median",
    ):
        result.add_column(name, justify="right")
    groups: dict[tuple[str, int, str], list[Gap]] = {}
    for gap in gaps:
        groups.setdefault((gap.case.schedule.value, gap.case.workers_per_host, gap.case.kind), []).append(gap)
    for (schedule, per_host, kind), own in groups.items():
        ratios = sorted(gap.ratio for gap in own)
        spread = (statistics.median(ratios), ratios[len(ratios) * 9 // 10], ratios[-1])
        within = f"{sum(ratio <= ASKED_RATIO for ratio in ratios) / len(ratios):.0%}"
        seconds = statistics.median(gap.seconds for gap in own)
        result.add_row(
            schedule, str(per_host), kind, str(len(own)), within, *(f"{ratio:.3%}" for ratio in spread), f"{seconds:.3f}"
        )
    return result


def largest(gaps: Sequence[Gap], most: int) -> Table:
    """The cases with the largest gaps."""
    result = Table(title="largest gaps")
    for name in ("schedule", "profile", "workers", "per host", "micro-batches", "gap", "pipelines"):
        result.add_column(name, justify="right")
    for gap in sorted(gaps, key=lambda gap: -gap.ratio)[:most]:
        result.add_row(*_cells(gap))
    return result


def _cells(gap: Gap) -> tuple[str, ...]:
    case = gap.case
    sizes = case.num_workers, case.workers_per_host, case.num_microbatches
    return case.schedule.value, case.profile, *map(str, sizes), f"{gap.ratio:.3%}", gap.shape


def main() -> None:
    """Print both tables."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument(
        "--schedules",
        nargs="+",
        type=Schedule,
        default=[Schedule.ONE_F_ONE_B, Schedule.ZB_H1, Schedule.INTERLEAVED, Schedule.INTERLEAVED_ZB],
    )
    arguments.add_argument("--most", type=int, default=20, help="cases listed one by one")
    options = arguments.parse_args()
    gaps = [gap for case in cases(options.schedules) if (gap := measured(case)) is not None]
    console = Console(width=140)
    console.print(summary(gaps))
    console.print(largest(gaps, options.most))


if __name__ == "__main__":
    main()
