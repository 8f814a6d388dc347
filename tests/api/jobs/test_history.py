"""The service against a model of it: failures, returns, repeats, stale generations, late reports, restarts."""

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from api.decisions import planning
from api.jobs.history import History
from api.metrics import Metrics
from api.schemas import NewJob
from api.service import Service
from api.storage.store import Store
from kintsugi.core import codec
from kintsugi.core.cluster import Cluster
from kintsugi.core.decision import Decision
from kintsugi.core.errors import InfeasibleError, StaleGenerationError
from kintsugi.core.job import JobSettings
from kintsugi.core.membership import Event, EventKind, Membership
from kintsugi.core.messages import Report, ReportStatus
from kintsugi.core.reliability import FailureRecord
from tests.builders import uniform_profile

AT = "2026-01-31T12:00:{:02d}Z"
WORKERS = tuple(f"w0{n}" for n in range(5))


class Life(RuleBasedStateMachine):
    """One job through whatever may happen to it; the model knows who is alive and which plan was applied."""

    @initialize()
    def begin(self):
        self.directory = Path(tempfile.mkdtemp())
        self.alive, self.generation, self.applied, self.answers = set(WORKERS), 0, 0, {}
        self.restart()
        self.service.create_job(NewJob(id="job", profile=uniform_profile(3), workers=5, settings=JobSettings(num_microbatches=6)))

    @rule()
    def restart(self):
        if hasattr(self, "store"):
            self.store.close()
        self.store = Store(f"sqlite:///{self.directory}/kintsugi.sqlite3")
        self.store.open()
        self.service = Service(self.store, Metrics())

    @rule(worker=st.sampled_from(WORKERS), joins=st.booleans(), stale=st.sampled_from([0, 0, 0, 1, -1]))
    def happen(self, worker, joins, stale):
        kind = EventKind.WORKER_JOINED if joins else EventKind.WORKER_FAILED
        event = Event(kind=kind, id=f"e{len(self.answers)}", generation=max(0, self.generation + stale), worker=worker)
        if event.generation != self.generation:
            with pytest.raises(StaleGenerationError) as refusal:
                self.service.post_events("job", [event])
            assert refusal.value.current_generation == self.generation
            return
        self.alive = self.alive | {worker} if joins else self.alive - {worker}
        self.answers[event] = self.answer_of(event)

    def answer_of(self, event):
        try:
            decision = self.service.post_events("job", [event])
        except InfeasibleError as error:
            return error.as_dict()
        assert decision.generation in (self.generation, self.generation + 1)
        self.generation = decision.generation
        return decision

    @precondition(lambda self: self.answers)
    @rule(data=st.data())
    def repeat(self, data):
        event = data.draw(st.sampled_from(list(self.answers)))
        assert self.answer_of_repeated(event) == self.answers[event]

    def answer_of_repeated(self, event):
        try:
            return self.service.post_events("job", [event])
        except InfeasibleError as error:
            return error.as_dict()

    @rule(data=st.data())
    def apply(self, data):
        generation = data.draw(st.integers(self.applied, self.generation))
        is_late = self.applied < generation < self.generation
        try:
            entry = self.service.post_report("job", Report(generation=generation, status=ReportStatus.APPLIED))
        except InfeasibleError:
            self.applied = generation
            return
        self.applied = generation
        assert not is_late or entry.generation == self.generation + 1
        self.generation = entry.generation

    @invariant()
    def knows_its_members(self):
        history = self.service.state("job").history
        assert set(history.membership.alive) == self.alive
        assert (history.generation, history.applied_generation) == (self.generation, self.applied)

    @invariant()
    def plans_use_living_workers_alone(self):
        history = self.service.state("job").history
        if history.problem is None:
            plan = self.service.decision("job").wording.plan()
            assert set(plan.workers) <= self.alive
            assert plan.generation == self.generation

    def teardown(self):
        if hasattr(self, "store"):
            stored = self.store.job("job")
            for generation in range(self.generation + 1):
                again = planning.decide(planning.restored(self.store, stored, generation))
                assert without_time(codec.encode(again)) == without_time(
                    codec.encode(self.store.decision("job", generation).wording.decision())
                )
            self.store.close()
            shutil.rmtree(self.directory)


