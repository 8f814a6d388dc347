"""Questions that store nothing: what a plan costs, and what would be decided if."""

from dataclasses import replace
from functools import reduce

from api.decisions.planning import decide, require_fit
from api.records import JobState
from api.schemas import EstimateRequest, WhatIf, cluster_of
from api.service import Service
from estimator.estimate import estimate
from kintsugi.core.cluster import Cluster
from kintsugi.core.decision import Decision, Estimate
from kintsugi.core.errors import InvalidInputError
from kintsugi.core.job import JobSettings, Snapshot
from kintsugi.core.membership import Event, EventKind, Membership
from kintsugi.core.profile import Profile


def estimated(request: EstimateRequest) -> Estimate:
    """The price of a plan.

    Raises:
        InvalidInputError: the plan does not fit profile or cluster.
        InfeasibleError: a stage does not fit its memory.
    """
    cluster = cluster_of(request.cluster, request.workers, request.workers_per_host)
    require_fit(request.plan, request.profile, cluster)
    return estimate(
        request.plan,
        request.profile,
        cluster,
        reconfiguration_seconds=request.reconfiguration_seconds,
        mtbf_seconds=request.mtbf_seconds,
    )


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
    history = state.history
    generation = history.generation
    _check_alive(request, history.membership)
    return service.snapshot(state, reduce(lambda past, event: past.after(event), _events(request, generation), history))


def _described(request: WhatIf) -> Snapshot:
    assert request.profile is not None
    assert request.settings is not None
    cluster = cluster_of(request.cluster, request.workers, request.workers_per_host)
    before = _present(request, request.profile, request.settings, cluster)
    membership = Membership.of(cluster)
    _check_alive(request, membership)
    membership = reduce(Membership.after, _events(request, 0), membership)
    return replace(before, cluster=membership.cluster, alive=membership.alive, generation=1)


def _present(request: WhatIf, profile: Profile, settings: JobSettings, cluster: Cluster) -> Snapshot:
    alive = tuple(worker.id for worker in cluster.workers)
    present = Snapshot(profile=profile, cluster=cluster, settings=settings, plan=None, alive=alive, generation=0)
    if request.plan is None:
        return replace(present, plan=decide(present).plan)
    require_fit(request.plan, profile, cluster)
    return replace(present, plan=request.plan)


def _check_alive(request: WhatIf, membership: Membership) -> None:
    for index, worker in enumerate(request.fail):
        if worker in membership.cluster.by_id and worker not in membership.alive:
            raise InvalidInputError("is not alive any more", field=f"fail[{index}]", value=worker)


def _events(request: WhatIf, generation: int) -> list[Event]:
    failing = [Event(kind=EventKind.WORKER_FAILED, id=f"fail {w}", generation=generation, worker=w) for w in request.fail]
    hosts = [Event(kind=EventKind.HOST_FAILED, id=f"fail {h}", generation=generation, host=h) for h in request.fail_hosts]
    joining = [Event(kind=EventKind.WORKER_JOINED, id=f"join {w}", generation=generation, worker=w) for w in request.join]
    slow = [
        Event(kind=EventKind.STRAGGLER, id=f"slow {w}", generation=generation, worker=w, speed_ratio=ratio)
        for w, ratio in request.slow.items()
    ]
    return [*failing, *hosts, *joining, *slow]
