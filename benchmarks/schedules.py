"""How schedules compare: steps of first plans under each over those under the best, for a sample of jobs on equal workers.

Run: python -m benchmarks.schedules [--every 7] [--schedules 1f1b eager-1f1b] [--inter-host-rate BYTES_PER_SECOND]
"""

import argparse
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from rich.console import Console
from rich.table import Table

from benchmarks.arguments import above_zero, at_least
from benchmarks.gaps import Case, asked, cases
from kintsugi.core.errors import InfeasibleError
from kintsugi.core.job import Snapshot
from kintsugi.core.plan import Schedule
from planner.replan import replan

SCHEDULES = (
    Schedule.ONE_F_ONE_B,
    Schedule.EAGER_1F1B,
    Schedule.ZB_H1,
    Schedule.ZB_H2,
    Schedule.INTERLEAVED,
    Schedule.INTERLEAVED_ZB,
)


@dataclass(frozen=True, slots=True)
class Compared:
    """A job under every schedule under which it fits memory."""

    case: Case
    step_seconds: dict[Schedule, float]
    process_seconds: dict[Schedule, float]

    def over_best(self, schedule: Schedule) -> float:
        """The step under a schedule under which it fits over that under the best."""
        return self.step_seconds[schedule] / min(self.step_seconds.values())

    def over_plain(self, schedule: Schedule) -> float:
        """The step under a schedule under which it fits over that under 1F1B."""
        return self.step_seconds[schedule] / self.step_seconds[Schedule.ONE_F_ONE_B]

    def gained(self, schedule: Schedule) -> float:
        """By what share the step under the best schedule is shorter than that under the best of the others."""
        others = [seconds for other, seconds in self.step_seconds.items() if other is not schedule]
        return 1 - min(self.step_seconds.values()) / min(others)


def snapshot_of(case: Case, inter_host_rate: float | None) -> Snapshot:
    """The job, with another rate between hosts where one is given, in bytes per second."""
    snapshot = asked(case)
    if inter_host_rate is None:
        return snapshot
    network = snapshot.profile.network
    slower = replace(network, inter_host=replace(network.inter_host, beta_seconds_per_byte=1 / inter_host_rate))
    return replace(snapshot, profile=replace(snapshot.profile, network=slower))


def compared(schedules: Sequence[Schedule], every: int, inter_host_rate: float | None) -> Iterator[Compared]:
    """Every so many-th job of the sample that fits under 1F1B."""
    for case in islice(cases([Schedule.ONE_F_ONE_B]), 0, None, every):
        steps, costs = {}, {}
        for schedule in schedules:
            start = time.process_time()
            try:
                decision = replan(snapshot_of(replace(case, schedule=schedule), inter_host_rate))
            except InfeasibleError:
                continue
            steps[schedule], costs[schedule] = decision.estimate.iteration_seconds, time.process_time() - start
        if Schedule.ONE_F_ONE_B in steps:
            yield Compared(case, steps, costs)


def summary(jobs: list[Compared]) -> Table:
    """How far each schedule's steps are from the best, by how micro-batches go with workers."""
    result = Table(title="steps over those under the best schedule")
    for name in ("micro-batches a worker", "schedule", "jobs", "best in", "median", "90 %", "largest", "CPU seconds, median"):
        result.add_column(name, justify="right")
    for kind in sorted({job.case.kind for job in jobs}):
        for schedule in SCHEDULES:
            own = [job for job in jobs if job.case.kind == kind and schedule in job.step_seconds]
            if not own:
                continue
            ratios = sorted(job.over_best(schedule) for job in own)
            is_best = sum(ratio < 1 + 1e-9 for ratio in ratios)
            spread = (statistics.median(ratios), ratios[len(ratios) * 9 // 10], ratios[-1])
            seconds = statistics.median(job.process_seconds[schedule] for job in own)
            result.add_row(
                kind, schedule.value, str(len(own)), str(is_best), *(f"{ratio:.3f}" for ratio in spread), f"{seconds:.3f}"
            )
    return result


def versus(jobs: list[Compared]) -> Table:
    """Every schedule against 1F1B, and what it adds to all others: by how much the best step of a job is shorter with it."""
    result = Table(title="steps over those under 1f1b, and by how much the best step is shorter than under the best of the others")
    for name in ("schedule", "jobs", "least", "median", "largest", "alone best in", "by, median", "90 %", "largest"):
        result.add_column(name, justify="right")
    for schedule in SCHEDULES:
        own = [job for job in jobs if schedule in job.step_seconds and len(job.step_seconds) > 1]
        if not own:
            continue
        ratios, gained = sorted(job.over_plain(schedule) for job in own), sorted(job.gained(schedule) for job in own)
        spread = (ratios[0], statistics.median(ratios), ratios[-1])
        added = (statistics.median(gained), gained[len(gained) * 9 // 10], gained[-1])
        num_best = sum(share > 1e-9 for share in gained)
        figures = (*(f"{ratio:.3f}" for ratio in spread), str(num_best), *(f"{share:.2%}" for share in added))
        result.add_row(schedule.value, str(len(own)), *figures)
    return result


def main() -> None:
    """Print both tables."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--every", type=at_least(1), default=7, help="one of so many jobs of the sample is planned for")
    arguments.add_argument("--inter-host-rate", type=above_zero, help="bytes per second between hosts, not the profiles' own")
    arguments.add_argument("--schedules", nargs="+", type=Schedule, choices=SCHEDULES, default=SCHEDULES, help="beside 1f1b")
    options = arguments.parse_args()
    jobs = []
    schedules = tuple(dict.fromkeys((Schedule.ONE_F_ONE_B, *options.schedules)))
    for job in compared(schedules, options.every, options.inter_host_rate):
        jobs.append(job)
        print(f"\r{len(jobs)} jobs", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    console = Console(width=140)
    console.print(summary(jobs))
    console.print(versus(jobs))


if __name__ == "__main__":
    main()
