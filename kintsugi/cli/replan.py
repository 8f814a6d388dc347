"""`kintsugi replan`: the plan after failures and arrivals, with every alternative."""

import itertools
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from kintsugi.cli.deciding import decide
from kintsugi.cli.output import Format, print_decision, print_json
from kintsugi.cli.plan import (
    AS_OPTIONS,
    MaxDp,
    MaxPp,
    Microbatches,
    MinDp,
    MinPp,
    OutputFormat,
    ProfileFile,
    ScheduleName,
    WorkersPerHost,
    first_snapshot,
    load_cluster,
    load_profile,
    refuse_beside_cluster,
    require_few,
)
from kintsugi.core import checks, codec
from kintsugi.core.cluster import MOST_WORKERS, Cluster, Worker, host_name, worker_name
from kintsugi.core.errors import InvalidInputError, some, told_as
from kintsugi.core.job import DEFAULT_MTBF_SECONDS, JobSettings, Ranges, Snapshot
from kintsugi.core.plan import Plan, Policy, Schedule
from planner.adoption import fitting

NUMBER = r"\d{1,18}"
"""Of a pipeline, a stage or a host; longer ones are none, and Python reads no number of thousands of digits."""


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("replan", help="The best plan after failures and arrivals, with all alternatives.")(replan)


def replan(
    *,
    profile: ProfileFile,
    num_microbatches: Microbatches,
    dp: Annotated[int | None, typer.Option("--dp", help="Pipelines of the fault-free plan.")] = None,
    pp: Annotated[int | None, typer.Option("--pp", help="Stages of the fault-free plan.")] = None,
    workers_per_host: WorkersPerHost = 1,
    plan: Annotated[Path | None, typer.Option("--plan", help="The plan that runs now (JSON).")] = None,
    cluster: Annotated[
        Path | None, typer.Option("--cluster", help="The workers as they are now, with their links and speeds (JSON).")
    ] = None,
    fail: Annotated[list[str] | None, typer.Option("--fail", help="Pipeline/stage, or a worker's id.")] = None,
    fail_host: Annotated[list[str] | None, typer.Option("--fail-host", help="Number or id of a host.")] = None,
    join: Annotated[int, typer.Option("--join", help=f"So many workers join, to a job of at most {MOST_WORKERS:,}.", min=0)] = 0,
    mtbf_seconds: Annotated[float, typer.Option("--mtbf-seconds", help="Mean time between failures.")] = DEFAULT_MTBF_SECONDS,
    policy: Annotated[Policy | None, typer.Option("--policy", help="Pin the policy.")] = None,
    allow_follow_up: Annotated[
        bool, typer.Option("--allow-follow-up", help="The trainer can carry out plans of two steps.")
    ] = False,
    min_dp: MinDp = 1,
    max_dp: MaxDp = None,
    min_pp: MinPp = 1,
    max_pp: MaxPp = None,
    schedule: ScheduleName = Schedule.ONE_F_ONE_B,
    format: OutputFormat = Format.TABLE,  # noqa: A002  # the option's name
) -> None:
    """The best plan after failures and arrivals, with all alternatives."""
    _refuse_two_steps(policy, allow_follow_up)
    if join == 0:  # workers that join share hosts of their own
        refuse_beside_cluster(workers_per_host, cluster)
    checks.mean_time("mtbf_seconds", mtbf_seconds)
    settings = JobSettings(
        num_microbatches=num_microbatches,
        ranges=Ranges(min_dp=min_dp, max_dp=max_dp, min_pp=min_pp, max_pp=max_pp),
        schedule=schedule,
        mtbf_seconds=mtbf_seconds,
        policy=policy,
        allows_follow_up=allow_follow_up,
    )
    if plan is None:
        before = _grid_snapshot(profile, settings, (dp, pp), workers_per_host, cluster)
    else:
        _refuse_both(dp, pp)
        before = _running_snapshot(profile, settings, plan, workers_per_host, cluster)
    decision = decide(_after(before, fail or [], fail_host or [], join, workers_per_host))
    if format is Format.JSON:
        print_json(codec.encode(decision))
    else:
        print_decision(decision)


def _refuse_two_steps(policy: Policy | None, allow_follow_up: bool) -> None:
    if policy is Policy.DEFERRED_PARALLELISM and not allow_follow_up:
        message = "has two steps: add --allow-follow-up where the trainer can carry out both"
        raise InvalidInputError(message, field="policy", value=policy.value)


def _refuse_both(dp: int | None, pp: int | None) -> None:
    for field, value in (("dp", dp), ("pp", pp)):
        if value is not None:
            raise InvalidInputError("contradicts --plan; give either --plan or --dp and --pp", field=field, value=value)


def _grid_snapshot(
    profile: Path, settings: JobSettings, grid: tuple[int | None, int | None], workers_per_host: int, cluster: Path | None
) -> Snapshot:
    """The job on its fault-free D x P plan."""
    dp, pp = grid
    for field, value in (("dp", dp), ("pp", pp)):
        if value is None:
            raise InvalidInputError("is needed: give --dp and --pp, or --plan", field=field)
        checks.positive(field, value)
    assert dp is not None
    assert pp is not None
    require_few("dp" if dp > pp else "pp", dp * pp, max(dp, pp))
    fixed = replace(settings, ranges=Ranges(min_dp=dp, max_dp=dp, min_pp=pp, max_pp=pp), policy=None)
    workers = load_cluster(cluster) if cluster else Cluster.uniform(dp * pp, workers_per_host=workers_per_host)
    with told_as({"min_dp": "dp", "min_pp": "pp"}):
        first = decide(first_snapshot(load_profile(profile), workers, fixed))
    return replace(first_snapshot(load_profile(profile), workers, settings), plan=first.plan, generation=first.plan.generation + 1)


