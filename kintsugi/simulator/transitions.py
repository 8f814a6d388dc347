"""What moving from one plan to another takes, for policies that do not ask the planner."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from estimator.costs import Costs
from estimator.estimate import estimate
from estimator.goodput import migration_seconds, restart_seconds
from kintsugi.core.cluster import Cluster
from kintsugi.core.decision import Estimate
from kintsugi.core.errors import InfeasibleError
from kintsugi.core.job import JobSettings, Ranges, Snapshot
from kintsugi.core.plan import IdleWorker, Plan, Policy
from kintsugi.core.profile import OptimizerSharding, Profile
from kintsugi.simulator.job import Job
from planner.arranging.degrees import degrees
from planner.arranging.request import Request
from planner.placing.placement import Holdings
from planner.policies.found import Found
from planner.policies.reshaping import reshape
from restorer.migration import plan_migration
from restorer.rounds import fastest_rounds

NOT_USED = "the policy has no place for it"


@dataclass(frozen=True, slots=True)
class Survivors:
    """A snapshot's living workers: those that hold a stage of its plan with its state, and all others."""

    holding: frozenset[str]
    empty: tuple[str, ...]

    @classmethod
    def of(cls, snapshot: Snapshot) -> "Survivors":
        """Of a snapshot, whose plan may be missing."""
        held = frozenset(snapshot.plan.workers) if snapshot.plan is not None else frozenset()
        holding = held & frozenset(snapshot.alive) - frozenset(snapshot.stateless)
        return cls(holding, tuple(worker for worker in snapshot.alive if worker not in holding))


def restart_pause_seconds(profile: Profile) -> float:
    """Detection, starting all processes, and reading the state from the checkpoint; lost work is counted as it occurs."""
    recovery = profile.recovery
    whole = restart_seconds(profile)
    if whole is None:
        return recovery.detect_seconds + recovery.restart_seconds
    assert recovery.checkpoint_interval_seconds is not None
    return whole - recovery.checkpoint_interval_seconds / 2


def migration_pause_seconds(snapshot: Snapshot, plan: Plan) -> float:
    """Detection, regrouping, and moving what `plan` needs from survivors that hold it.

    Raises:
        StateLostError: no survivor holds some layer.
    """
    assert snapshot.plan is not None
    moves = plan_migration(snapshot.plan, plan, snapshot.profile, snapshot.cluster, Survivors.of(snapshot).holding)
    return migration_seconds(snapshot.profile.recovery, moves.makespan_seconds)


def priced(plan: Plan, snapshot: Snapshot) -> Estimate:
    """The estimator's price of a plan whose rounds are not coloured yet, together with memory.

    Raises:
        InfeasibleError: a stage does not fit its memory.
    """
    price = estimate(plan, snapshot.profile, snapshot.cluster)
    require_memory(snapshot, price)
    return price


def require_memory(snapshot: Snapshot, price: Estimate) -> None:
    """Refuse what does not fit.

    Raises:
        InfeasibleError: a stage does not fit its memory.
    """
    for stage in price.stages:
        usable = snapshot.cluster.by_id[stage.worker].usable_bytes(snapshot.profile.device)
        if stage.peak_memory_bytes > usable:
            raise InfeasibleError(
                f"worker {stage.worker} lacks {stage.peak_memory_bytes - usable} bytes", field="memory_bytes", value=usable
            )


def finished(plan: Plan, snapshot: Snapshot, policy: Policy) -> Plan:
    """A plan with its reductions in rounds, and with all living workers that it does not use."""
    used = set(plan.workers)
    idle = tuple(IdleWorker(worker=worker, reason=NOT_USED) for worker in snapshot.alive if worker not in used)
    plain = plan.amended(policy=policy, rounds=(), idle_workers=idle)
    return plain.amended(rounds=fastest_rounds(plain, Costs(snapshot.profile, snapshot.cluster)))


