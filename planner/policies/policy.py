"""Which policy: equation 8 over every candidate, with the reason and the break-even.

Equation 8 looks at one stretch between two failures, and charges it the transition at its beginning. The one at its end belongs to
the next stretch, and may be left out as long as it does not depend on the plan. It does where a layer has one holder only: if that
one is lost a checkpoint restart is due, and that is this plan's doing. So each plan is charged, beside its transitions, what the
next one is expected to take beyond the least there is (`estimator.goodput.expected_restart_seconds`). Where every loss leaves a
holder that is nothing, and what is maximised is equation 8.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from estimator.goodput import break_even_mtbf_seconds, effective_time_ratio, goodput_samples_per_second
from kintsugi.core.cluster import Cluster
from kintsugi.core.decision import Alternative, Estimate, FollowUp, Migration, Survivable
from kintsugi.core.plan import Plan, Policy

PREFERENCE = (
    Policy.FAULT_FREE,
    Policy.DATA_REROUTING,
    Policy.SPARE_SUBSTITUTION,
    Policy.DYNAMIC_PARALLELISM,
    Policy.DEFERRED_PARALLELISM,
    Policy.CHECKPOINT_RESTART,
)
"""Who wins among equals: the policy that disturbs least."""

MOST_COMBINATIONS = 20_000
"""Of so many failure domains that might be lost together each is looked at; where there are more, that loss counts as fatal."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A policy's best plan with its price."""

    policy: Policy
    plan: Plan
    estimate: Estimate
    migration: Migration
    reason: str
    follow_up: FollowUp | None = None

    @property
    def iteration_seconds(self) -> float:
        """A step once every transition is over."""
        return (self.follow_up or self).estimate.iteration_seconds

    @property
    def transition_seconds(self) -> float:
        """What all transitions take; steps of the plan before a follow-up count as far as they are longer than later ones."""
        first = self.estimate
        if self.follow_up is None:
            return first.reconfiguration_seconds
        second = self.follow_up.estimate
        longer_seconds = first.iteration_seconds - second.iteration_seconds
        return first.reconfiguration_seconds + second.reconfiguration_seconds + self.follow_up.after_steps * longer_seconds

    @property
    def charged_seconds(self) -> float:
        """What the time to the next failure is charged: all transitions, and the restart that this failure may make due."""
        return self.transition_seconds + self.restart_seconds

    @property
    def restart_seconds(self) -> float:
        """What the next failure is expected to cost more because it may make a restart due."""
        return (self.follow_up or self).estimate.expected_restart_seconds

    def goodput(self, mtbf_seconds: float) -> float:
        """Equation 8 over all that is charged, in samples per second: what candidates are compared by."""
        throughput = (self.follow_up or self).estimate.throughput_samples_per_second
        return goodput_samples_per_second(throughput, self.charged_seconds, mtbf_seconds)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a policy is impossible."""

    policy: Policy
    reason: str


def choose(candidates: Sequence[Candidate], mtbf_seconds: float) -> Candidate:
    """The candidate with the highest goodput over all that it is charged; ties go to the one that disturbs least.

    Where all that is charged leaves no goodput at all, the next failure may come later than expected, or make no restart due: it is
    then the candidate with the highest goodput over its transition alone, or the one that is through with that first, and then
    the one with the shortest step.
    """

    def rank(candidate: Candidate) -> tuple[float, ...]:
        goodput, preference = candidate.goodput(mtbf_seconds), PREFERENCE.index(candidate.policy)
        if goodput > 0.0:
            return -goodput, preference
        transition, step = candidate.transition_seconds, candidate.iteration_seconds
        return 0.0, -effective_time_ratio(transition, mtbf_seconds) / step, transition, step, preference

    return min(candidates, key=rank)


def alternatives(candidates: Sequence[Candidate], refusals: Sequence[Refusal], mtbf_seconds: float) -> tuple[Alternative, ...]:
    """Every policy that was considered, in the order of preference."""
    feasible = [
        Alternative(
            policy=c.policy,
            feasible=True,
            reason=c.reason,
            estimate=c.estimate,
            charged_goodput_samples_per_second=c.goodput(mtbf_seconds),
        )
        for c in candidates
    ]
    refused = [Alternative(policy=r.policy, feasible=False, reason=r.reason, estimate=None) for r in refusals]
    return tuple(sorted((*feasible, *refused), key=lambda item: PREFERENCE.index(item.policy)))


def break_even(chosen: Candidate, candidates: Sequence[Candidate], mtbf_seconds: float) -> float | None:
    """The mean time between failures at which another candidate would win, the nearest in proportion to the present one.

    The candidates are those listed; a search at that time may find one that does better still. None where the choice is
    best at any.
    """
    crossings = []
    for other in candidates:
        if other is chosen:
            continue
        seconds = break_even_mtbf_seconds(
            chosen.iteration_seconds,
            chosen.charged_seconds,
            other.iteration_seconds,
            other.charged_seconds,
        )
        if seconds is not None:
            crossings.append(seconds)
    return min(crossings, key=lambda seconds: abs(math.log(seconds / mtbf_seconds)), default=None)


def reason(
    chosen: Candidate, candidates: Sequence[Candidate], refusals: Sequence[Refusal], mtbf_seconds: float, *, pinned: bool
) -> str:
    """Why this policy, in one or two sentences; where no other was tried there was nothing to choose."""
    mine, risk = chosen.estimate, _risk(chosen, mtbf_seconds)
    others = [other for other in candidates if other is not chosen]
    if not others and not refusals:
        return f"{chosen.reason}: {mine.iteration_seconds:.4g} s a step{risk}."
    price = f"{mine.iteration_seconds:.4g} s a step after {mine.reconfiguration_seconds:.4g} s of reconfiguration"
    if pinned:
        return f"pinned by the job: {price}{risk}."
    if not others:
        return f"{chosen.reason}: {price}{risk}; no other policy is possible."
    best = choose(others, mtbf_seconds)
    second = best.estimate
    return (
        f"{chosen.reason}: {price} give {mine.goodput_samples_per_second:.6g} samples/s with a failure every "
        f"{mtbf_seconds:,.6g} s{risk}; {best.policy.value} would give {second.goodput_samples_per_second:.6g} "
        f"({second.iteration_seconds:.4g} s a step after {second.reconfiguration_seconds:.4g} s)"
        f"{_risk(best, mtbf_seconds)}."
    )


def _risk(candidate: Candidate, mtbf_seconds: float) -> str:
    """What goodput does not show, and what candidates are compared by, where that is less."""
    seconds = candidate.restart_seconds
    if not seconds:
        return ""
    charged = f"{candidate.goodput(mtbf_seconds):.6g} samples/s"
    return f", or {charged} with the {seconds:.4g} s that are expected of a restart at the next failure"


def survivable(plan: Plan, cluster: Cluster) -> Survivable:
    """How many losses of workers, hosts or failure domains leave a holder of every layer, whichever they are."""
    groups = set(plan.holders)
    by_id = cluster.by_id
    hosts = [{by_id[worker].host for worker in holders} for holders in groups]
    domains = {name for worker in cluster.workers for name in worker.failure_domains}
    fewest = min(_fewest_to_lose([by_id[worker].failure_domains for worker in holders], len(domains)) for holders in groups)
    return Survivable(
        workers=min(map(len, groups)) - 1,
        hosts=min(map(len, hosts)) - 1,
        failure_domains=fewest - 1,
    )


def _fewest_to_lose(holders: Sequence[tuple[str, ...]], num_domains: int) -> int:
    """Fewest domains whose loss takes every holder; one in no domain is never taken: then one more than the cluster has."""
    names = sorted({name for domains in holders for name in domains})
    if not all(holders):
        return num_domains + 1
    outermost = {domains[-1] for domains in holders}
    if all(len(domains) == 1 for domains in holders):
        return len(outermost)
    for size in range(1, len(outermost)):
        if math.comb(len(names), size) > MOST_COMBINATIONS:
            return size
        if any(all(set(chosen) & set(domains) for domains in holders) for chosen in combinations(names, size)):
            return size
    return len(outermost)
