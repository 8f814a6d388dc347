"""What each policy comes to for a snapshot: its best plan with its price, or why there is none."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from estimator.costs import Costs
from estimator.estimate import after_transition, overfull, priced
from estimator.goodput import (
    charged_goodput,
    goodput_samples_per_second,
    migration_seconds,
    rerouting_seconds,
    restart_seconds,
    throughput_samples_per_second,
)
from kintsugi.core.decision import Estimate, Migration
from kintsugi.core.errors import InfeasibleError
from kintsugi.core.job import Snapshot
from kintsugi.core.plan import IdleWorker, Plan, Policy
from kintsugi.core.profile import OptimizerSharding
from planner.arranging.request import Request
from planner.placing.placement import Holdings
from planner.policies.deferral import defer
from planner.policies.diverting import MOST_GAIN, divert
from planner.policies.found import Found
from planner.policies.policy import Candidate, choose
from planner.policies.rerouting import reroute
from planner.policies.reshaping import ROUNDING, reshape
from planner.policies.substitution import substitute
from restorer.migration import layer_state_bytes, plan_migration, require_state

NOT_WORTH = "moving the job onto it costs more than it brings"
JOINED = f"joined; {NOT_WORTH}"


@dataclass(frozen=True)
class Case:
    """A snapshot with what follows from it at once."""

    snapshot: Snapshot

    @cached_property
    def costs(self) -> Costs:
        """Of the job."""
        return Costs(self.snapshot.profile, self.snapshot.cluster)

    @cached_property
    def request(self) -> Request:
        """Of all living workers, to be arranged as if for the first time; those made of it share what their searches find out."""
        snapshot = self.snapshot
        return Request(self.costs, snapshot.settings, self.alive, Holdings(None, ()), snapshot.generation, Policy.FAULT_FREE)

    @cached_property
    def plan(self) -> Plan:
        """That ran last; there is one but for the first decision."""
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
    def leaving(self) -> frozenset[str]:
        """Workers of the plan that take no part any more, but whose state can still be fetched."""
        return frozenset(self.plan.workers) & frozenset(self.snapshot.draining)

    @cached_property
    def sources(self) -> frozenset[str]:
        """Everybody who can hand state of the plan over."""
        return self.survivors | self.leaving

    @cached_property
    def spares(self) -> tuple[str, ...]:
        """Living workers without state."""
        return tuple(worker for worker in self.alive if worker not in self.survivors)

    @cached_property
    def is_unchanged(self) -> bool:
        """Nothing was lost, nothing joined, all are as fast as they were and as the others, and no second step is open."""
        known = {idle.worker for idle in self.plan.idle_workers}
        complete = len(self.survivors) == len(self.plan.workers)
        speeds = {self.snapshot.cluster.by_id[worker].speed_ratio for worker in self.survivors}
        is_half_done = self.plan.policy is Policy.DEFERRED_PARALLELISM
        is_as_fast = len(speeds) == 1 and not self.snapshot.speeds_changed
        return complete and set(self.spares) <= known and is_as_fast and not is_half_done


def rerouting(case: Case, candidates: Sequence[Candidate]) -> Candidate:
    """Dead slots rerouted; where none died anew, also the plan as it runs, which costs no transition.

    `candidates` are those of other policies: only what may be worth more is sought longer for.

    Raises:
        StateLostError: no survivor holds some state.
        InfeasibleError: no survivor can take a slot, or lacks memory to.
    """
    require_state(case.plan, case.survivors)
    seconds = rerouting_seconds(case.snapshot.profile.recovery)
    plan, price = reroute(case.plan, case.survivors, case.costs)
    if _is_promising(case, Policy.DATA_REROUTING, plan, _after(case, price, seconds), candidates):
        plan, price = divert(plan, price, case.costs)
    text = "living replicas take the micro-batches of the dead slots" if plan.routes else "reductions go along other links"
    rerouted = _rerouted(case, plan, price, seconds, text)
    if len(case.survivors) < len(case.plan.workers):
        return rerouted
    price = priced(case.plan, case.costs)
    stays = _rerouted(case, case.plan, price, 0.0, "the plan stays")
    return choose([stays, rerouted], case.snapshot.settings.mtbf_seconds)


def _is_promising(case: Case, policy: Policy, plan: Plan, price: Estimate, candidates: Sequence[Candidate]) -> bool:
    """Whether a policy's plan with dead slots, at its price with the transition, may be better than what the others came to.

    It may if its step were as short as it may become, or if it is the first step of two.
    """
    settings, is_rerouting = case.snapshot.settings, policy is Policy.DATA_REROUTING
    if settings.policy is not None:
        return settings.policy is policy or (is_rerouting and settings.policy is Policy.DEFERRED_PARALLELISM)
    if is_rerouting and settings.allows_follow_up:
        return True
    most = charged_goodput(price, settings.mtbf_seconds) * (1 + MOST_GAIN * len(plan.dead_slots))
    return most >= _best_goodput(case, candidates)


def _best_goodput(case: Case, candidates: Sequence[Candidate]) -> float:
    """The highest of those that were not refused, in samples per second; less than any where there is none."""
    rivals = (other for other in candidates if other.policy not in case.snapshot.refused_policies)
    return max((other.goodput(case.snapshot.settings.mtbf_seconds) for other in rivals), default=-math.inf)


def _rerouted(case: Case, plan: Plan, price: Estimate, transition_seconds: float, text: str) -> Candidate:
    """A plan for which nobody takes new layers; only shards of optimizer state move, where replicas share it.

    Raises:
        StateLostError: a shard is lost, and there is no checkpoint.
        InfeasibleError: not enough memory.
    """
    _require_memory(case, price)
    is_sharded = case.snapshot.profile.optimizer_sharding is not OptimizerSharding.NONE
    migration = _migration(case, plan) if is_sharded else Migration()
    price = _after(case, price, transition_seconds + migration.makespan_seconds)
    plan = plan.amended(policy=Policy.DATA_REROUTING, generation=case.snapshot.generation, idle_workers=_idle(case, plan))
    moves = "nothing moves" if migration == Migration() else "shards of optimizer state alone move"
    return Candidate(Policy.DATA_REROUTING, plan, price, migration, f"{text} and {moves}")


def substitution(case: Case, candidates: Sequence[Candidate]) -> Candidate:
    """Spare workers in dead slots, what stays dead rerouted; `candidates` as for `rerouting`.

    Raises:
        StateLostError: no survivor holds some layer.
        InfeasibleError: there is no dead slot, no spare, or not enough memory.
    """
    require_state(case.plan, case.sources)
    mtbf_seconds = case.snapshot.settings.mtbf_seconds

    def worth(plan: Plan, price: Estimate) -> float:
        return -math.inf if overfull(price, case.costs) else charged_goodput(_moved(case, plan, price)[0], mtbf_seconds)

    plan, price = substitute(case.plan, case.survivors, case.spares, case.costs, worth)
    moved, migration = _moved(case, plan, price)  # which of its micro-batches a worker takes says nothing about its state
    if _is_promising(case, Policy.SPARE_SUBSTITUTION, plan, moved, candidates):
        plan, price = divert(plan, price, case.costs)
    _require_memory(case, price)
    plan = plan.amended(generation=case.snapshot.generation, idle_workers=_idle(case, plan))
    price = _after(case, price, moved.reconfiguration_seconds)
    return Candidate(Policy.SPARE_SUBSTITUTION, plan, price, migration, "spare workers take dead slots over")


def dynamic(case: Case, found: list[Found]) -> Candidate:
    """The best arrangement of the workers that are left; goes to `found` too.

    Raises:
        StateLostError: no survivor holds some layer.
        InfeasibleError: nothing fits the ranges or memory.
    """
    require_state(case.plan, case.sources)
    best = arrangement(case, Holdings(case.plan, case.survivors, case.leaving), Policy.DYNAMIC_PARALLELISM)
    found.append(best)
    text = "a new arrangement of the workers that are left"
    return Candidate(Policy.DYNAMIC_PARALLELISM, best.plan, best.estimate, best.migration, text)


def deferred(case: Case, candidates: list[Candidate]) -> Candidate:
    """Rerouting now and the new arrangement later, from the `candidates` for both.

    Raises:
        InfeasibleError: one of them is missing, or both together are no use.
    """
    made = {candidate.policy: candidate for candidate in candidates}
    for policy in (Policy.DATA_REROUTING, Policy.DYNAMIC_PARALLELISM):
        if policy not in made:
            raise InfeasibleError(f"needs {policy.value}, which is impossible here", field="policy")
    rerouted, rearranged = made[Policy.DATA_REROUTING], made[Policy.DYNAMIC_PARALLELISM]
    if rerouted.migration != Migration() or case.leaving:  # by then shards have moved, and who leaves is gone
        survivors = frozenset(rerouted.plan.workers)
        later = plan_migration(rerouted.plan, rearranged.plan, case.snapshot.profile, case.snapshot.cluster, survivors)
        rearranged = replace(rearranged, migration=later)
    return defer(rerouted, rearranged, case.costs, case.snapshot.settings.mtbf_seconds)


def restart(case: Case, candidates: Sequence[Candidate], found: list[Found]) -> Candidate:
    """The arrangement in `found` from the last checkpoint, or the best of all where that may win: for a restart nothing moves.

    Raises:
        InfeasibleError: there are no checkpoints, or nothing fits.
    """
    seconds = restart_seconds(case.snapshot.profile)
    if seconds is None:
        raise InfeasibleError("the profile names no checkpoints", field="recovery.checkpoint_interval_seconds")
    known = found[0] if found else None
    if known is None or _may_restart_better(case, known, seconds, candidates):
        known = arrangement(case, Holdings(None, ()), Policy.CHECKPOINT_RESTART)
        found.append(known)
    plan = known.plan.amended(policy=Policy.CHECKPOINT_RESTART)
    price = _after(case, known.estimate, seconds)
    return Candidate(Policy.CHECKPOINT_RESTART, plan, price, Migration(), "all workers restart from the last checkpoint")


def _may_restart_better(case: Case, known: Found, seconds: float, candidates: Sequence[Candidate]) -> bool:
    """Whether a restart onto another arrangement than the known one may be chosen: its step is no shorter than the known bound.

    The known one is the best for those who have to move state. Another may only be better for a restart, which moves none, where
    moving takes longer than a restart does; and it seldom takes longer than all state over the slowest link.
    """
    settings, least = case.snapshot.settings, known.search.lower_bound_seconds
    if Policy.CHECKPOINT_RESTART in case.snapshot.refused_policies or known.search.gap_ratio <= ROUNDING:
        return False
    if settings.policy is not None:
        return settings.policy is Policy.CHECKPOINT_RESTART
    if migration_seconds(case.snapshot.profile.recovery, _slowest_move_seconds(case)) <= seconds:
        return False
    throughput = throughput_samples_per_second(settings.num_microbatches, case.snapshot.profile.microbatch_size, least)
    return goodput_samples_per_second(throughput, seconds, settings.mtbf_seconds) > _best_goodput(case, candidates)


def _slowest_move_seconds(case: Case) -> float:
    """All layers' state, once, over the slowest of all links."""
    profile = case.snapshot.profile
    betas = [link.beta_seconds_per_byte for link in (profile.network.intra_host, profile.network.inter_host)]
    return sum(layer_state_bytes(profile)) * max(betas + [link.beta_seconds_per_byte for link in case.snapshot.cluster.links])