def without_time(decision):
    return {**decision, "search": {**decision["search"], "elapsed_seconds": 0}}


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=15, stateful_step_count=12, deadline=None)


def history_after(*contents):
    history = History(membership=Membership.of(Cluster.uniform(3)))
    for content in contents:
        history = history.after(content)
    return history


def event(kind, worker, **changes):
    return Event(kind=kind, id=f"{kind} {worker}", generation=0, worker=worker, **changes)


def test_a_worker_in_a_new_life_that_nobody_missed_lost_its_state():
    first = history_after(event(EventKind.WORKER_JOINED, "w01", incarnation=1))
    assert first.lost_at == {"w01": 1}
    again = first.after(event(EventKind.WORKER_JOINED, "w01", incarnation=1))
    assert again.lost_at == {"w01": 1}
    assert again.after(event(EventKind.WORKER_JOINED, "w01", incarnation=2)).lost_at == {"w01": 3}


@pytest.mark.parametrize(("life", "survives"), [(1, True), (2, False), (3, False), (0, False)])
def test_the_late_word_about_a_life_that_is_over_changes_nothing(life, survives):
    back = history_after(event(EventKind.WORKER_FAILED, "w01"), event(EventKind.WORKER_JOINED, "w01", incarnation=2))
    after = back.after(event(EventKind.WORKER_FAILED, "w01", incarnation=life))
    assert ("w01" in after.membership.alive) is survives
    assert after.number == back.number + 1


def test_what_was_read_before_a_write_does_not_take_its_place(tmp_path):
    service = Service(Store(f"sqlite:///{tmp_path}/job.sqlite3"), Metrics())
    service.store.open()
    service.create_job(NewJob(id="job", profile=uniform_profile(3), workers=5, settings=JobSettings(num_microbatches=6)))
    read_before = service.state("job")
    service.post_events("job", [event(EventKind.WORKER_FAILED, "w01")])
    service.keep_state(read_before)
    assert service.kept_history("job").generation == 1
    service.store.close()


def test_who_was_lost_after_the_applied_plan_was_decided_is_stateless():
    plan = uniform_plan()
    failed = history_after(event(EventKind.WORKER_FAILED, "w01"))
    back = failed.decided(AT.format(1)).after(event(EventKind.WORKER_JOINED, "w01")).decided(AT.format(2))
    assert back.stateless(plan) == ("w01",)
    applied = back.after(Report(generation=2, status=ReportStatus.APPLIED))
    assert applied.stateless(plan) == ()


@pytest.mark.parametrize(
    ("events", "bereft"),
    [
        ([(EventKind.WORKER_DRAINING, 0), (EventKind.WORKER_STAYING, 0)], ()),
        ([(EventKind.WORKER_DRAINING, 0), (EventKind.WORKER_JOINED, 0)], ("w01",)),
        ([(EventKind.WORKER_DRAINING, 0), (EventKind.WORKER_STAYING, 1)], ("w01",)),
        (
            [
                (EventKind.WORKER_FAILED, 0),
                (EventKind.WORKER_JOINED, 1),
                (EventKind.WORKER_DRAINING, 1),
                (EventKind.WORKER_STAYING, 1),
            ],
            ("w01",),
        ),
        ([(EventKind.WORKER_JOINED, 1), (EventKind.WORKER_DRAINING, 1), (EventKind.WORKER_STAYING, 0)], ("w01",)),
    ],
    ids=["it stays", "it comes anew", "another life stays", "it had come back without state", "a life that is open"],
)
def test_who_leaves_and_stays_has_the_state_that_it_had(events, bereft):
    told = history_after(*(event(kind, "w01", incarnation=life) for kind, life in events)).decided(AT.format(1))
    assert (told.membership.alive, told.membership.draining) == (WORKERS[:3], ())
    assert told.stateless(uniform_plan()) == bereft


