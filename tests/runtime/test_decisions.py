"""Both sources of decisions give the same plans, and the service's survives others who report too."""

import pytest

from kintsugi.client import Client
from kintsugi.core.cluster import Cluster
from kintsugi.core.errors import ConflictError
from kintsugi.core.membership import Event, EventKind
from kintsugi.core.messages import Measurement
from kintsugi.runtime.decisions import JobRequest, LocalDecisions, ServiceDecisions
from tests.builders import snapshot_of, uniform_profile
from tests.processes import service


def lost(worker: str, generation: int, name: str = "") -> Event:
    return Event(kind=EventKind.WORKER_FAILED, id=f"{name or 'lost'}-{worker}", generation=generation, worker=worker)


@pytest.fixture
def job() -> JobRequest:
    snapshot = snapshot_of(uniform_profile(12), Cluster.uniform(6), 12)
    return JobRequest(name="job", profile=snapshot.profile, cluster=snapshot.cluster, settings=snapshot.settings)


@pytest.mark.processes
def test_service_and_planner_decide_alike(job, tmp_path):
    local = LocalDecisions()
    with service(tmp_path / "kintsugi.sqlite3") as running, Client(running.url) as client:
        remote = ServiceDecisions(client)
        assert remote.start(job).plan == local.start(job).plan
        for generation, worker in enumerate(["w04", "w01"]):
            for source in (remote, local):
                source.applied(generation)
                source.measured(generation, Measurement(step=generation))
            events = [lost(worker, generation)]
            mine, theirs = local.after(events), remote.after(events)
            assert (mine.plan, mine.migration, mine.policy) == (theirs.plan, theirs.migration, theirs.policy)


@pytest.mark.processes
def test_a_name_that_has_run_is_refused(job, tmp_path):
    with service(tmp_path / "kintsugi.sqlite3") as running, Client(running.url) as client:
        first = ServiceDecisions(client)
        first.start(job)
        first.after([lost("w05", 0)])
        with pytest.raises(ConflictError, match="name: has run before"):
            ServiceDecisions(client).start(job)


@pytest.mark.processes
def test_events_are_told_again_when_somebody_else_moved_the_generation_on(job, tmp_path):
    with service(tmp_path / "kintsugi.sqlite3") as running, Client(running.url) as client:
        source = ServiceDecisions(client)
        source.start(job)
        client.post_event("job", lost("w00", 0, "operator"))
        decision = source.after([lost("w05", 0)])
        assert decision.plan.generation == 2
        assert not {"w00", "w05"} & set(decision.plan.workers)
