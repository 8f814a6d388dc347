"""Advise-only jobs, pinned policies, and trainers that reject plans or do not answer."""

import pytest

from api.metrics import Metrics
from api.schemas import NewJob
from api.service import Service
from api.storage.legible import IllegibleError
from api.storage.store import Store
from kintsugi.core.errors import ConflictError, InfeasibleError, InvalidInputError, NotFoundError
from kintsugi.core.handling import Approval, Handling, PlanStatus, Verdict
from kintsugi.core.job import JobSettings
from kintsugi.core.membership import Event, EventKind
from kintsugi.core.messages import Report, ReportStatus
from kintsugi.core.plan import Policy
from tests.api.requests import EVENTS, JOB, REPORTS, event, new_job, report
from tests.builders import uniform_profile


class Clock:
    """A moment that tests move."""

    second = 0

    def __call__(self):
        return f"2026-01-31T12:{self.second // 60:02d}:{self.second % 60:02d}.000000Z"


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def make(database_url, clock):
    store = Store(database_url)
    store.open()

    def made(handling, **settings):
        service = Service(store, Metrics(), now=clock)
        wanted = JobSettings(num_microbatches=6, **settings)
        service.create_job(NewJob(id="job", profile=uniform_profile(3), workers=5, settings=wanted, handling=handling))
        return service

    yield made
    store.close()


def lose(service, worker, generation, name=None):
    event = Event(kind=EventKind.WORKER_FAILED, id=name or worker, generation=generation, worker=worker)
    return service.post_events("job", [event])


def status(service, generation):
    return service.standing_decision("job", generation).standing.status


def previous(service, generation):
    plan = service.store.decision("job", generation).wording.decision().previous_plan
    return None if plan is None else plan.generation


def applied(generation):
    return Report(generation=generation, status=ReportStatus.APPLIED)


def rejected(generation, **changes):
    return Report(generation=generation, status=ReportStatus.REJECTED, reason="w02 did not answer", **changes)


def test_advice_binds_nobody_and_makes_no_plan_stale(make):
    service = make(Handling(advise_only=True))
    assert status(service, 0) is PlanStatus.ADVISED
    assert service.state("job").history.applied_generation == -1
    lose(service, "w00", 0)
    assert previous(service, 1) is None  # nothing runs that it could start from
    service.post_report("job", applied(1))
    lose(service, "w01", 1)
    lose(service, "w02", 1)  # the trainer runs 1 still, whatever was advised since
    assert (previous(service, 2), previous(service, 3)) == (1, 1)
    assert [status(service, g) for g in range(4)] == [
        PlanStatus.SUPERSEDED,
        PlanStatus.APPLIED,
        PlanStatus.SUPERSEDED,
        PlanStatus.ADVISED,
    ]


def test_an_advise_only_job_is_shown_as_one(client):
    shown = client.post("/v1/jobs", json=new_job(handling={"advise_only": True})).json()
    assert (shown["summary"]["applied_generation"], shown["summary"]["status"]) == (-1, "advised")
    answer = client.post(EVENTS, json=event("a", 0, "w00")).json()
    assert (answer["status"], answer["decision"]["previous_plan"]) == ("advised", None)
    client.post(REPORTS, json=report(1))
    now = client.get(JOB).json()
    assert now["summary"]["applied_generation"] == 1
    assert [(s["generation"], s["status"]) for s in now["standings"]] == [(1, "applied")]


def test_a_pinned_policy_is_kept_to_and_says_so_where_it_is_impossible(make):
    service = make(Handling(), policy=Policy.SPARE_SUBSTITUTION)
    with pytest.raises(InfeasibleError) as refusal:
        lose(service, "w00", 0)  # all five had a stage: there is no spare
    assert (refusal.value.field, refusal.value.value) == ("policy", "spare_substitution")
    assert service.state("job").history.problem["value"] == "spare_substitution"


@pytest.mark.both_databases
def test_a_rejected_plan_leaves_what_runs_and_shows_why(make):
    service = make(Handling())
    lose(service, "w00", 0)
    service.post_report("job", rejected(1))
    standing = service.standing_decision("job", 1).standing
    assert (standing.status, standing.reason) == (PlanStatus.REJECTED, "w02 did not answer")
    assert service.state("job").history.applied_generation == 0
    lose(service, "w01", 1)
    assert previous(service, 2) == 0
    assert status(service, 1) is PlanStatus.SUPERSEDED


