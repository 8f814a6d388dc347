"""`kintsugi.train`: a whole job on this machine in one call."""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from uuid import uuid4

import torch

from kintsugi.client import Client, Patience
from kintsugi.client.connection import checked_address
from kintsugi.core import checks
from kintsugi.core.cluster import Cluster
from kintsugi.core.ending import Outcome
from kintsugi.core.errors import (
    ConflictError,
    ForbiddenError,
    InfeasibleError,
    InvalidInputError,
    KintsugiError,
    NotFoundError,
    told_as,
)
from kintsugi.core.handling import Handling
from kintsugi.core.job import DEFAULT_MTBF_SECONDS, JobSettings, Ranges, Snapshot
from kintsugi.core.logs import get_logger
from kintsugi.core.plan import Plan, Policy
from kintsugi.core.profile import Profile
from kintsugi.runtime.asked import (
    cluster_of,
    faults_of,
    options_of,
    require_addresses,
    require_degrees,
    require_kinds,
)
from kintsugi.runtime.brought import finite_factor, require_importable
from kintsugi.runtime.checkpoints.recording import CheckpointOptions, RunOptions, expected_recovery
from kintsugi.runtime.control.agent import Agent, Observer
from kintsugi.runtime.control.begun import BegunJobs
from kintsugi.runtime.control.decisions import Decisions, JobRequest, LocalDecisions, ServiceDecisions, planned
from kintsugi.runtime.devices import require_device
from kintsugi.runtime.disk import make_run_folder
from kintsugi.runtime.faults import Fault, require_struck
from kintsugi.runtime.forking import PLANNER, preload
from kintsugi.runtime.given import function
from kintsugi.runtime.measuring.kept import Circumstances, measured_once
from kintsugi.runtime.measuring.profiler import profile_job
from kintsugi.runtime.models import TrainingJob, made
from kintsugi.runtime.options import AgentOptions, Governance, TransportKind, WorkerOptions
from kintsugi.runtime.placement import placed, workers_per_device
from kintsugi.runtime.profile_likeness import require_profile_of
from kintsugi.runtime.records.tracing import TraceOptions
from kintsugi.runtime.result import RunResult
from kintsugi.runtime.run_lock import RunLock
from kintsugi.runtime.signals import ending_in_order, put_off
from restorer.nccl_requirements import prepare_environment

_AS_DEGREES = {"min_dp": "dp", "max_dp": "dp", "min_pp": "pp", "max_pp": "pp"}
"""What a caller knows the fields of the first plan's ranges as."""
_AS_RANGES = {field.name: f"ranges.{field.name}" for field in fields(Ranges)}

_MENDS_NOTHING = {
    Policy.FAULT_FREE: "is that of a first plan, and answers no loss",
    Policy.DEFERRED_PARALLELISM: "has two steps, of which workers carry out the first alone",
}


