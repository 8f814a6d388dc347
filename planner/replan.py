"""The one entry point: from a snapshot to a decision."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

from estimator.costs import Costs
from estimator.estimate import after_transition, estimate
from estimator.goodput import migration_seconds, rerouting_seconds, restart_seconds
from estimator.schedule import require_known
from kintsugi.core.errors import InfeasibleError, InvalidInputError, StateLostError
from kintsugi.core.job import JobSettings, Snapshot
from kintsugi.core.plan import Decision, Estimate, IdleWorker, Migration, Plan, Policy, Schedule, Search
from planner.deferral import defer
from planner.placement import Holdings
from planner.policy import Candidate, Refusal, alternatives, break_even, choose, reason, survivable
from planner.reliability import with_estimated_mtbf
from planner.rerouting import reroute
from planner.reshaping import Found, Request, reshape
from planner.substitution import substitute
from restorer.migration import plan_migration, require_state

JOINED = "joined; moving the job onto it costs more than it brings"


@dataclass(frozen=True)
class _Case:
    """A snapshot with what follows from it at once."""

    snapshot: Snapshot

    @cached_property
    def costs(self) -> Costs:
        return Costs(self.snapshot.profile, self.snapshot.cluster)

    @cached_property
    def plan(self) -> Plan:
        assert self.snapshot.plan is not None
        return self.snapshot.plan

    @cached_property
    def alive(self) -> tuple[str, ...]:
        """Usable workers in cluster order."""
        return tuple(sorted(self.snapshot.alive, key=self.snapshot.cluster.order.__getitem__))

    @cached_property
    def survivors(self) -> frozenset[str]:
        """Workers of the plan that are alive with their state."""
        return frozenset(self.plan.workers) & frozenset(self.alive) - frozenset(self.snapshot.stateless)

    @cached_property
    def spares(self) -> tuple[str, ...]:
        """Living workers without state."""
        return tuple(worker for worker in self.alive if worker not in self.survivors)

    @cached_property
    def is_unchanged(self) -> bool:
        """Nothing was lost, nothing joined, nobody became slower or faster than the rest, and no second step is open."""
        known = {idle.worker for idle in self.plan.idle_workers}
        complete = len(self.survivors) == len(self.plan.workers)
        speeds = {self.snapshot.cluster.by_id[worker].speed_ratio for worker in self.survivors}
        is_half_done = self.plan.policy is Policy.DEFERRED_PARALLELISM
        return complete and set(self.spares) <= known and len(speeds) == 1 and not is_half_done


def replan(snapshot: Snapshot) -> Decision:
    """Decide what should run now. A pure function of the snapshot, but for `search.elapsed_seconds`.

    Raises:
        InvalidInputError: the snapshot contradicts itself.
        StateLostError: no survivor holds some layer, and there is no checkpoint.
        InfeasibleError: nothing fits the ranges or memory, or the pinned policy is impossible.
    """
    _require_known(snapshot.settings)
    if not snapshot.alive:
        raise InfeasibleError("no worker is left", field="alive", value=[])
    case = _Case(with_estimated_mtbf(snapshot))
    if snapshot.plan is None:
        return _first(case)
    _require_consistent(case)
    return _keep(case) if case.is_unchanged else _recover(case)


def _require_known(settings: JobSettings) -> None:
    if settings.schedule is not Schedule.AUTO:
        require_known(settings.schedule)
    if settings.policy is Policy.DEFERRED_PARALLELISM and not settings.allows_follow_up:
        raise InvalidInputError(
            "has two steps: set allows_follow_up where the trainer can carry out both", field="policy", value=settings.policy.value
        )


def _require_consistent(case: _Case) -> None:
    settings, cluster = case.snapshot.settings, case.snapshot.cluster
    if case.plan.num_microbatches != settings.num_microbatches:
        raise InvalidInputError(
            f"is {settings.num_microbatches} where the plan distributes {case.plan.num_microbatches}",
            field="num_microbatches",
            value=settings.num_microbatches,
        )
    for worker in case.plan.workers:
        if worker not in cluster.by_id:
            raise InvalidInputError("holds a stage of the plan, but is no worker of the cluster", field="plan", value=worker)


def _first(case: _Case) -> Decision:
    """The fault-free plan."""
    found = _reshape(case, Holdings(None, ()), Policy.FAULT_FREE)
    candidate = Candidate(Policy.FAULT_FREE, found.plan, found.estimate, found.migration, "the shortest step that was found")
    return _decision(case, candidate, [candidate], [], found.search)


def _keep(case: _Case) -> Decision:
    """The plan that runs already, with the same policy."""
    idle = tuple(idle for idle in case.plan.idle_workers if idle.worker in case.alive)
    plan = replace(case.plan, generation=case.snapshot.generation, idle_workers=idle)
    price = estimate(plan, case.snapshot.profile, case.snapshot.cluster, mtbf_seconds=case.snapshot.settings.mtbf_seconds)
    kept = Candidate(plan.policy, plan, price, Migration(), "nothing was lost and nothing joined, so the plan stays")
    bound = Search(lower_bound_seconds=price.iteration_seconds, gap_ratio=0.0, elapsed_seconds=0.0)
    return _decision(case, kept, [kept], [], bound)


def _recover(case: _Case) -> Decision:
    """Every policy's best plan, compared by equation 8."""
    candidates: list[Candidate] = []
    refusals: list[Refusal] = []
    found: list[Found] = []
    lost: StateLostError | None = None
    for policy, attempt in _attempts(case, candidates, found):
        try:
            candidates.append(attempt())
        except StateLostError as error:
            lost = error
            refusals.append(Refusal(policy, str(error)))
        except InfeasibleError as error:
            refusals.append(Refusal(policy, str(error)))
    allowed = _allowed(case, candidates, refusals, lost)
    chosen = choose(allowed)
    search = (
        found[0].search
        if found
        else Search(lower_bound_seconds=chosen.estimate.iteration_seconds, gap_ratio=0.0, elapsed_seconds=0.0)
    )
    return _decision(case, chosen, candidates, refusals, search)


