"""Runs a configuration for real, and what its steps took before and after workers were lost."""

import os
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from benchmarks.validation.configurations import Configuration, Model, job_of
from estimator.calibration import MeasuredStep
from estimator.estimate import estimate
from kintsugi.core.decision import Decision
from kintsugi.core.job import JobSettings, Ranges, Snapshot
from kintsugi.core.plan import Plan, Policy
from kintsugi.core.profile import Profile
from kintsugi.runtime.control.agent import Agent
from kintsugi.runtime.control.decisions import JobRequest, LocalDecisions
from kintsugi.runtime.faults import fail_at
from kintsugi.runtime.models import TrainingJob
from kintsugi.runtime.options import AgentOptions, WorkerOptions
from planner.replan import replan

SETTLING_STEPS = 2
"""Steps after the start of a plan that do not count: connections and caches warm up."""


@dataclass(frozen=True, slots=True)
class Phase:
    """A configuration before or after its loss: the plan, what it was estimated to take, and what it took."""

    configuration: Configuration
    is_mended: bool
    """Whether it is the phase after the loss."""
    decision: Decision
    uncalibrated_seconds: float
    """The estimate from the profile alone."""
    run_seconds: tuple[float, ...]
    """Median step of every run."""

    @property
    def plan(self) -> Plan:
        """What the workers carried out."""
        return self.decision.plan

    @property
    def measured_seconds(self) -> float:
        """Median over the runs."""
        return statistics.median(self.run_seconds)

    @property
    def estimated_seconds(self) -> float:
        """What the decision said."""
        return self.decision.estimate.iteration_seconds

    @property
    def error_ratio(self) -> float:
        """Estimated over measured, minus one."""
        return self.estimated_seconds / self.measured_seconds - 1.0

    @property
    def uncalibrated_error_ratio(self) -> float:
        """The same of the profile alone."""
        return self.uncalibrated_seconds / self.measured_seconds - 1.0


def first_plan(configuration: Configuration, profile: Profile) -> Plan:
    """The fault-free plan of the configuration's grid."""
    dp, pp, cluster = configuration.dp, configuration.pp, configuration.cluster
    settings = _settings(configuration, Ranges(min_dp=dp, max_dp=dp, min_pp=pp, max_pp=pp), policy=None)
    alive = tuple(cluster.by_id)
    return replan(Snapshot(profile=profile, cluster=cluster, settings=settings, plan=None, alive=alive, generation=0)).plan


def run(
    configuration: Configuration, model: Model, profiles: tuple[Profile, Profile], *, steps: int, repeats: int
) -> tuple[Phase, ...]:
    """Train `repeats` times; so many steps count before the loss, and as many after it.

    Args:
        configuration: the run.
        model: that the configuration names.
        profiles: the one to plan and estimate with, and the one that was not calibrated.
        steps: that count in each phase.
        repeats: runs, of which the median counts.
    """
    profile, uncalibrated = profiles
    runs = [_trained(configuration, model, profile, steps) for _ in range(repeats)]
    return tuple(
        Phase(
            configuration=configuration,
            is_mended=place > 0,
            decision=(decision := runs[0][place][0]),
            uncalibrated_seconds=estimate(decision.plan, uncalibrated, configuration.cluster).iteration_seconds,
            run_seconds=tuple(own[place][1] for own in runs),
        )
        for place in range(len(runs[0]))
    )


def measured_step(configuration: Configuration, model: Model, profile: Profile, *, steps: int) -> MeasuredStep:
    """A run without losses, to calibrate from."""
    ((decision, seconds),) = _trained(configuration, model, profile, steps)
    return MeasuredStep(plan=decision.plan, profile=profile, cluster=configuration.cluster, iteration_seconds=seconds)


def _trained(configuration: Configuration, model: Model, profile: Profile, steps: int) -> list[tuple[Decision, float]]:
    """Decision and median step of each phase of one run."""
    lost_at = SETTLING_STEPS + steps
    again_from = lost_at + 1 + SETTLING_STEPS
    last = again_from + steps if configuration.lost else lost_at
    request = JobRequest(
        name="validation",
        profile=profile,
        cluster=configuration.cluster,
        settings=_settings(configuration, _ranges_after(configuration), policy=configuration.policy),
        plan=first_plan(configuration, profile),
    )
    faults = tuple(fail_at(lost_at, worker) for worker in configuration.lost)
    options = AgentOptions(worker=WorkerOptions(faults=faults))
    make_job: Callable[[], TrainingJob] = job_of(model, configuration, num_steps=last)
    with Agent(make_job, request, LocalDecisions(), options=options) as agent:
        result = agent.run()
    phases = [(result.decisions[0], statistics.median(result.step_seconds[SETTLING_STEPS:lost_at]))]
    if configuration.lost:
        assert not set(configuration.lost) & set(result.decisions[-1].plan.workers)
        phases.append((result.decisions[-1], statistics.median(result.step_seconds[again_from:])))
    return phases


def _ranges_after(configuration: Configuration) -> Ranges:
    dp = configuration.dp_after
    return Ranges() if dp is None else Ranges(min_dp=dp, max_dp=dp)


def _settings(configuration: Configuration, ranges: Ranges, *, policy: Policy | None) -> JobSettings:
    return JobSettings(
        num_microbatches=configuration.num_microbatches, ranges=ranges, schedule=configuration.schedule, policy=policy
    )


@contextmanager
def ranked_first() -> Iterator[str]:
    """Have this process and those that it starts meanwhile run before others, where that is allowed; how they are scheduled.

    Workers that sleep need little of the processor, but when they wake up they must not wait for other programs.
    """
    usual, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except PermissionError:
        yield "ordinary priority"
        return
    try:
        yield "real-time priority (SCHED_RR)"
    finally:
        os.sched_setscheduler(0, usual, parameters)