def train(
    make_job: Callable[[], TrainingJob],
    *,
    workers: int | Cluster,
    dp: int | None = None,
    pp: int | None = None,
    ranges: Ranges | None = None,
    name: str | None = None,
    profile: Profile | None = None,
    service: str | None = None,
    handling: Handling | None = None,
    policy: Policy | str | None = None,
    mtbf_seconds: float = DEFAULT_MTBF_SECONDS,
    faults: Sequence[Fault] = (),
    options: AgentOptions | None = None,
    observer: Observer | None = None,
    run: str | Path | None = None,
    checkpoints: CheckpointOptions | None = None,
    trace: str | Path | None = None,
    membership: Governance | str | None = None,
) -> RunResult:
    """Train a job to its last step, whatever workers are lost on the way.

    Call it under `if __name__ == "__main__":`, for workers import the calling module. SIGTERM and SIGHUP end it as Ctrl-C does,
    by an exception (`SystemExit`), unless the script handles them; with `run=` the step under way is in a checkpoint first. The
    step after it compares that checkpoint, and the run's next life trains it again. A second signal ends it at once.

    Args:
        make_job: module-level function that every worker calls to know the job.
        workers: how many worker processes, or a cluster that names them.
        dp: data-parallel degree to start with; null leaves it to the planner, from 2 on where that is possible and neither `run`
            nor `ranges` is said: without checkpoints the loss of a layer's only holder ends the job.
        pp: pipeline-parallel degree to start with; null leaves it to the planner.
        ranges: degrees that later plans may have; as wide as workers and layers allow by default.
        name: of the job at the service; a new one by default. The n-th life of a run is `NAME.lifeN` there,
            with `.restartK` behind it where its agent was killed before it trained anything.
        profile: what the layers cost; measured on this machine where none is given, once for all lives of a run there.
        service: URL of a Kintsugi service that decides; null plans in this process.
        handling: what has to happen before a plan of the service counts, as approval; null asks for nothing.
        policy: pins the policy for failures, of those that workers carry out by themselves; null lets the planner choose.
        mtbf_seconds: mean time between failures of the whole job.
        faults: strikes against the workers of the cluster, for trying out what happens; those against workers that join later
            are said in `options.worker.faults`.
        options: patience and worker options.
        observer: called after every change with the agent, which waits for it to return.
        run: folder for journals and checkpoints; a job that ended early goes on from the newest one in it. Null: none of either.
        checkpoints: when and how they are written; as often as is best for what they cost by default.
        trace: folder for the measured times of actions, which `kintsugi trace --run` shows; those of the n-th life of a run are
            in `lifeN` within it. Null records none.
        membership: "ring" has the workers find out among themselves who is lost, and go on with plans that they hold, without
            the agent and the service; "agent" has the agent do so, and ask whoever decides. Null: as the options say.

    Raises:
        InvalidInputError: degrees and workers do not fit each other, workers cannot be given `make_job`, the profile is of more
            or fewer layers, a fault would never strike, the policy would mend none, or the job's device is not there, or not for
            the transport.
        ConflictError: another life of the run goes on in its folder, or another job's actions are recorded in the one for them.
        UnavailableError: the disk of the run hangs, or gives none of the checkpoints that are there.
        InfeasibleError: too much was lost; no plan exists for the workers that are left.
        WorkerError: the job's own code raised.
    """
    cluster, faults, options = cluster_of(workers), faults_of(faults), options_of(options)
    require_degrees(dp, pp, len(cluster.workers))
    require_kinds(
        name=name,
        profile=profile,
        service=service,
        handling=handling,
        ranges=ranges,
        observer=observer,
        run=run,
        checkpoints=checkpoints,
        trace=trace,
    )
    job = _job_of(make_job)
    ranges_said = ranges or Ranges()
    _require_carried_out(job, dp, pp, ranges_said, len(cluster.workers))
    require_device(job.device)
    if profile is not None:
        require_profile_of(job, profile)
    name, life = name or f"job-{uuid4().hex[:12]}", 1
    if service is not None:
        checked_address(service, "service")
    settings = JobSettings(
        num_microbatches=job.num_microbatches,
        mtbf_seconds=mtbf_seconds,
        policy=_mending(policy, has_folder=run is not None or options.worker.run is not None),
        ranges=ranges_said,
    )
    options = _options(options, membership, faults, trace)
    names = [worker.id for worker in cluster.workers]
    require_struck(
        faults,
        names,
        num_steps=job.num_steps,
        num_microbatches=job.num_microbatches,
        has_folder=run is not None or options.worker.run is not None,
    )
    require_addresses(options.worker, names)
    options = replace(options, worker=_on_devices(options.worker, job, names))
    sharers = workers_per_device(options.worker, job.device, names)
    with ending_in_order(), ExitStack() as held:
        if run is not None:
            held.enter_context(_folder_for(Path(run), options))
        client = None
        if service is not None:
            client = held.enter_context(Client(service, patience=Patience(timeout_seconds=10.0, attempts=3)))
        recorded = None
        if run is not None:
            recorded = RunOptions.of(job, Path(run), mtbf_seconds=mtbf_seconds, checkpoints=checkpoints or CheckpointOptions())
            options, life = replace(options, worker=_recording(options.worker, recorded)), recorded.life
        if profile is None:
            _require_answer(client, name)
            profile = _costs(make_job, job, name, recorded, num_workers=len(names), workers_per_device=sharers)
        recovery = expected_recovery(profile, settings, options.worker.run, len(cluster.workers))
        profile = replace(profile, recovery=recovery)
        is_safe = ranges is not None or options.worker.run is not None
        plan = _starting_plan(profile, cluster, settings, dp, pp, least_dp=1 if is_safe else 2)
        request = JobRequest(
            name=_name_in(name, life), profile=profile, cluster=cluster, settings=settings, plan=plan, handling=handling
        )
        if client is None:
            return _run(make_job, request, LocalDecisions(), options, observer)
        begun = None if run is None else BegunJobs(Path(run))
        if begun is not None:
            held.callback(begun.close)
            request = replace(request, name=begun.unused(request.name))
            _bury(client, begun, _name_in(name, life - 1) if life > 1 else None, request.name)
        return _run(make_job, request, ServiceDecisions(client, begun), options, observer)


