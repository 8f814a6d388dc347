"""Questions that store nothing: what a plan costs, and what would be decided if."""

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

from api.decisions.planning import decide
from api.jobs.admission import refuse_percentages
from api.jobs.history import History
from api.records import JobState
from api.schemas import EstimateRequest, WhatIf, cluster_of
from api.service import Service
from estimator.costs import Costs
from estimator.estimate import overfull, priced
from kintsugi.core.cluster import Cluster
from kintsugi.core.decision import Decision, PlanEstimate
from kintsugi.core.errors import InvalidInputError, told_as
from kintsugi.core.job import JobSettings, Snapshot
from kintsugi.core.membership import Event, EventKind, Membership
from kintsugi.core.profile import Profile
from planner.adoption import fitting


def estimated(request: EstimateRequest) -> PlanEstimate:
    """The price of a plan, and which of its workers have too little memory for it.

    Raises:
        InvalidInputError: the plan does not fit profile or cluster.
    """
    cluster = cluster_of(request.cluster, request.workers, request.workers_per_host)
    costs = Costs(request.profile, cluster)
    price = priced(
        fitting(request.plan, request.profile, cluster),
        costs,
        reconfiguration_seconds=request.reconfiguration_seconds,
        mtbf_seconds=request.mtbf_seconds,
    )
    full = dict.fromkeys(stage.worker for stage in overfull(price, costs))
    return PlanEstimate(**{part.name: getattr(price, part.name) for part in fields(price)}, overfull_workers=tuple(full))


def considered(request: WhatIf, service: Service) -> Decision:
    """The decision that the failures and arrivals of `request` would lead to.

    Raises:
        NotFoundError: no such job, worker or host.
        InvalidInputError: a worker fails that is not alive.
        InfeasibleError: no plan would be left.
    """
    if request.job is not None:
        return service.decider.decide(_of_job(request, service.state(request.job), service))
    return service.decider.decide(_described(request))


def _of_job(request: WhatIf, state: JobState, service: Service) -> Snapshot:
    return service.snapshot(state, _after(request, state.history))


def _described(request: WhatIf) -> Snapshot:
    assert request.profile is not None
    assert request.settings is not None
    cluster = cluster_of(request.cluster, request.workers, request.workers_per_host)
    history = _after(request, History(membership=Membership.of(cluster)))  # first, as it names what is wrong at once
    before = _present(request, request.profile, request.settings, cluster)
    assert before.plan is not None
    membership = history.membership
    return replace(
        before,
        cluster=membership.cluster,
        alive=membership.alive,
        generation=1,
        stateless=history.stateless(before.plan),
        speeds_changed=not membership.cluster.is_as_fast_as(cluster, membership.alive),
    )


def _present(request: WhatIf, profile: Profile, settings: JobSettings, cluster: Cluster) -> Snapshot:
    alive = tuple(worker.id for worker in cluster.workers)
    present = Snapshot(profile=profile, cluster=cluster, settings=settings, plan=None, alive=alive, generation=0)
    if request.plan is None:
        return replace(present, plan=decide(present).plan)
    return replace(present, plan=fitting(request.plan, profile, cluster))


def _after(request: WhatIf, history: History) -> History:
    """The history once all that is asked about happened.

    Raises:
        NotFoundError: no such worker or host.
        InvalidInputError: a worker fails that is not alive, or a name or a number is out of range.
    """
    _check_alive(request, history.membership)
    for field, change in _changes(request):
        with told_as(dict.fromkeys(("worker", "host", "speed_ratio"), field)):
            event = Event(id="whatif", generation=history.generation, **change)
            refuse_percentages([event], history)
            history = history.after(event)
    return history


def _check_alive(request: WhatIf, membership: Membership) -> None:
    for index, worker in enumerate(request.fail):
        if worker in membership.cluster.by_id and worker not in membership.alive:
            raise InvalidInputError("is not alive any more", field=f"fail[{index}]", value=worker)


def _changes(request: WhatIf) -> Iterator[tuple[str, dict[str, Any]]]:
    """What an event tells of each change, with the field of the request that asks about it."""
    for index, worker in enumerate(request.fail):
        yield f"fail[{index}]", {"kind": EventKind.WORKER_FAILED, "worker": worker}
    for index, host in enumerate(request.fail_hosts):
        yield f"fail_hosts[{index}]", {"kind": EventKind.HOST_FAILED, "host": host}
    for index, worker in enumerate(request.join):
        yield f"join[{index}]", {"kind": EventKind.WORKER_JOINED, "worker": worker}
    for worker, speed_ratio in request.slow.items():
        yield f"slow.{worker}", {"kind": EventKind.STRAGGLER, "worker": worker, "speed_ratio": speed_ratio}
