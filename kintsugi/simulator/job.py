"""The job of a scenario as policies see it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import fmean

from kintsugi.core.errors import InvalidInputError
from kintsugi.core.job import JobSettings
from kintsugi.core.profile import Profile
from kintsugi.simulator.faults import Faults, Incident, draw
from kintsugi.simulator.scenario import Grid, Scenario
from kintsugi.simulator.traces import read

LONGEST_MTBF_SECONDS = 1e9
"""Stands for a job that never fails: equation 8 needs a number."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """What stays the same through a scenario; equal jobs may share all that is known about them."""

    profile: Profile
    settings: JobSettings
    first: Grid | None
    faults: Faults
    workers_per_host: int
    num_spares: int
    checkpoint_pause_seconds: float
    planning_seconds: float
    fixed_mtbf_seconds: float | None
    """Of a trace, or of a fixed number of failures; null: it follows from the workers that are left."""
    workers_per_failure: float
    """In the mean."""

    def __hash__(self) -> int:
        return id(self)

    def settings_for(self, num_workers: int) -> JobSettings:
        """The settings, with the mean time between failures of so many workers."""
        return _with_mtbf(self.settings, self.mtbf_seconds(num_workers))

    def mtbf_seconds(self, num_workers: int) -> float:
        """Mean time between failures of the job on so many workers."""
        if self.fixed_mtbf_seconds is not None:
            return self.fixed_mtbf_seconds
        seconds = self.faults.mtbf_seconds(num_workers, self.workers_per_host, 1.0)
        return seconds if math.isfinite(seconds) else LONGEST_MTBF_SECONDS


@lru_cache(4096)
def _with_mtbf(settings: JobSettings, mtbf_seconds: float) -> JobSettings:
    return replace(settings, mtbf_seconds=mtbf_seconds)


def incidents_of(scenario: Scenario, seed: int) -> tuple[Incident, ...]:
    """What happens in a scenario: drawn, and read from its trace.

    Raises:
        InvalidInputError: the trace is none, or its nodes would have to share hosts.
    """
    if scenario.trace is None:
        return draw(scenario.faults, scenario.cluster, scenario.duration_seconds, seed)
    if scenario.workers_per_host != 1:
        raise InvalidInputError(
            "must be 1 where a trace says which nodes there are", field="workers_per_host", value=scenario.workers_per_host
        )
    incidents = read(scenario.path(scenario.trace), notice_seconds=scenario.notice_seconds, seed=seed)
    return tuple(incident for incident in incidents if incident.at_seconds < scenario.duration_seconds)


def job_of(scenario: Scenario, incidents: Sequence[Incident]) -> Job:
    """The job of a scenario in which these incidents happen.

    Raises:
        InvalidInputError: the profile cannot be read or is none.
    """
    return Job(
        profile=scenario.load_profile(),
        settings=scenario.settings,
        first=scenario.first,
        faults=scenario.faults,
        workers_per_host=scenario.workers_per_host,
        num_spares=scenario.spares,
        checkpoint_pause_seconds=scenario.checkpoint_pause_seconds,
        planning_seconds=scenario.planning_seconds,
        fixed_mtbf_seconds=_fixed_mtbf_seconds(scenario, incidents),
        workers_per_failure=_workers_per_failure(scenario, incidents),
    )


def _fixed_mtbf_seconds(scenario: Scenario, incidents: Sequence[Incident]) -> float | None:
    """Of a trace: its duration over its losses. A planner cannot know better, and a trace says nothing of single workers."""
    if scenario.trace is not None:
        return scenario.duration_seconds / max(1, sum(bool(incident.lost) for incident in incidents))
    if scenario.faults.num_failures is not None:
        return scenario.duration_seconds / scenario.faults.num_failures
    return None


def _workers_per_failure(scenario: Scenario, incidents: Sequence[Incident]) -> float:
    """Of a trace: the mean over its losses."""
    if scenario.trace is None:
        return scenario.faults.workers_per_failure(scenario.workers_per_host)
    lost = [len(incident.lost) for incident in incidents if incident.lost]
    return fmean(lost) if lost else 1.0
