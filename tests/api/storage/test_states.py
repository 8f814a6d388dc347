"""Stored histories: there when they are due, equal to what the whole log gives, and left alone when another program wrote them."""

import json
import zlib

import pytest
from sqlalchemy import func, select

from api.metrics import Metrics
from api.records import Records, first_state
from api.schemas import NewJob
from api.service import Service
from api.storage import states
from api.storage.store import Store
from api.storage.tables import STATES
from kintsugi.core.job import JobSettings
from kintsugi.core.membership import Event, EventKind
from kintsugi.core.messages import Report, ReportStatus
from tests.builders import uniform_profile

pytestmark = pytest.mark.both_databases
BATCH = 40


@pytest.fixture
def store(database_url):
    store = Store(database_url)
    yield store
    store.close()


@pytest.fixture
def service(store):
    service = Service(store, Metrics())
    service.create_job(NewJob(id="job", profile=uniform_profile(3), workers=5, settings=JobSettings(num_microbatches=6)))
    return service


def happen(service, times):
    """So many batches of events, in turn with a loss and a return, each with a plan that is applied."""
    for time in range(times):
        history = service.state("job").history
        slow = [straggler(f"{time}-{n}", history.generation, 1.0 if n % 2 else 0.5) for n in range(BATCH - 1)]
        lost = f"w0{time // 2 % 4}"
        kind = EventKind.WORKER_FAILED if lost in history.membership.alive else EventKind.WORKER_JOINED
        last = Event(kind=kind, id=f"{time}", generation=history.generation, worker=lost, incarnation=time)
        decision = service.post_events("job", [*slow, last])
        service.post_report("job", Report(generation=decision.generation, status=ReportStatus.APPLIED))


def straggler(name, generation, speed):
    return Event(kind=EventKind.STRAGGLER, id=name, generation=generation, worker="w04", speed_ratio=speed)


def folded(store):
    history = first_state(store, "job").history
    for entry in store.entries("job"):
        history = history.replayed(entry)
    return history


def num_states(store):
    with store.database.reading() as connection:
        return connection.execute(select(func.count()).select_from(STATES)).scalar_one()


def test_a_long_log_is_folded_from_a_stored_history_and_comes_out_the_same(service, store):
    happen(service, 2 * states.EVERY // BATCH + 1)
    whole = folded(store)
    assert whole.number >= 2 * states.EVERY
    assert num_states(store) == 2
    assert whole.number - store.latest_history("job").number < states.EVERY
    assert Records(store).state("job").history == whole == service.state("job").history


def test_a_history_of_a_program_that_knew_other_things_is_not_used(service, store):
    history = service.state("job").history
    document = json.loads(zlib.decompress(states.packed(history)))
    assert states.unpacked(states.packed(history)) == history
    assert states.unpacked(zlib.compress(json.dumps({**document, "mood": "good"}).encode())) is None


@pytest.mark.parametrize(("before", "after", "due"), [(0, 1, False), (0, 256, True), (255, 300, True), (256, 511, False)])
def test_when_a_history_is_due(before, after, due):
    assert states.is_due(before, after) is due
