"""Both sources of decisions give the same plans, and the service's survives others who report too."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count

import pytest

from kintsugi.client import Client
from kintsugi.core.cluster import Cluster
from kintsugi.core.ending import Ending, Outcome
from kintsugi.core.errors import ConflictError, InfeasibleError, InvalidInputError
from kintsugi.core.handling import Handling, PlanStatus
from kintsugi.core.membership import Event, EventKind
from kintsugi.core.messages import Measurement
from kintsugi.runtime.control.decisions import JobRequest, LocalDecisions, ServiceDecisions
from tests.builders import grid_plan, snapshot_of, uniform_profile
from tests.services import service


def lost(worker: str, generation: int, name: str = "") -> Event:
    return Event(kind=EventKind.WORKER_FAILED, id=f"{name or 'lost'}-{worker}", generation=generation, worker=worker)


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    """Of one service for all tests, each of which has a job of its own there."""
    with service(tmp_path_factory.mktemp("service") / "kintsugi.sqlite3") as running:
        yield running.url


@pytest.fixture
def client(url):
    with Client(url) as client:
        yield client


@pytest.fixture(scope="module")
def numbers():
    return count()


@pytest.fixture
def job(numbers) -> JobRequest:
    snapshot = snapshot_of(uniform_profile(12), Cluster.uniform(6), 12)
    return JobRequest(name=f"job{next(numbers)}", profile=snapshot.profile, cluster=snapshot.cluster, settings=snapshot.settings)


@pytest.mark.processes
def test_service_and_planner_decide_alike(job, client):
    local = LocalDecisions()
    remote = ServiceDecisions(client)
    assert remote.start(job).plan == local.start(job).plan
    for generation, worker in enumerate(["w04", "w01"]):
        for source in (remote, local):
            source.applied(generation)
            source.measured(generation, Measurement(step=generation))
        events = [lost(worker, generation)]
        mine, theirs = local.after(events), remote.after(events)
        assert (mine.plan, mine.migration, mine.policy) == (theirs.plan, theirs.migration, theirs.policy)
    for source in (remote, local):
        source.rejected(2, "the workers agreed on another one")
    answer = client.plan_at(job.name, 2)
    assert (answer.status, answer.standing.reason) == (PlanStatus.REJECTED, "the workers agreed on another one")


@pytest.mark.processes
def test_service_and_planner_decide_alike_where_a_worker_is_slow_for_a_while(job, client):
    sources = LocalDecisions(), ServiceDecisions(client)
    first, _ = (source.start(job) for source in sources)
    for generation, (kind, speed) in enumerate([(EventKind.STRAGGLER, 0.1), (EventKind.RECOVERED, None)]):
        changed = Event(kind=kind, id=kind.value, generation=generation, worker="w02", speed_ratio=speed)
        mine, theirs = (source.after([changed]) for source in sources)
        assert mine.plan == theirs.plan
        for source in sources:
            source.applied(generation + 1)
    assert mine.estimate.iteration_seconds == pytest.approx(first.estimate.iteration_seconds)


@pytest.mark.processes
def test_service_and_planner_start_from_the_plan_that_is_asked_for(job, client):
    """Whatever it leaves out, on workers that are not all as fast; and with rounds that miss layers from none."""
    slow, *others = job.cluster.workers
    cluster = job.cluster.with_workers((replace(slow, speed_ratio=0.25), *others))
    asked = replace(job, cluster=cluster, plan=grid_plan(12, [3, 2], [6, 6]))
    mine, theirs = (source.start(asked) for source in (LocalDecisions(), ServiceDecisions(client)))
    assert mine.plan == theirs.plan
    assert mine.plan.pipelines == asked.plan.pipelines
    assert {layer for own in mine.plan.rounds for reduction in own for layer in reduction.layers} == set(range(12))
    partial = replace(asked, name=f"{job.name}.partial", plan=replace(mine.plan, rounds=mine.plan.rounds[:1]))
    for source in (LocalDecisions(), ServiceDecisions(client)):
        with pytest.raises(InvalidInputError, match=r"plan\.rounds: do not reduce layer .* leave rounds out"):
            source.start(partial)


@pytest.mark.processes
def test_a_name_that_has_run_is_refused(job, client):
    first = ServiceDecisions(client)
    first.start(job)
    first.after([lost("w05", 0)])
    with pytest.raises(ConflictError, match="name: has run before"):
        ServiceDecisions(client).start(job)


@pytest.mark.processes
def test_a_job_that_ended_takes_no_more_and_its_name_no_other(job, client):
    decisions = ServiceDecisions(client)
    decisions.start(job)
    decisions.ended(Ending(outcome=Outcome.COMPLETED, by="agent"))
    assert client.job(job.name).ended.ending.by == "agent"
    with pytest.raises(ConflictError, match="job: has ended"):
        decisions.after([lost("w01", 0)])
    with pytest.raises(ConflictError, match=r"name: has ended \(completed\); choose another name"):
        ServiceDecisions(client).start(job)


def test_events_are_told_again_when_somebody_else_moved_the_generation_on(job, client):
    source = ServiceDecisions(client)
    source.start(job)
    client.post_event(job.name, lost("w00", 0, "operator"))
    decision = source.after([lost("w05", 0)])
    assert decision.plan.generation == 2
    assert not {"w00", "w05"} & set(decision.plan.workers)


@pytest.mark.processes
def test_plans_that_need_approval_are_waited_for(job, url, client, monkeypatch):
    monkeypatch.setattr("kintsugi.runtime.control.decisions._LOOK_SECONDS", 0.2)
    with ThreadPoolExecutor(1) as thread:
        source = ServiceDecisions(client)
        source.start(replace(job, handling=Handling(requires_approval=True)))
        asked = thread.submit(source.after, [lost("w05", 0)])
        with Client(url) as operator:
            proposed(operator, job.name, 1)
            assert not asked.done()
            operator.approve(job.name, 1, by="Ada")
            assert asked.result(240.0).plan.generation == 1
            source.applied(1)
            asked = thread.submit(source.after, [lost("w04", 1)])
            proposed(operator, job.name, 2)
            operator.refuse(job.name, 2, by="Ada", reason="the rack goes down tonight")
            with pytest.raises(InfeasibleError, match="the rack goes down tonight"):
                asked.result(240.0)


def proposed(client: Client, job: str, generation: int) -> None:
    """Wait until a plan of this generation waits for approval."""
    for _ in client.follow(job, after=0):
        if client.job(job).summary.generation >= generation:
            assert client.plan_at(job, generation).status is PlanStatus.PROPOSED
            return