def test_a_rejected_plan_is_decided_anew_without_its_policy_where_that_is_asked_for(make):
    service = make(Handling())
    lose(service, "w00", 0)
    tried = [service.store.decision("job", 1).wording.decision().policy]
    while True:
        try:
            entry = service.post_report("job", rejected(len(tried), replan=True))
        except InfeasibleError:
            break
        tried.append(service.store.decision("job", entry.generation).wording.decision().policy)
    assert len(tried) == len(set(tried)) > 1
    lose(service, "w01", len(tried))
    assert service.state("job").history.left_out == ()  # another membership, another choice


@pytest.mark.both_databases
def test_a_plan_that_nobody_answers_times_out_and_an_answer_counts_still(make, clock):
    service = make(Handling(answer_timeout_seconds=30.0))
    lose(service, "w00", 0)
    clock.second = 29
    assert service.expire("job").number == 1
    assert service.store.agenda.due(clock()) == []
    clock.second = 30
    assert service.store.agenda.due(clock()) == ["job"]
    service.expire("job")
    assert status(service, 1) is PlanStatus.TIMED_OUT
    assert service.store.agenda.next_after("") is None
    assert b'kintsugi_expiries_total{waited_for="answer"} 1.0' in service._metrics.exposition()
    again = Service(service.store, Metrics(), now=clock)
    assert again.state("job").history == service.state("job").history
    service.post_report("job", applied(1))
    assert status(service, 1) is PlanStatus.APPLIED


def test_an_answer_in_time_ends_the_waiting(make, clock):
    service = make(Handling(answer_timeout_seconds=30.0))
    lose(service, "w00", 0)
    service.post_report("job", applied(1))
    assert service.store.agenda.next_after("") is None
    clock.second = 3000
    assert status(service, 1) is PlanStatus.APPLIED


def test_a_worker_that_drains_returns_and_slows_down_is_planned_for_over_http(client, job):
    kinds = [
        event("d", 0, "w05", "worker_draining", deadline_seconds=30.0),
        event("j", 1, "w05", "worker_joined", incarnation=1),
        event("f", 2, "w04", "device_failed"),
        event("s", 3, "w00", "straggler", speed_ratio=0.25),
        event("r", 4, "w00", "recovered"),
        {**event("l", 5, kind="link_degraded"), "link": ["h00", "h01"], "alpha_seconds": 0.5, "beta_seconds_per_byte": 1e-6},
        {**event("c", 6, kind="link_connected"), "link": ["h00", "h01"]},
    ]
    answers = [client.post(EVENTS, json=body) for body in kinds]
    assert [answer.json()["generation"] for answer in answers] == [1, 2, 3, 4, 5, 6, 7]
    now = client.get(JOB).json()
    assert now["alive"] == ["w00", "w01", "w02", "w03", "w05"]
    assert (now["cluster"]["workers"][0]["speed_ratio"], now["cluster"]["links"]) == (1.0, [])


@pytest.mark.both_databases
@pytest.mark.parametrize(("verdict", "stands"), [(Verdict.APPROVE, PlanStatus.APPROVED), (Verdict.REFUSE, PlanStatus.REFUSED)])
def test_what_nobody_judges_in_time_is_taken_as_the_job_says(make, clock, verdict, stands):
    service = make(Handling(requires_approval=True, approval_timeout_seconds=60.0, on_approval_timeout=verdict))
    lose(service, "w00", 0)
    clock.second = 60
    service.expire("job")
    standing = service.standing_decision("job", 1).standing
    assert (standing.status, standing.by, standing.reason) == (stands, None, "nobody approved or refused it within 60 s")
    assert service.decision("job").generation == (1 if verdict is Verdict.APPROVE else 0)


@pytest.mark.parametrize("seconds", [1e12, 1e300])  # past the year 9999, and more than a time span holds
def test_a_timeout_of_ages_is_none(make, seconds):
    service = make(Handling(requires_approval=True, approval_timeout_seconds=seconds, answer_timeout_seconds=seconds))
    lose(service, "w00", 0)
    (deadline,) = service.state("job").history.lifecycle.deadlines
    assert deadline.at == "9999-12-31T23:59:59.999999Z"
    service.expire("job")
    assert status(service, 1) is PlanStatus.PROPOSED


