"""The one entry point: from a snapshot to a decision."""

from collections.abc import Callable
from dataclasses import replace

from estimator.estimate import estimate
from estimator.schedule import require_known
from kintsugi.core.decision import Decision, Migration, Search
from kintsugi.core.errors import InfeasibleError, InvalidInputError, StateLostError, some
from kintsugi.core.garbage import without_collection
from kintsugi.core.job import JobSettings, Snapshot
from kintsugi.core.plan import IdleWorker, Policy, Schedule
from kintsugi.core.profile import Profile
from planner.placing.placement import Holdings
from planner.placing.spreading import are_apart
from planner.policies.found import Found
from planner.policies.options import Case, arrangement, deferred, dynamic, rerouting, restart, substitution
from planner.policies.policy import PREFERENCE, Candidate, Refusal, alternatives, break_even, choose, reason, survivable
from planner.policies.reliability import with_estimated_mtbf

REFUSED = "was refused for this membership"

JOINED_IN_VAIN = "joined; the policy that the job pins has no use for it"


def replan(snapshot: Snapshot) -> Decision:
    """Decide what should run now. A pure function of the snapshot, but for `search.elapsed_seconds`.

    Raises:
        InvalidInputError: the snapshot contradicts itself.
        StateLostError: no survivor holds some layer, and there is no checkpoint.
        InfeasibleError: nothing fits the ranges or memory, or the pinned policy is impossible.
    """
    with without_collection():
        return _decided(snapshot)


def is_kept(snapshot: Snapshot) -> bool:
    """Whether the plan that runs is decided for again, so that nothing is searched."""
    return snapshot.plan is not None and _is_kept(Case(snapshot))


def _decided(snapshot: Snapshot) -> Decision:
    _require_known(snapshot.settings)
    if not snapshot.alive:
        raise InfeasibleError("no worker is left", field="alive", value=[])
    case = Case(with_estimated_mtbf(snapshot))
    if snapshot.plan is None:
        return _first(case)
    _require_consistent(case)
    return _keep(case) if _is_kept(case) else _recover(case)


def _is_kept(case: Case) -> bool:
    return case.is_unchanged and case.plan.policy not in case.snapshot.refused_policies


def _require_known(settings: JobSettings) -> None:
    if settings.schedule is not Schedule.AUTO:
        require_known(settings.schedule)
    if settings.policy is Policy.DEFERRED_PARALLELISM and not settings.allows_follow_up:
        raise InvalidInputError(
            "has two steps: set allows_follow_up where the trainer can carry out both", field="policy", value=settings.policy.value
        )


def _require_consistent(case: Case) -> None:
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


def _first(case: Case) -> Decision:
    """The fault-free plan.

    Raises:
        InfeasibleError: nothing fits the ranges or memory, or it was refused: there is no other before the first.
    """
    if Policy.FAULT_FREE in case.snapshot.refused_policies:
        raise InfeasibleError("was refused, and no plan runs that another could start from", field="policy", value="fault_free")
    found = arrangement(case, Holdings(None, ()), Policy.FAULT_FREE)
    why = "the shortest step that was found"
    if are_apart(found.plan, case.snapshot.cluster, case.alive):
        why += " with the replicas of every layer on different hosts"
    candidate = Candidate(Policy.FAULT_FREE, found.plan, found.estimate, found.migration, why)
    return _decision(case, candidate, [candidate], [], found.search)


def _keep(case: Case, why: str = "nothing that the plan uses was lost and nothing joined, so it stays") -> Decision:
    """The plan that runs already, with the same policy."""
    known = {idle.worker: idle for idle in case.plan.idle_workers}
    idle = tuple(known.get(worker, IdleWorker(worker=worker, reason=JOINED_IN_VAIN)) for worker in case.spares)
    plan = replace(case.plan, generation=case.snapshot.generation, idle_workers=idle)
    price = estimate(plan, case.snapshot.profile, case.snapshot.cluster, mtbf_seconds=case.snapshot.settings.mtbf_seconds)
    kept = Candidate(plan.policy, plan, price, Migration(), why)
    return _decision(case, kept, [kept], [], _search_of(case, []))


def _recover(case: Case) -> Decision:
    """Every policy's best plan, compared by equation 8."""
    candidates: list[Candidate] = []
    refusals: list[Refusal] = []
    found: list[Found] = []
    lost: StateLostError | None = None
    for policy, attempt in _attempts(case, candidates, found):
        try:
            candidates.append(attempt())
        except StateLostError as error:
            lost = lost or error
            refusals.append(Refusal(policy, str(error)))
        except InfeasibleError as error:
            refusals.append(Refusal(policy, str(error)))
    refusals.sort(key=lambda refusal: PREFERENCE.index(refusal.policy))
    refused = case.snapshot.refused_policies
    refusals += [Refusal(c.policy, REFUSED) for c in candidates if c.policy in refused]
    candidates = [c for c in candidates if c.policy not in refused]
    if _is_pinned_in_vain(case, candidates):
        return _keep(case, f"nothing that the plan uses was lost, and {case.snapshot.settings.policy} does not apply, so it stays")
    allowed = _allowed(case, candidates, refusals, lost)
    chosen = choose(allowed, case.snapshot.settings.mtbf_seconds)
    searched = found[-1:] if chosen.policy is Policy.CHECKPOINT_RESTART else found
    return _decision(case, chosen, candidates, refusals, _search_of(case, searched))


