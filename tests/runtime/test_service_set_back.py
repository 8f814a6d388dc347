"""The service's database is set back behind a job: it is told again what it lacks, or the error of the job says why it ends."""

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from functools import partial

import pytest

from kintsugi.client import Client
from kintsugi.core.cluster import Cluster
from kintsugi.core.errors import NotFoundError, StateLostError
from kintsugi.core.handling import Handling, PlanStatus
from kintsugi.core.membership import Event, EventKind
from kintsugi.core.messages import ReportStatus
from kintsugi.runtime.control.agent import Agent
from kintsugi.runtime.control.decisions import JobRequest, ServiceDecisions
from tests.builders import grid_plan, snapshot_of, uniform_profile
from tests.databases import prepare
from tests.patience import eventually
from tests.runtime.gated_jobs import slow_gpt
from tests.runtime.jobs import tiny_gpt
from tests.runtime.runs import assert_same, gpt_request, options_with, run, survivors
from tests.services import service

pytestmark = pytest.mark.processes

NUM_STEPS = 24


class Database:
    """A file of SQLite under a running service, and what may take its place."""

    def __init__(self, folder):
        self.file, self._backup, self._empty = (folder / f"{name}.sqlite3" for name in ("kintsugi", "backup", "empty"))
        prepare(f"sqlite:///{self._empty}")

    def back_up(self):
        copy(self.file, self._backup)

    def set_back(self):
        copy(self._backup, self.file)

    def empty(self):
        copy(self._empty, self.file)


def copy(source, target):
    with closing(sqlite3.connect(source)) as here, closing(sqlite3.connect(target)) as there:
        here.backup(there)


@pytest.fixture
def database(tmp_path):
    return Database(tmp_path)


@pytest.fixture
def client(database):
    with service(database.file) as running, Client(running.url) as client:
        yield client


@pytest.fixture
def job():
    """Two pipelines of three stages: w00 and w03 hold the same layers."""
    snapshot = snapshot_of(uniform_profile(12), Cluster.uniform(6), 12)
    plan = grid_plan(12, [3, 3], [6, 6])
    return JobRequest(name="job", profile=snapshot.profile, cluster=snapshot.cluster, settings=snapshot.settings, plan=plan)


@pytest.fixture
def source(client, database, job):
    """Of a job that carries out its first plan, as a backup of the database says as well."""
    source = ServiceDecisions(client)
    source.start(job)
    source.applied(0)
    database.back_up()
    return source


def told(kind, worker, generation, incarnation=0):
    event_id = f"{kind.value}-{worker}-{incarnation}"
    return Event(kind=kind, id=event_id, generation=generation, worker=worker, incarnation=incarnation)


lost = partial(told, EventKind.WORKER_FAILED)
joined = partial(told, EventKind.WORKER_JOINED, incarnation=1)


def carry_out(source, *events):
    decision = source.after(events)
    source.applied(decision.plan.generation)
    return decision


def test_who_was_lost_and_who_joined_is_told_again(client, database, source):
    carry_out(source, lost("w05", 0))
    carry_out(source, joined("w05", 1))
    database.set_back()
    plan = source.after([lost("w01", 2)]).plan
    assert set(plan.workers) == {"w00", "w02", "w03", "w04", "w05"}
    assert plan.generation == 1
    assert [record.event.worker for record in client.events("job").events] == ["w05", "w05", "w01"]


def test_who_joined_is_told_again_where_the_generation_was_reached_again(client, database, source):
    carry_out(source, joined("w09", 0))
    database.set_back()
    client.submit_events("job", [replace(lost("w05", 0), id="somebody else's")])
    assert not {"w05", "w09"} & set(source.after([lost("w09", 1, 1)]).plan.workers)


def test_a_job_that_the_service_forgot_ends_with_an_error_that_says_so(client, database, job):
    source = ServiceDecisions(client)
    source.start(job)
    database.empty()
    with pytest.raises(NotFoundError, match="no job of this id; the service's database was emptied or set back behind this job"):
        source.after([lost("w01", 0)])


def test_state_that_only_the_forgotten_plan_kept_is_not_said_to_be_lost_without_the_reason(database, source):
    """w03 goes, w00 alone has its layers and gives them to others, and goes: by the first plan nobody has them."""
    carry_out(source, lost("w03", 0))
    database.set_back()
    with pytest.raises(StateLostError, match="database was emptied or set back behind this job: start it again"):
        source.after([lost("w00", 1)])


def test_a_plan_that_is_forgotten_while_its_approval_is_waited_for_is_asked_for_again(client, database, job, monkeypatch):
    monkeypatch.setattr("kintsugi.runtime.control.decisions._LOOK_SECONDS", 0.2)
    source = ServiceDecisions(client)
    source.start(replace(job, handling=Handling(requires_approval=True)))
    database.back_up()
    with ThreadPoolExecutor(1) as thread:
        asked = thread.submit(source.after, [lost("w05", 0)])
        proposed(client, 1)
        first = client.events("job").events[0].received_at
        database.set_back()
        again = eventually(lambda: client.events("job").events, lambda events: events and events[0].received_at != first)
        assert [record.event.worker for record in again] == ["w05"]
        proposed(client, 1)
        client.approve("job", 1, by="Ada")
        assert asked.result(240.0).plan.generation == 1


def proposed(client, generation):
    views = eventually(lambda: client.jobs().jobs, lambda jobs: jobs[0].generation == generation)
    assert views[0].generation == generation
    assert client.plan_at("job", generation).status is PlanStatus.PROPOSED


def test_a_job_goes_on_when_the_service_knows_nothing_of_its_last_plan_and_of_who_came_with_it(client, database, tmp_path):
    gate, stages = tmp_path / "gate", iter(("joins", "is lost", "is mended"))
    stage = next(stages)

    def has_applied(generation):
        reports = (record.report for record in client.reports("job").reports)
        return any((report.generation, report.status) == (generation, ReportStatus.APPLIED) for report in reports)

    def observe(agent):
        nonlocal stage
        recovered = [recovery for recovery in agent.recoveries if recovery.committed_at is not None]
        if stage == "joins" and agent.losses:
            assert eventually(lambda: has_applied(0), bool)
            database.back_up()
            agent.invite("w09")
            stage = next(stages)
        elif stage == "is lost" and recovered:
            assert "w09" in agent.decision.plan.workers
            assert eventually(lambda: has_applied(agent.decision.plan.generation), bool)
            database.set_back()
            agent.handle("w09").strike()
            stage = next(stages)
        elif stage == "is mended" and len(recovered) == 2:
            gate.touch()

    request = gpt_request(2, 4)
    source = ServiceDecisions(client)
    slowly = partial(slow_gpt, gate, NUM_STEPS, 0.025)
    with Agent(slowly, request, source, options=options_with(), observer=observe) as agent:
        result = agent.run()
    assert_same(result, run(partial(tiny_gpt, num_steps=NUM_STEPS), gpt_request(2, 2)), 1e-9)
    assert [recovery.lost for recovery in result.recoveries] == [[], ["w09"]]
    assert set(survivors(result).workers) == {worker.id for worker in request.cluster.workers}
    assert [record.event.kind for record in client.events("job").events] == [EventKind.WORKER_JOINED, EventKind.WORKER_FAILED]