@pytest.mark.parametrize(
    ("handling", "field"),
    [
        ({"advise_only": True, "requires_approval": True}, "requires_approval"),
        ({"coalesce_seconds": 601.0}, "coalesce_seconds"),
        ({"answer_timeout_seconds": 0.0}, "answer_timeout_seconds"),
        ({"approval_timeout_seconds": 5.0}, "approval_timeout_seconds"),
    ],
)
def test_a_handling_that_makes_no_sense_names_the_field(handling, field):
    with pytest.raises(InvalidInputError) as refusal:
        Handling(**handling)
    assert refusal.value.field == field


def test_a_report_on_a_plan_that_was_never_approved_is_refused(make):
    service = make(Handling(requires_approval=True))
    lose(service, "w00", 0)
    with pytest.raises(ConflictError, match="never approved"):
        service.post_report("job", applied(1))


@pytest.mark.parametrize("error", [IllegibleError("holds what this version does not understand"), NotFoundError("is gone")])
def test_a_job_that_cannot_be_read_keeps_no_plan_of_others_from_being_found(make, monkeypatch, error):
    service = make(Handling(requires_approval=True))
    of_other = NewJob(
        id="other",
        profile=uniform_profile(3),
        workers=5,
        settings=JobSettings(num_microbatches=6),
        handling=Handling(requires_approval=True),
    )
    service.create_job(of_other)
    lose(service, "w00", 0)
    read = service.state

    def state(job):
        if job == "job":
            raise error
        return read(job)

    monkeypatch.setattr(service, "state", state)
    assert service.latest_generations(["job", "other"]) == {"other": 0}


def test_of_plans_that_start_from_another_one_than_runs_none_is_to_go_on_with(make):
    service = make(Handling(requires_approval=True))
    for generation, worker in enumerate(("w00", "w01")):
        lose(service, worker, generation)
        service.post_approval("job", Approval(generation=generation + 1, decision=Verdict.APPROVE, by="Ada"))
    service.post_report("job", applied(1))  # the second one moves state from where the first plan of all had it
    lifecycle = service.state("job").history.lifecycle
    assert (lifecycle.applied, lifecycle.current, lifecycle.generation) == (1, 1, 3)
    assert (previous(service, 2), previous(service, 3)) == (0, 1)
    assert [status(service, g) for g in range(1, 4)] == [PlanStatus.APPLIED, PlanStatus.SUPERSEDED, PlanStatus.PROPOSED]
    assert service.standing_decision("job").decision.generation == 1
    lose(service, "w02", 1)  # and what runs may be spoken of
    service.post_report("job", applied(2))  # a trainer had it in hand
    assert previous(service, 5) == 2


def test_where_no_plan_starts_from_what_runs_one_that_waits_for_approval_does_not_either(make):
    service = make(Handling(requires_approval=True, coalesce_seconds=2.0))
    lose(service, "w00", 0)
    service.now.second = 2
    service.expire("job")
    service.post_approval("job", Approval(generation=1, decision=Verdict.APPROVE, by="Ada"))
    lose(service, "w01", 1)
    service.now.second = 4
    service.expire("job")
    lose(service, "w02", 1)  # further events are waited for, and a decision with them
    service.post_report("job", applied(1))
    assert [status(service, g) for g in range(1, 3)] == [PlanStatus.APPLIED, PlanStatus.SUPERSEDED]
    with pytest.raises(ConflictError, match="superseded"):
        service.post_approval("job", Approval(generation=2, decision=Verdict.APPROVE, by="Ada"))


def test_a_refusal_that_leaves_no_plan_is_logged_once_however_often_it_is_said(make):
    service = make(Handling(requires_approval=True), policy=Policy.DYNAMIC_PARALLELISM)
    lose(service, "w00", 0)
    refusal = Approval(generation=1, decision=Verdict.REFUSE, by="Ada", reason="too slow", replan=True)
    for _ in range(2):
        with pytest.raises(InfeasibleError):
            service.post_approval("job", refusal)
    assert service.store.num_entries("job") == 2