def _is_pinned_in_vain(case: Case, candidates: list[Candidate]) -> bool:
    """Whether the pinned policy cannot be applied, and need not: all that the plan uses is there."""
    pinned, plan = case.snapshot.settings.policy, case.plan
    is_complete = len(case.survivors) == len(plan.workers) and not plan.routes and plan.policy is not Policy.DEFERRED_PARALLELISM
    is_possible = any(candidate.policy is pinned for candidate in candidates)
    return pinned is not None and not is_possible and is_complete and plan.policy not in case.snapshot.refused_policies


def _search_of(case: Case, found: list[Found]) -> Search:
    """What was searched; where nothing was or nothing fits, no more is known than how much work there is."""
    return found[0].search if found else unsearched(case)


def unsearched(case: Case) -> Search:
    """Of a decision without one: the bound is the work divided by all speeds."""
    speeds = [case.snapshot.cluster.by_id[worker].speed_ratio for worker in case.alive]
    sums = case.costs.sums
    work = float(sums.forward[-1] + sums.backward[-1]) * case.snapshot.settings.num_microbatches
    return Search(lower_bound_seconds=work / sum(speeds), gap_ratio=0.0, elapsed_seconds=0.0)


def _attempts(case: Case, candidates: list[Candidate], found: list[Found]) -> list[tuple[Policy, Callable[[], Candidate]]]:
    """How each policy is tried, in an order in which later ones find in `candidates` and `found` what they build on."""
    attempts: list[tuple[Policy, Callable[[], Candidate]]] = [
        (Policy.DYNAMIC_PARALLELISM, lambda: dynamic(case, found)),
        (Policy.SPARE_SUBSTITUTION, lambda: substitution(case, candidates)),
        (Policy.DATA_REROUTING, lambda: rerouting(case, candidates)),
    ]
    if case.snapshot.settings.allows_follow_up:
        attempts.append((Policy.DEFERRED_PARALLELISM, lambda: deferred(case, candidates)))
    return [*attempts, (Policy.CHECKPOINT_RESTART, lambda: restart(case, candidates, found))]


def _allowed(case: Case, candidates: list[Candidate], refusals: list[Refusal], lost: StateLostError | None) -> list[Candidate]:
    """The candidates that the job allows.

    Raises:
        StateLostError: state is lost and no checkpoint can bring it back.
        InfeasibleError: none is left; says why.
    """
    pinned = case.snapshot.settings.policy
    allowed = [c for c in candidates if pinned in (None, c.policy)]
    if allowed:
        return allowed
    if lost is not None and not case.snapshot.refused_policies:
        raise _lost(lost, refusals, case.snapshot.profile)
    why = "; ".join(f"{r.policy.value}: {r.reason}" for r in refusals if pinned in (None, r.policy))
    if pinned is Policy.FAULT_FREE:
        why = "is the policy of a first plan, and one runs already; pin another policy, or none"
    raise InfeasibleError(why or "the policy does not apply here", field="policy", value=pinned.value if pinned else None)


def _lost(lost: StateLostError, refusals: list[Refusal], profile: Profile) -> StateLostError:
    """That state is lost, by the names of its layers, and why the job cannot restart either, where that was tried."""
    names = some([profile.layers[layer].name for layer in lost.layers])
    restart = next((f"; {refusal.reason}" for refusal in refusals if refusal.policy is Policy.CHECKPOINT_RESTART), "")
    return StateLostError(f"{lost.message}{restart} (lost: {names})", layers=lost.layers)


def _decision(case: Case, chosen: Candidate, candidates: list[Candidate], refusals: list[Refusal], search: Search) -> Decision:
    settings = case.snapshot.settings
    bound = min(search.lower_bound_seconds, chosen.estimate.iteration_seconds)
    return Decision(
        policy=chosen.policy,
        reason=reason(chosen, candidates, refusals, settings.mtbf_seconds, pinned=settings.policy is not None),
        plan=chosen.plan,
        estimate=chosen.estimate,
        search=search.bounded(bound, chosen.estimate.iteration_seconds),
        migration=chosen.migration,
        survivable=survivable(chosen.plan, case.snapshot.cluster),
        break_even_mtbf_seconds=break_even(chosen, candidates, settings.mtbf_seconds),
        previous_plan=case.snapshot.plan,
        alternatives=alternatives(candidates, refusals, settings.mtbf_seconds),
        follow_up=chosen.follow_up,
        mtbf_seconds=settings.mtbf_seconds,
        failures=case.snapshot.failures,
    )