def test_failures_are_counted_by_the_decisions_they_led_to():
    start = history_after(event(EventKind.WORKER_FAILED, "w00"), event(EventKind.WORKER_FAILED, "w01"))
    assert start.failures(AT.format(0)) == FailureRecord(num_failures=0, observed_seconds=0.0)
    decided = start.decided(AT.format(30))
    assert decided.failures(AT.format(0)) == FailureRecord(num_failures=1, observed_seconds=30.0)
    grown = decided.after(event(EventKind.WORKER_JOINED, "w01")).decided(AT.format(40))
    assert grown.failures(AT.format(0)) == FailureRecord(num_failures=1, observed_seconds=40.0)
    again = grown.after(event(EventKind.WORKER_DRAINING, "w01"))
    assert again.failures(AT.format(0)) == grown.failures(AT.format(0))  # this one counts once it is decided about
    assert again.decided(AT.format(50)).num_failures == 2


def test_a_job_that_asks_for_it_is_planned_with_the_failures_of_its_log(tmp_path):
    moments = iter(AT.format(second) for second in range(0, 60, 10))
    service = Service(Store(f"sqlite:///{tmp_path}/job.sqlite3"), Metrics(), now=lambda: next(moments))
    service.store.open()
    settings = JobSettings(num_microbatches=6, mtbf_seconds=100.0, mtbf_prior_failures=1.0)
    service.create_job(NewJob(id="job", profile=uniform_profile(3), workers=5, settings=settings))
    for generation, worker in enumerate(("w00", "w01", "w02")):
        failed = Event(kind=EventKind.WORKER_FAILED, id=worker, generation=generation, worker=worker)
        service.post_events("job", [failed])
    decisions = [service.decision("job", generation).wording.decision() for generation in range(4)]
    assert [decision.mtbf_seconds for decision in decisions] == [100.0, 100.0, 110.0 / 2, 120.0 / 3]
    again = planning.decide(planning.restored(service.store, service.store.job("job"), 3))
    assert (again.mtbf_seconds, again.failures) == (40.0, FailureRecord(num_failures=2, observed_seconds=20.0))
    service.store.close()


def uniform_plan():
    return codec.decode(
        Decision.__annotations__["plan"],
        {"pipelines": [{"num_microbatches": 1, "stages": [{"layer_start": 0, "layer_stop": 1, "worker": w}]} for w in WORKERS[:3]]},
    )


def test_where_there_is_no_plan_one_is_looked_for_once_another_plan_runs():
    first, second = (Event(kind=EventKind.WORKER_FAILED, id=worker, generation=0, worker=worker) for worker in WORKERS[:2])
    history = History(membership=Membership.of(Cluster.uniform(5))).after(first).decided(AT.format(1))
    reports = (Report(generation=1, status=ReportStatus.APPLIED),)
    assert not history.after(*reports).calls_for_a_plan(history, reports)
    unplanned = history.after(second).undecided({"code": "state_lost"})
    assert unplanned.after(*reports).calls_for_a_plan(unplanned, reports)


def test_a_policy_is_left_out_no_longer_once_another_plan_runs():
    lost = Event(kind=EventKind.WORKER_FAILED, id="lost", generation=0, worker="w00")
    history = History(membership=Membership.of(Cluster.uniform(5))).after(lost).decided(AT.format(1))
    history = history.after(Report(generation=1, status=ReportStatus.REJECTED, reason="no memory", replan=True))
    assert history.left_out == (1,)
    assert history.decided(AT.format(2)).after(Report(generation=1, status=ReportStatus.APPLIED)).left_out == ()