def _running_snapshot(profile: Path, settings: JobSettings, plan: Path, workers_per_host: int, cluster: Path | None) -> Snapshot:
    """The job on the plan of a file: the plan alone, or what `plan` or `replan` printed."""
    running = load_plan(plan)
    named = (*running.workers, *(idle.worker for idle in running.idle_workers))
    workers = load_cluster(cluster) if cluster else cluster_around(named, workers_per_host)
    alive, model = tuple(worker for worker in workers.by_id if worker in set(named)), load_profile(profile)
    with told_as(AS_OPTIONS):
        return Snapshot(
            profile=model,
            cluster=workers,
            settings=settings,
            plan=fitting(running, model, workers),
            alive=alive,
            generation=running.generation + 1,
            speeds_changed=cluster is not None,  # nothing says how fast its workers were when the plan was made
        )


def load_plan(path: Path) -> Plan:
    """The plan of a file: the plan alone, or what `plan` or `replan` printed."""
    data = codec.load(dict[str, Any], path, named="--plan")
    with codec.read_from(path, "--plan"):
        return codec.decode(Plan, data["plan"], field="plan") if "plan" in data else codec.decode(Plan, data)


def cluster_around(workers: Sequence[str], workers_per_host: int) -> Cluster:
    """Equal workers up to the highest number that a plan names.

    Raises:
        InvalidInputError: a worker has no number, or one that is too high.
    """
    numbers = []
    for worker in workers:
        match = re.fullmatch(r"w(\d{2,})", worker)
        if match is None:
            raise InvalidInputError("is no w and a number; give --cluster", field="plan", value=worker)
        numbers.append(int(match[1]))
        require_few("plan", numbers[-1] + 1, worker)
    return Cluster.uniform(max(numbers) + 1, workers_per_host=workers_per_host)


def _after(before: Snapshot, fail: Sequence[str], fail_host: Sequence[str], join: int, workers_per_host: int) -> Snapshot:
    """The snapshot once all failures and arrivals happened."""
    lost: set[str] = set()
    for name in fail:
        worker = _named(before, name)
        if worker in lost:
            raise InvalidInputError(f"{worker} is named twice", field="fail", value=name)
        lost.add(worker)
    for host in fail_host:
        workers = _workers_on(before, host)
        if twice := lost.intersection(workers):
            raise InvalidInputError(f"{min(twice)} is named twice", field="fail_host", value=host)
        lost.update(workers)
    alive = tuple(worker for worker in before.alive if worker not in lost)
    return _joined(replace(before, alive=alive), lost, join, workers_per_host)


def _named(before: Snapshot, name: str) -> str:
    """The living worker that `--fail` names: `pipeline/stage` or an id."""
    worker: str | None = name
    if match := re.fullmatch(rf"({NUMBER})/({NUMBER})", name):
        assert before.plan is not None
        pipeline, stage = int(match[1]), int(match[2])
        if pipeline >= before.plan.dp or stage >= len(before.plan.pipelines[pipeline].stages):
            raise InvalidInputError("is no slot of the plan; write pipeline/stage, counted from 0", field="fail", value=name)
        worker = before.plan.pipelines[pipeline].stages[stage].worker
        if worker is None:
            raise InvalidInputError("is dead already", field="fail", value=name)
    if worker not in before.cluster.by_id:
        known = f"it has {some(before.cluster.by_id)}"
        raise InvalidInputError(f"is neither pipeline/stage nor a worker of the cluster; {known}", field="fail", value=name)
    if worker not in before.alive:
        raise InvalidInputError("is dead already", field="fail", value=name)
    return worker


def _workers_on(before: Snapshot, host: str) -> tuple[str, ...]:
    """The workers of the host that `--fail-host` names, some of which live."""
    workers = before.cluster.workers_on(host_name(int(host)) if re.fullmatch(NUMBER, host) else host)
    if not workers:
        raise InvalidInputError(f"is no host of the cluster; it has {some(before.cluster.hosts)}", field="fail_host", value=host)
    if not set(workers).intersection(before.alive):
        raise InvalidInputError("is dead already", field="fail_host", value=host)
    return workers


def _joined(snapshot: Snapshot, lost: set[str], join: int, workers_per_host: int) -> Snapshot:
    """`join` more workers: first those of the cluster that the plan does not know, then new ones on new hosts."""
    known = [worker for worker in snapshot.cluster.by_id if worker not in snapshot.alive and worker not in lost]
    require_few("join", len(snapshot.cluster.workers) + max(0, join - len(known)), join)
    names = (name for name in map(worker_name, itertools.count()) if name not in snapshot.cluster.by_id)
    hosts = (name for name in map(host_name, itertools.count()) if name not in snapshot.cluster.hosts)
    shared = itertools.chain.from_iterable(itertools.repeat(host, workers_per_host) for host in hosts)
    fresh = tuple(
        Worker(id=name, host=host) for name, host in itertools.islice(zip(names, shared, strict=False), max(0, join - len(known)))
    )
    cluster = snapshot.cluster.with_workers((*snapshot.cluster.workers, *fresh)) if fresh else snapshot.cluster
    alive = {*snapshot.alive, *known[:join], *(worker.id for worker in fresh)}
    return replace(snapshot, cluster=cluster, alive=tuple(worker for worker in cluster.by_id if worker in alive))