def arrangement(case: Case, holdings: Holdings, policy: Policy) -> Found:
    """The best arrangement of all living workers.

    Raises:
        InfeasibleError: nothing fits the ranges or memory.
    """
    return reshape(replace(case.request, holdings=holdings, policy=policy))


def _migration(case: Case, plan: Plan) -> Migration:
    return plan_migration(case.plan, plan, case.snapshot.profile, case.snapshot.cluster, case.sources)


def _moved(case: Case, plan: Plan, price: Estimate) -> tuple[Estimate, Migration]:
    """The price once the state that a plan needs has moved, and what moves."""
    migration = _migration(case, plan)
    return _after(case, price, migration_seconds(case.snapshot.profile.recovery, migration.makespan_seconds)), migration


def _after(case: Case, price: Estimate, reconfiguration_seconds: float) -> Estimate:
    return after_transition(price, reconfiguration_seconds, case.snapshot.settings.mtbf_seconds)


def _require_memory(case: Case, price: Estimate) -> None:
    if full := overfull(price, case.costs):
        stage = full[0]
        usable = case.costs.usable_bytes(stage.worker)
        raise InfeasibleError(
            f"worker {stage.worker} lacks {stage.peak_memory_bytes - usable} bytes for layers "
            f"{stage.layer_start} to {stage.layer_stop - 1} with {stage.num_in_flight} micro-batches in flight",
            field="memory_bytes",
            value=usable,
        )


def _idle(case: Case, plan: Plan) -> tuple[IdleWorker, ...]:
    """Living workers that `plan` does not use, for what was said of the plan before need not hold for this one."""
    before, used = {idle.worker for idle in case.plan.idle_workers}, set(plan.workers)
    return tuple(IdleWorker(worker=w, reason=NOT_WORTH if w in before else JOINED) for w in case.alive if w not in used)
