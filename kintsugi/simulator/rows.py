"""What a study tells: one row for each policy and combination of varied values; importable without the simulator."""

from collections.abc import Mapping
from dataclasses import dataclass

from kintsugi.reporting.intervals import Interval

Value = float | int | str | None
"""Of a scenario's field that is varied."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One policy at one combination of varied values."""

    values: Mapping[str, Value]
    policy: str
    num_runs: int
    samples_per_second: Interval
    num_transitions: float
    num_rollbacks: float
    shares: Mapping[str, float]
    """Share of the time in each account (0..1)."""
    stopped_because: str | None = None
    """Why no plan was found for the most workers for which none was, in the first run that stood still; null where none did."""