def _require_carried_out(job: TrainingJob, dp: int | None, pp: int | None, ranges: Ranges, num_workers: int) -> None:
    """Require that the job has enough of what the degrees of its first plan, and of later ones, need.

    Raises:
        InvalidInputError: it has too few layers or micro-batches.
        InfeasibleError: it has too few workers.
    """
    for least, known_as in ((Ranges(min_dp=dp or 1, min_pp=pp or 1), _AS_DEGREES), (ranges, _AS_RANGES)):
        with told_as(known_as):
            least.require_carried_out(len(job.layers), job.num_microbatches)
    if dp is None and pp is None:  # else the first plan has these, and joiners may make those of the ranges possible
        ranges.require_workers(num_workers)


def _require_answer(client: Client | None, name: str) -> None:
    """Have the service, if there is one, say anything of the job: before measuring, which takes long.

    Raises:
        UnavailableError: it does not answer.
        UnauthenticatedError: it wants another token.
    """
    if client is not None:
        with suppress(NotFoundError, ForbiddenError):
            client.job(name)


def _costs(
    make_job: Callable[[], TrainingJob],
    job: TrainingJob,
    name: str,
    run: RunOptions | None,
    *,
    num_workers: int,
    workers_per_device: int,
) -> Profile:
    """What the job costs here: measured, or as an earlier life of its run measured it."""
    measure = partial(_measured, make_job, name, num_workers, workers_per_device)
    if run is None:
        return measure()
    here = Circumstances.of(make_job, job, run, num_workers=num_workers, workers_per_device=workers_per_device)
    return replace(measured_once(run.folder, here, measure), name=name)


def _measured(make_job: Callable[[], TrainingJob], name: str, num_workers: int, workers_per_device: int) -> Profile:
    """What the job costs on this machine, which takes a while, and is told."""
    log, begun = get_logger("kintsugi.runtime"), time.monotonic()
    log.info("measuring what the job's layers, links and recoveries cost here; with profile=... it is not", workers=num_workers)
    profile = profile_job(make_job, name=name, num_workers=num_workers, workers_per_device=workers_per_device)
    log.info("measured", layers=profile.num_layers, seconds=round(time.monotonic() - begun, 1))
    return profile


def _name_in(name: str, life: int) -> str:
    """What the job of a run is called at the service in one of the run's lives."""
    return name if life == 1 else f"{name}.life{life}"


def _recording(options: WorkerOptions, run: RunOptions) -> WorkerOptions:
    """Worker options of one life of a run; each life has plans of its own, so a later one's actions lie apart."""
    trace = options.trace
    if trace is not None and run.life > 1:
        trace = replace(trace, folder=trace.folder / f"life{run.life}")
    return replace(options, run=run, trace=trace)


def _bury(client: Client, begun: BegunJobs, before: str | None, successor: str) -> None:
    """Say of the lives before that they are over: an agent that was killed could not. They need not be known there.

    Args:
        client: of the service.
        begun: the jobs of the run's lives.
        before: what the job of the life before would be called.
        successor: the job that goes on.
    """
    for job in dict.fromkeys([*begun.going_on, *([] if before is None else [before])]):
        try:
            client.end(job, Outcome.FAILED, reason=f"its agent is gone; {successor} goes on", by="agent")
        except (ConflictError, NotFoundError):
            pass  # it has ended, or was never there
        except KintsugiError:  # the next life says so
            return
        if job in begun.going_on:
            begun.over(job)