def _attempts(case: _Case, candidates: list[Candidate], found: list[Found]) -> list[tuple[Policy, Callable[[], Candidate]]]:
    """How each policy is tried, in an order in which later ones find in `candidates` and `found` what they build on."""
    attempts: list[tuple[Policy, Callable[[], Candidate]]] = [
        (Policy.DATA_REROUTING, lambda: _rerouting(case)),
        (Policy.SPARE_SUBSTITUTION, lambda: _substitution(case)),
        (Policy.DYNAMIC_PARALLELISM, lambda: _dynamic(case, found)),
    ]
    if case.snapshot.settings.allows_follow_up:
        attempts.append((Policy.DEFERRED_PARALLELISM, lambda: _deferred(case, candidates)))
    return [*attempts, (Policy.CHECKPOINT_RESTART, lambda: _restart(case, found))]


def _allowed(case: _Case, candidates: list[Candidate], refusals: list[Refusal], lost: StateLostError | None) -> list[Candidate]:
    """The candidates that the job allows.

    Raises:
        StateLostError: state is lost and no checkpoint can bring it back.
        InfeasibleError: none is left; says why.
    """
    pinned = case.snapshot.settings.policy
    allowed = [c for c in candidates if pinned in (None, c.policy)]
    if allowed:
        return allowed
    if lost is not None:
        raise lost
    why = "; ".join(f"{r.policy.value}: {r.reason}" for r in refusals if pinned in (None, r.policy))
    raise InfeasibleError(why or "the policy does not apply here", field="policy", value=pinned.value if pinned else None)


def _rerouting(case: _Case) -> Candidate:
    """Dead slots rerouted; where none died anew, also the plan as it runs, which costs no transition."""
    require_state(case.plan, case.survivors)
    plan, price = reroute(case.plan, case.survivors, case.costs)
    text = "living replicas take the micro-batches of the dead slots and nothing moves"
    rerouted = _unmoved(case, plan, price, rerouting_seconds(case.snapshot.profile.recovery), text)
    if len(case.survivors) < len(case.plan.workers):
        return rerouted
    price = estimate(case.plan, case.snapshot.profile, case.snapshot.cluster)
    return choose([_unmoved(case, case.plan, price, 0.0, "the plan stays"), rerouted])


def _unmoved(case: _Case, plan: Plan, price: Estimate, transition_seconds: float, text: str) -> Candidate:
    """A plan for which nothing has to move."""
    _require_memory(case, price)
    plan = replace(plan, policy=Policy.DATA_REROUTING, generation=case.snapshot.generation, idle_workers=_idle(case, plan))
    return Candidate(Policy.DATA_REROUTING, plan, _after(case, price, transition_seconds), Migration(), text)


def _substitution(case: _Case) -> Candidate:
    require_state(case.plan, case.survivors)
    plan, price = substitute(case.plan, case.survivors, case.spares, case.costs)
    plan = replace(plan, generation=case.snapshot.generation, idle_workers=_idle(case, plan))
    _require_memory(case, price)
    migration = _migration(case, plan)
    seconds = migration_seconds(case.snapshot.profile.recovery, migration.makespan_seconds)
    return Candidate(Policy.SPARE_SUBSTITUTION, plan, _after(case, price, seconds), migration, "spare workers take dead slots over")


