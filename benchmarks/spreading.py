"""First plans of Llama 2 7B on hosts of eight over four racks: what keeping replicas apart takes, and by a program alone."""

import argparse
from collections.abc import Iterator
from unittest.mock import patch

from benchmarks.more_workers import HOSTS_OF_EIGHT, first_plan
from planner.placing import placement
from planner.placing.survival import homes_of_slots
from planner.warmup import warm_up


def rows(counts: list[int]) -> Iterator[str]:
    """A row for each count of workers."""
    for count in counts:
        step, seconds = first_plan(HOSTS_OF_EIGHT, count)
        with patch.object(placement, "homes_of_slots", _programmed):
            program_step, program_seconds = first_plan(HOSTS_OF_EIGHT, count)
        times = program_seconds / seconds
        yield f"| {count} | {program_step:.3f} | {step:.3f} | {program_seconds:.1f} | {seconds:.1f} | {times:.1f} |"


def _programmed(*asked: object, **_: bool) -> object:
    return homes_of_slots(*asked, is_programmed=True)  # type: ignore[arg-type]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, nargs="+", default=[24, 32, 40, 48], help="counts of workers")
    counts = parser.parse_args().workers
    warm_up()
    print("| workers | step, integer program (s) | ours (s) | planning, integer program (s) | ours (s) | times faster |")
    print("|---" * 6 + "|")
    for row in rows(counts):
        print(row, flush=True)


if __name__ == "__main__":
    main()