def _job_of(make_job: Callable[[], TrainingJob]) -> TrainingJob:
    """The job, of a function that workers can be given.

    Raises:
        InvalidInputError: they cannot, it makes no job, or the learning rate is wrong from the first step on.
    """
    function("make_job", make_job, hint="give the function that makes the job, at the top level of a module, not what it returns")
    require_importable(make_job)
    job: object = made(make_job)
    if not isinstance(job, TrainingJob):
        kind = type(job).__name__
        raise InvalidInputError(f"returns a {kind}; return a TrainingJob", field="make_job", value=kind)
    if job.learning_rate_factor is not None:
        finite_factor(job.learning_rate_factor(0), 0)
    return job


def _options(
    options: AgentOptions, membership: Governance | str | None, faults: Sequence[Fault], trace: str | Path | None
) -> AgentOptions:
    """The caller's options with what has arguments of its own; whatever the fork server has to know is told before it starts."""
    if membership is not None:
        options = replace(options, governance=checks.choice(Governance, "membership", membership))
    if options.governance is Governance.RING:
        preload(PLANNER)
    worker = replace(options.worker, faults=(*options.worker.faults, *faults))
    if trace is not None:
        worker = replace(worker, trace=TraceOptions(folder=Path(trace).absolute()))
    return replace(options, worker=worker)


def _on_devices(options: WorkerOptions, job: TrainingJob, names: Sequence[str]) -> WorkerOptions:
    """The workers' options with their devices, and what NCCL has to find in their environment.

    The fork server hands that on: a script that uses CUDA as it is imported does so before its worker could set it.

    Raises:
        InvalidInputError: two workers would share a device, or the environment says something else.
    """
    own = placed(options, job.device, names, torch.cuda.device_count())
    if own.transport is TransportKind.NCCL:
        prepare_environment()
    return own


def _mending(policy: Policy | str | None, *, has_folder: bool) -> Policy | None:
    """The pinned policy.

    Raises:
        InvalidInputError: there is none of that name, or the first loss would end the job under it.
    """
    if policy is None:
        return None
    pinned = checks.choice(Policy, "policy", policy, without=_MENDS_NOTHING)
    if pinned is Policy.CHECKPOINT_RESTART and not has_folder:
        raise InvalidInputError("needs checkpoints, and none are written: say run=...", field="policy", value=pinned.value)
    if (why := _MENDS_NOTHING.get(pinned)) is not None:
        raise InvalidInputError(f"{why}: pin another one, or none", field="policy", value=pinned.value)
    return pinned


def _folder_for(run: Path, options: AgentOptions) -> RunLock:
    """The lock on the folder of a run, which is made where it is missing.

    Raises:
        InvalidInputError: such workers write nothing, or the folder cannot be made.
    """
    if options.governance is Governance.RING:
        raise InvalidInputError("writes no checkpoints; leave run out, or say membership='agent'", field="membership", value="ring")
    make_run_folder(run, "run")
    return RunLock(run)


def _run(
    make_job: Callable[[], TrainingJob], request: JobRequest, decisions: Decisions, options: AgentOptions, observer: Observer | None
) -> RunResult:
    with Agent(make_job, request, decisions, options=options, observer=observer) as agent, put_off(agent.end_soon):
        return agent.run()


def _starting_plan(
    profile: Profile, cluster: Cluster, settings: JobSettings, dp: int | None, pp: int | None, *, least_dp: int
) -> Plan | None:
    """The fault-free plan of the asked degrees, of `least_dp` pipelines where that is possible and nothing else was asked for.

    None leaves both to whoever decides.
    """
    if dp is None and 1 < least_dp <= settings.num_microbatches:
        with suppress(InfeasibleError):
            return _plan_within(Ranges(min_dp=least_dp, min_pp=pp or 1, max_pp=pp), profile, cluster, settings)
    if dp is None and pp is None:
        return None
    return _plan_within(Ranges(min_dp=dp or 1, max_dp=dp, min_pp=pp or 1, max_pp=pp), profile, cluster, settings)


def _plan_within(ranges: Ranges, profile: Profile, cluster: Cluster, settings: JobSettings) -> Plan:
    asked = replace(settings, ranges=ranges, policy=None)
    alive = tuple(worker.id for worker in cluster.workers)
    with told_as(_AS_DEGREES):
        return planned(Snapshot(profile=profile, cluster=cluster, settings=asked, plan=None, alive=alive, generation=0)).plan
