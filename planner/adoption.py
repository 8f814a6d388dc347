"""Plans from outside: what nobody can train by is refused, and what they may leave out is filled in."""

from dataclasses import replace

from estimator.costs import Costs
from estimator.estimate import estimate
from estimator.goodput import charged_goodput
from estimator.schedule import require_known
from kintsugi.core.cluster import Cluster
from kintsugi.core.decision import Alternative, Decision, Migration, Search
from kintsugi.core.errors import InfeasibleError, InvalidInputError, told_as
from kintsugi.core.job import JobSettings, Snapshot
from kintsugi.core.plan import IdleWorker, Plan
from kintsugi.core.profile import Profile
from planner.policies.options import Case
from planner.policies.policy import survivable
from planner.replan import replan, unsearched
from restorer.given_rounds import with_rounds

ADOPTED = "the plan that runs already was adopted"

UNUSED = "has no place in the plan that runs already"


def adopt(snapshot: Snapshot) -> Decision:
    """The decision for the snapshot's plan as it is, of the snapshot's generation, also where the planner would find none.

    Raises:
        InvalidInputError: the plan does not fit the job.
    """
    assert snapshot.plan is not None
    plan = _completed(fitting(snapshot.plan, snapshot.profile, snapshot.cluster), snapshot)
    _require_microbatches(plan, snapshot.settings)
    mtbf_seconds = snapshot.settings.mtbf_seconds
    price = estimate(plan, snapshot.profile, snapshot.cluster, mtbf_seconds=mtbf_seconds)
    search = _search(snapshot)
    only = Alternative(
        policy=plan.policy,
        feasible=True,
        reason=ADOPTED,
        estimate=price,
        charged_goodput_samples_per_second=charged_goodput(price, mtbf_seconds),
    )
    return Decision(
        policy=plan.policy,
        reason=ADOPTED,
        plan=plan,
        estimate=price,
        search=search.bounded(min(search.lower_bound_seconds, price.iteration_seconds), price.iteration_seconds),
        migration=Migration(),
        survivable=survivable(plan, snapshot.cluster),
        break_even_mtbf_seconds=None,
        previous_plan=None,
        alternatives=(only,),
        mtbf_seconds=mtbf_seconds,
    )


def _search(snapshot: Snapshot) -> Search:
    """What a search for the job's best plan came to: what runs is compared with it."""
    try:
        return replan(replace(snapshot, plan=None)).search
    except InfeasibleError:  # memory is an estimate, and later plans may have other ranges than the one that runs
        return unsearched(Case(snapshot))


def fitting(plan: Plan, profile: Profile, cluster: Cluster) -> Plan:
    """`plan` with rounds, of the profile's layers and on the cluster's workers.

    Raises:
        InvalidInputError: it has other layers or workers, no order of passes, or rounds that let replicas drift apart.
    """
    plan.require_layers(profile.num_layers)
    with told_as({"schedule": "plan.schedule"}):
        require_known(plan.schedule)
    for worker, (slot, *_) in plan.slots_of.items():
        _require_in(cluster, worker, f"pipelines[{slot.pipeline}].stages[{slot.stage}]")
    return with_rounds(plan, Costs(profile, cluster))


def _require_in(cluster: Cluster, worker: str, field: str) -> None:
    if worker not in cluster.by_id:
        raise InvalidInputError("is no worker of the cluster", field=f"plan.{field}.worker", value=worker)


def _completed(plan: Plan, snapshot: Snapshot) -> Plan:
    """The plan of the snapshot's generation, that says of every living worker without a place that it has none.

    Raises:
        InvalidInputError: an idle worker is none of the cluster.
    """
    for index, idle in enumerate(plan.idle_workers):
        _require_in(snapshot.cluster, idle.worker, f"idle_workers[{index}]")
    known = {*plan.workers, *(idle.worker for idle in plan.idle_workers)}
    others = tuple(IdleWorker(worker=worker, reason=UNUSED) for worker in snapshot.alive if worker not in known)
    return plan.amended(generation=snapshot.generation, idle_workers=(*plan.idle_workers, *others))


def _require_microbatches(plan: Plan, settings: JobSettings) -> None:
    if plan.num_microbatches != settings.num_microbatches:
        raise InvalidInputError(
            f"runs {plan.num_microbatches} micro-batches per step where the settings say {settings.num_microbatches}",
            field="plan",
            value=plan.num_microbatches,
        )