def _dynamic(case: _Case, found: list[Found]) -> Candidate:
    require_state(case.plan, case.survivors)
    best = _reshape(case, Holdings(case.plan, case.survivors), Policy.DYNAMIC_PARALLELISM)
    found.append(best)
    text = "a new arrangement of the workers that are left outweighs its migration"
    return Candidate(Policy.DYNAMIC_PARALLELISM, best.plan, best.estimate, best.migration, text)


def _deferred(case: _Case, candidates: list[Candidate]) -> Candidate:
    made = {candidate.policy: candidate for candidate in candidates}
    for policy in (Policy.DATA_REROUTING, Policy.DYNAMIC_PARALLELISM):
        if policy not in made:
            raise InfeasibleError(f"needs {policy.value}, which is impossible here", field="policy")
    steps = made[Policy.DATA_REROUTING], made[Policy.DYNAMIC_PARALLELISM]
    return defer(*steps, case.costs, case.snapshot.settings.mtbf_seconds)


def _restart(case: _Case, found: list[Found]) -> Candidate:
    seconds = restart_seconds(case.snapshot.profile)
    if seconds is None:
        raise InfeasibleError("the profile names no checkpoints", field="recovery.checkpoint_interval_seconds")
    if not found:
        found.append(_reshape(case, Holdings(None, ()), Policy.CHECKPOINT_RESTART))
    plan = replace(found[0].plan, policy=Policy.CHECKPOINT_RESTART)
    price = _after(case, found[0].estimate, seconds)
    return Candidate(Policy.CHECKPOINT_RESTART, plan, price, Migration(), "all workers restart from the last checkpoint")


def _reshape(case: _Case, holdings: Holdings, policy: Policy) -> Found:
    return reshape(Request(case.costs, case.snapshot.settings, case.alive, holdings, case.snapshot.generation, policy))


def _migration(case: _Case, plan: Plan) -> Migration:
    return plan_migration(case.plan, plan, case.snapshot.profile, case.snapshot.cluster, case.survivors)


def _after(case: _Case, price: Estimate, reconfiguration_seconds: float) -> Estimate:
    return after_transition(price, reconfiguration_seconds, case.snapshot.settings.mtbf_seconds)


def _require_memory(case: _Case, price: Estimate) -> None:
    device = case.snapshot.profile.device
    for stage in price.stages:
        memory = case.snapshot.cluster.by_id[stage.worker].memory_bytes
        usable = device.usable_bytes if memory is None else memory - device.reserved_bytes
        if stage.peak_memory_bytes > usable:
            raise InfeasibleError(
                f"worker {stage.worker} lacks {stage.peak_memory_bytes - usable} bytes for layers "
                f"{stage.layer_start} to {stage.layer_stop - 1} with {stage.num_in_flight} micro-batches in flight",
                field="memory_bytes",
                value=usable,
            )


def _idle(case: _Case, plan: Plan) -> tuple[IdleWorker, ...]:
    """Living workers that `plan` does not use; those that were idle before keep their reason."""
    before = {idle.worker: idle.reason for idle in case.plan.idle_workers}
    used = set(plan.workers)
    return tuple(IdleWorker(worker=w, reason=before.get(w, JOINED)) for w in case.alive if w not in used)


def _decision(case: _Case, chosen: Candidate, candidates: list[Candidate], refusals: list[Refusal], search: Search) -> Decision:
    settings = case.snapshot.settings
    bound = min(search.lower_bound_seconds, chosen.estimate.iteration_seconds)
    return Decision(
        policy=chosen.policy,
        reason=reason(chosen, candidates, settings.mtbf_seconds, pinned=settings.policy is not None),
        plan=chosen.plan,
        estimate=chosen.estimate,
        search=replace(search, lower_bound_seconds=bound, gap_ratio=chosen.estimate.iteration_seconds / bound - 1),
        migration=chosen.migration,
        survivable=survivable(chosen.plan, case.snapshot.cluster),
        break_even_mtbf_seconds=break_even(chosen, candidates, settings.mtbf_seconds),
        previous_plan=case.snapshot.plan,
        alternatives=alternatives(candidates, refusals),
        follow_up=chosen.follow_up,
        mtbf_seconds=settings.mtbf_seconds,
        failures=case.snapshot.failures,
    )