def grid(snapshot: Snapshot, workers: Sequence[str], dp: int, pp: int, *, keeps_state: bool, policy: Policy) -> Found:
    """`dp` equal pipelines of `pp` stages on some of `workers`; layers and micro-batches are spread as well as can be.

    Args:
        snapshot: what runs, and who lives.
        workers: that may be used, in cluster order.
        dp: number of pipelines.
        pp: stages of each.
        keeps_state: whether workers keep what they hold, so that as little as possible moves.
        policy: that the plan is made by.

    Raises:
        InfeasibleError: the grid does not fit memory.
        StateLostError: state is to be kept, and no survivor holds some layer.
    """
    ranges = Ranges(min_dp=dp, max_dp=dp, min_pp=pp, max_pp=pp)
    held = Holdings(snapshot.plan, Survivors.of(snapshot).holding) if keeps_state else Holdings(None, ())
    costs = Costs(snapshot.profile, snapshot.cluster)
    settings = replace(snapshot.settings, ranges=ranges)
    found = reshape(Request(costs, settings, tuple(workers), held, snapshot.generation, policy))
    return replace(found, plan=_with_idle(found.plan, snapshot.alive))


def _with_idle(plan: Plan, alive: Collection[str]) -> Plan:
    """The plan with every living worker that it does not use."""
    used = set(plan.workers)
    return plan.amended(idle_workers=tuple(IdleWorker(worker=w, reason=NOT_USED) for w in alive if w not in used))


def fastest_grid(job: Job, num_workers: int) -> tuple[int, int]:
    """Pipelines and stages of the fastest plan of equal pipelines on so many equal workers.

    Raises:
        InfeasibleError: none fits the ranges or memory.
    """
    return _fastest_grid(job.profile, job.settings, num_workers)


@lru_cache(1024)
def _fastest_grid(profile: Profile, settings: JobSettings, num_workers: int) -> tuple[int, int]:
    work = sum(layer.forward_seconds + layer.backward_seconds for layer in profile.layers)
    best: tuple[float, int, int] | None = None
    for dp, pp in _grids(profile, settings, num_workers):
        if best is not None and _largest_share(settings, dp) * work / pp >= best[0]:  # the busiest worker alone takes as long
            continue
        seconds = grid_seconds(profile, settings, dp, pp)
        if seconds is not None and (best is None or seconds < best[0]):
            best = seconds, dp, pp
    if best is None:
        raise InfeasibleError("no grid of equal pipelines fits the ranges and memory", field="workers", value=num_workers)
    return best[1], best[2]


def _grids(profile: Profile, settings: JobSettings, num_workers: int) -> Iterator[tuple[int, int]]:
    """Pipelines and stages of all grids that may be the fastest: first those of the most pipelines, for each number of stages.

    More pipelines whose largest share of the micro-batches is no smaller only reduce for longer. Where replicas share the
    optimizer's state, they need less memory, too.
    """
    allowed = degrees(settings.ranges, num_workers, profile.num_layers, settings.num_microbatches)
    most = {pp: min(num_workers // pp, allowed.dp[-1]) for pp in allowed.pp if num_workers // pp >= allowed.dp[0]}
    yield from ((greatest, pp) for pp, greatest in most.items())
    is_sharded = profile.optimizer_sharding is not OptimizerSharding.NONE
    for pp, greatest in most.items():
        for dp in range(greatest - 1, allowed.dp[0] - 1, -1):
            if is_sharded or dp == allowed.dp[0] or _largest_share(settings, dp - 1) > _largest_share(settings, dp):
                yield dp, pp


def _largest_share(settings: JobSettings, dp: int) -> int:
    """Micro-batches of the pipeline with the most of them."""
    return -(-settings.num_microbatches // dp)


@lru_cache(4096)
def grid_seconds(profile: Profile, settings: JobSettings, dp: int, pp: int) -> float | None:
    """Step of the best `dp` x `pp` plan on equal workers, in seconds; None where it does not fit memory."""
    cluster = Cluster.uniform(dp * pp)
    snapshot = Snapshot(profile=profile, cluster=cluster, settings=settings, plan=None, alive=tuple(cluster.by_id), generation=0)
    try:
        return grid(snapshot, snapshot.alive, dp, pp, keeps_state=False, policy=Policy.FAULT_FREE).estimate.iteration_seconds
    except InfeasibleError:
        return None
