"""Workers that leave are asked for their state before they go; the service remembers who does."""

from dataclasses import replace

import pytest

from api.decisions import planning
from api.metrics import Metrics
from api.schemas import NewJob
from api.service import Service
from api.storage.store import Store
from kintsugi.core import codec
from kintsugi.core.errors import StateLostError
from kintsugi.core.membership import Event, EventKind
from kintsugi.core.messages import Report, ReportStatus
from tests.api.requests import new_job


@pytest.fixture
def service(tmp_path):
    """With one pipeline of four workers, and two workers more."""
    store = Store(f"sqlite:///{tmp_path}/job.sqlite3")
    store.open()
    service = Service(store, Metrics())
    ranges = {"min_dp": 1, "max_dp": 1, "min_pp": 4, "max_pp": 4}
    service.create_job(codec.decode(NewJob, new_job(settings={"num_microbatches": 8, "ranges": ranges})))
    service.post_report("llama", Report(generation=0, status=ReportStatus.APPLIED))
    yield service
    store.close()


def draining(worker: str, generation: int = 0) -> Event:
    return Event(kind=EventKind.WORKER_DRAINING, id=f"drain-{worker}", generation=generation, worker=worker)


def failed(worker: str, generation: int) -> Event:
    return Event(kind=EventKind.WORKER_FAILED, id=f"fail-{worker}", generation=generation, worker=worker)


def decision_of(service, generation):
    return service.standing_decision("llama", generation).decision.wording.decision()


def test_layers_that_a_leaving_worker_alone_holds_are_not_lost(service):
    leaving = decision_of(service, 0).plan.workers[1]
    entry = service.post_events("llama", [draining(leaving)])
    decision = decision_of(service, entry.generation)
    assert leaving in {transfer.source for transfer in decision.migration.transfers}
    again = planning.decide(planning.restored(service.store, service.store.job("llama"), entry.generation))
    assert replace(again, search=replace(again.search, elapsed_seconds=0.0)) == replace(
        decision, search=replace(decision.search, elapsed_seconds=0.0)
    )


def test_they_are_where_it_fails_before_its_state_has_moved(service):
    leaving = decision_of(service, 0).plan.workers[1]
    service.post_events("llama", [draining(leaving)])
    with pytest.raises(StateLostError):
        service.post_events("llama", [failed(leaving, 1)])


def test_it_may_fail_once_the_next_plan_runs(service):
    leaving = decision_of(service, 0).plan.workers[1]
    entry = service.post_events("llama", [draining(leaving)])
    service.post_report("llama", Report(generation=entry.generation, status=ReportStatus.APPLIED))
    last = service.post_events("llama", [failed(leaving, entry.generation)])
    assert decision_of(service, last.generation).plan.workers == decision_of(service, entry.generation).plan.workers


def test_it_may_stay_with_its_state_after_all(service):
    """As where no plan without it was found, or its machine is not taken away."""
    leaving = decision_of(service, 0).plan.workers[1]
    entry = service.post_events("llama", [draining(leaving)])
    staying = Event(kind=EventKind.WORKER_STAYING, id="stay", generation=entry.generation, worker=leaving)
    decision = decision_of(service, service.post_events("llama", [staying]).generation)
    assert replace(decision.plan, generation=0, policy=None) == replace(decision_of(service, 0).plan, policy=None)
    assert not decision.migration.transfers
