"""How schedules compare: steps of first plans under each over those under the best, for a sample of jobs on equal workers.

Run: python -m benchmarks.schedules [--every 7]
"""

import argparse
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice

from rich.console import Console
from rich.table import Table

from benchmarks.arguments import at_least
from benchmarks.gaps import Case, asked, cases
from kintsugi.core.errors import InfeasibleError
from kintsugi.core.plan import Schedule
from planner.replan import replan

SCHEDULES = (Schedule.ONE_F_ONE_B, Schedule.ZB_H1, Schedule.INTERLEAVED, Schedule.INTERLEAVED_ZB)


@dataclass(frozen=True, slots=True)
class Compared:
    """A job under every schedule under which it fits memory."""

    case: Case
    step_seconds: dict[Schedule, float]
    process_seconds: dict[Schedule, float]

    def over_best(self, schedule: Schedule) -> float:
        """The step under a schedule under which it fits over that under the best."""
        return self.step_seconds[schedule] / min(self.step_seconds.values())

    def gained(self) -> float:
        """The step under the best schedule over that under the best of the others, but for interleaved zero bubble."""
        others = [seconds for schedule, seconds in self.step_seconds.items() if schedule is not Schedule.INTERLEAVED_ZB]
        return min(self.step_seconds.values()) / min(others)


def compared(every: int) -> Iterator[Compared]:
    """Every so many-th job of the sample that fits under some schedule with whole passes."""
    for case in islice(cases([Schedule.ONE_F_ONE_B]), 0, None, every):
        steps, costs = {}, {}
        for schedule in SCHEDULES:
            start = time.process_time()
            try:
                steps[schedule] = replan(asked(replace(case, schedule=schedule))).estimate.iteration_seconds
            except InfeasibleError:
                continue
            costs[schedule] = time.process_time() - start
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


def main() -> None:
    """Print the table, and what interleaved zero bubble adds to the others."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--every", type=at_least(1), default=7, help="one of so many jobs of the sample is planned for")
    jobs = []
    for job in compared(arguments.parse_args().every):
        jobs.append(job)
        print(f"\r{len(jobs)} jobs", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    Console(width=140).print(summary(jobs))
    gained = sorted(1 - job.gained() for job in jobs)
    print(
        f"steps under the best of all are shorter than under the best of the others: median {statistics.median(gained):.2%}, "
        f"nine tenths below {gained[len(gained) * 9 // 10]:.2%}, most {gained[-1]:.2%}"
    )


if __name__ == "__main__":
    main()
