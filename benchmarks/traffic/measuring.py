"""Measured figures: percentiles on the clock, and the service's processor time beside them."""

import os
import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class Spent:
    """Processor time of one process, in seconds, over a stretch of its life; processes that it started count for themselves."""

    seconds: float = field(default=0.0)


@contextmanager
def processor_time(pid: int) -> Iterator[Spent]:
    """What process `pid` spends within."""
    spent, before = Spent(), _processor_seconds(pid)
    yield spent
    spent.seconds = _processor_seconds(pid) - before


def percentiles(seconds: Sequence[float]) -> str:
    """Median, 95th and 99th percentile and maximum, in milliseconds."""
    points = statistics.quantiles(seconds, n=100, method="inclusive")
    return ", ".join(f"p{p} {points[p - 1] * 1e3:.0f}" for p in (50, 95, 99)) + f", most {max(seconds) * 1e3:.0f} ms"


def _processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND
