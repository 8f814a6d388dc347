"""Heartbeats: silence becomes one loss; who was declared lost is told so; pauses of the service are nobody's silence."""

from dataclasses import replace
from types import SimpleNamespace

import anyio
import pytest
import structlog

from api.jobs.history import History
from api.records import JobState
from api.storage.stored import StoredJob
from api.waiting.heartbeats import PATIENCE_RATIO, Listened
from api.waiting.heartbeats_watch import HeartbeatWatch
from kintsugi.core.cluster import Cluster, Worker
from kintsugi.core.ending import Ending, Outcome
from kintsugi.core.errors import ConflictError, NotFoundError, StaleIncarnationError, UnavailableError
from kintsugi.core.heartbeats import Heartbeats
from kintsugi.core.job import JobSettings
from kintsugi.core.membership import Event, EventKind, Membership
from tests.api.requests import EVENTS, event, new_job
from tests.builders import uniform_profile
from tests.patience import eventually

NOW = "2026-01-31T12:00:00Z"
TIMEOUT = 10.0
HEARTBEATS = "/v1/jobs/llama/heartbeats"


def state_of(history, timeout=TIMEOUT):
    job = StoredJob(id="llama", created_at=NOW, request_digest="", profile="", cluster="", settings="", handling="")
    settings = JobSettings(num_microbatches=8, heartbeat_timeout_seconds=timeout)
    return JobState(job=job, profile=uniform_profile(4), settings=settings, history=history, heard_at=NOW)


def beginning(workers=6, workers_per_host=2):
    return History(membership=Membership.of(Cluster.uniform(workers, workers_per_host=workers_per_host)))


def beats(host, *workers, **incarnations):
    return Heartbeats(host=host, workers=workers, observed_at=NOW, incarnations=incarnations)


def listened(history=None, now=0.0):
    result = Listened(job="llama", timeout_seconds=TIMEOUT)
    result.look(state_of(history or beginning()), now)
    return result


def subjects(job, now):
    return {(event.kind, event.worker or event.host) for event in job.events(job.lost(now), now, NOW)}


def beat_all(job, now, *hosts):
    for host in hosts:
        job.hear(beats(host, *(worker for worker, at in job.host_of.items() if at == host)), now)


def test_silence_beyond_the_timeout_is_a_loss_of_workers_or_of_their_host():
    job = listened()
    beat_all(job, 5.0, "h00", "h01")
    job.hear(beats("h02", "w04"), 5.0)
    assert job.lost(TIMEOUT) == []
    assert subjects(job, 14.9) == {(EventKind.WORKER_FAILED, "w05")}
    beat_all(job, 14.0, "h00")
    assert subjects(job, 15.1) == {(EventKind.HOST_FAILED, "h01"), (EventKind.HOST_FAILED, "h02")}


def test_a_host_of_one_worker_is_told_as_that_worker():
    job = listened(beginning(workers=2, workers_per_host=1))
    beat_all(job, 8.0, "h00")
    (loss,) = job.events(job.lost(10.5), 10.5, NOW)
    assert (loss.kind, loss.worker, loss.generation, loss.observed_at) == (EventKind.WORKER_FAILED, "w01", 0, NOW)
    assert "10.5 s" in loss.detail
    assert "10 s" in loss.detail


def test_those_who_fell_silent_together_are_lost_together():
    job = listened()
    for now in (0.0, 2.0, 4.0):
        beat_all(job, now, "h00")
        beat_all(job, now + 0.5, "h01")
        beat_all(job, now + 1.0, "h02")
    for now in (6.0, 8.0, 10.0, 12.0, 14.0):
        beat_all(job, now, "h00")
    assert job.lost(14.6) == []  # h01 is overdue; h02, silent for 9.6 s of its period of 2 s, is waited for
    assert subjects(job, 15.1) == {(EventKind.HOST_FAILED, "h01"), (EventKind.HOST_FAILED, "h02")}


def test_nobody_is_waited_for_in_vain():
    job = listened()
    beat_all(job, 0.0, "h00", "h01", "h02")
    beat_all(job, 1.0, "h00", "h01", "h02")
    beat_all(job, 8.0, "h00", "h01")
    now = 1.0 + PATIENCE_RATIO * TIMEOUT
    job.periods["h00"] = 0.5  # looks late for ever
    assert job.lost(11.5) == []
    assert subjects(job, now + 0.1) == {(EventKind.HOST_FAILED, "h02")}


def test_dead_and_replaced_lives_are_told_so():
    history = beginning()
    history = history.after(Event(kind=EventKind.WORKER_FAILED, id="a", generation=0, worker="w01", incarnation=3))
    history = history.after(Event(kind=EventKind.WORKER_JOINED, id="b", generation=0, worker="w02", incarnation=2))
    job = listened(history)
    assert not job.knows(beats("h00", "w00", "w01"))
    with pytest.raises(StaleIncarnationError) as refused:
        job.hear(beats("h00", "w00", "w01", w01=3), 7.0)
    assert refused.value.incarnations == {"w01": 3}
    assert job.heard["w00"] == 7.0
    with pytest.raises(StaleIncarnationError):
        job.hear(beats("h01", "w02"), 7.0)
    assert job.hear(beats("h01", "w02", w02=2), 7.0).timeout_seconds == TIMEOUT


@pytest.mark.parametrize("worker", ["w99", "w02"])
def test_workers_of_another_host_are_refused(worker):
    with pytest.raises(NotFoundError) as refused:
        listened().hear(beats("h00", "w00", worker), 1.0)
    assert (refused.value.field, refused.value.value) == ("workers[1]", worker)


def test_newcomers_have_the_whole_timeout_and_the_dead_are_awaited_no_more():
    history = beginning()
    job = listened(history)
    history = history.after(Event(kind=EventKind.HOST_FAILED, id="a", generation=0, host="h00"))
    history = history.after(Event(kind=EventKind.WORKER_JOINED, id="b", generation=0, worker="w77", host="h77"))
    job.look(state_of(history), 9.0)
    assert "w00" not in job.heard
    beat_all(job, 9.5, "h01", "h02")
    assert job.lost(18.9) == []
    assert job.lost(19.1) == ["w77"]


class Records:
    """A job whose log is in memory."""

    def __init__(self, timeout=TIMEOUT):
        self.history, self.timeout, self.logged, self.away = beginning(), timeout, [], False

    def state(self, job):
        return state_of(self.history, self.timeout)

    known_state = state

    def latest_numbers(self, jobs):
        return dict.fromkeys(jobs, self.history.number)

    async def post(self, job, events):
        if self.away:
            raise UnavailableError("away")
        self.logged.append({event.worker or event.host for event in events})
        for happened in events:
            self.history = self.history.after(happened)
        self.history = self.history.decided(NOW)


@pytest.mark.anyio
async def test_the_watch_declares_once_and_a_restart_gives_everybody_time():
    records, now = Records(), [100.0]
    watch = HeartbeatWatch(records, records.post, clock=lambda: now[0])
    await watch.hear("llama", beats("h00", "w00", "w01"))
    assert watch.num_workers() == 6
    now[0] += 0.9 * TIMEOUT
    await watch.hear("llama", beats("h00", "w00", "w01"))
    now[0] += 0.2 * TIMEOUT
    await watch._declare("llama")
    await watch._declare("llama")
    assert records.logged == [{"h01", "h02"}]
    again = HeartbeatWatch(records, records.post, clock=lambda: now[0])
    await again.hear("llama", beats("h00", "w00"))
    await again._declare("llama")
    assert len(records.logged) == 1
    with pytest.raises(StaleIncarnationError):
        await again.hear("llama", beats("h01", "w02", "w03"))


@pytest.mark.anyio
async def test_a_heartbeat_that_is_refused_begins_no_watch():
    records, now = Records(), [0.0]
    watch = HeartbeatWatch(records, records.post, clock=lambda: now[0])
    with pytest.raises(NotFoundError):
        await watch.hear("llama", beats("h01", "w00"))
    assert watch.num_workers() == 0
    records.history = records.history.after(Event(kind=EventKind.WORKER_FAILED, id="e", generation=0, worker="w00"))
    with pytest.raises(StaleIncarnationError):
        await watch.hear("llama", beats("h00", "w00"))
    assert watch.num_workers() == 0
    with pytest.raises(StaleIncarnationError):
        await watch.hear("llama", beats("h00", "w00", "w01"))
    assert watch.num_workers() == 5


@pytest.mark.anyio
async def test_losses_are_told_once_the_database_is_back():
    records, now = Records(), [0.0]
    watch = HeartbeatWatch(records, records.post, clock=lambda: now[0])
    await watch.hear("llama", beats("h00", "w00", "w01"))
    now[0], records.away = 1.1 * TIMEOUT, True
    await watch._declare("llama")
    assert records.logged == []
    records.away = False
    await watch._declare("llama")
    assert records.logged == [{"h00", "h01", "h02"}]


@pytest.mark.anyio
@pytest.mark.usefixtures("talkative")
async def test_losses_that_cannot_be_told_are_said_to_be_so_once():
    records, now = Records(), [0.0]
    watch = HeartbeatWatch(records, records.post, clock=lambda: now[0])
    await watch.hear("llama", beats("h00", "w00", "w01"))
    now[0], records.away = 1.1 * TIMEOUT, True
    with structlog.testing.capture_logs() as lines:
        for _ in range(3):
            await watch._declare("llama")
        records.away = False
        await watch._declare("llama")
    assert [line["event"] for line in lines] == [
        "cannot tell who fell silent",
        "workers fell silent",
        "can tell who fell silent again",
    ]


@pytest.mark.anyio
async def test_a_mistake_of_ours_in_one_job_leaves_others_their_losses():
    records, now = Records(), [0.0]

    async def post(job, events):
        if job == "broken":
            raise OverflowError("a mistake of ours")
        await records.post(job, events)

    watch = HeartbeatWatch(records, post, clock=lambda: now[0])
    for job in ("broken", "llama"):
        await watch.hear(job, beats("h00", "w00", "w01"))
    now[0] = 1.1 * TIMEOUT
    for job in ("broken", "llama"):
        await watch._declare(job)
    assert records.logged == [{"h00", "h01", "h02"}]


@pytest.mark.anyio
async def test_a_job_that_is_planned_for_at_length_keeps_no_loss_of_another_and_is_asked_about_once():
    jobs = {job: Records(timeout=0.4) for job in ("slow", "llama")}
    records = SimpleNamespace(state=lambda job: jobs[job].state(job), known_state=lambda job: jobs[job].state(job))
    readings, asked, told, rounds_are_over = [0.0], [], anyio.Event(), anyio.Event()

    def clock():
        readings.append(1.0)
        if len(readings) > 40 and told.is_set():
            rounds_are_over.set()
        return readings[0]

    async def post(job, events):
        asked.append(job)
        if job == "slow":
            await rounds_are_over.wait()
        await jobs[job].post(job, events)
        told.set()

    watch = HeartbeatWatch(records, post, clock=clock)
    for job in jobs:
        await watch.hear(job, beats("h00", "w00", "w01"))
    readings[0] = 1.0
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch.run)
            await rounds_are_over.wait()
            watch.close()
    assert sorted(asked) == ["llama", "slow"]


@pytest.mark.anyio
async def test_nobody_is_missed_in_a_job_of_which_another_process_knows_the_end():
    records, now = Records(), [0.0]
    watch = HeartbeatWatch(records, records.post, clock=lambda: now[0])
    await watch.hear("llama", beats("h00", "w00"))
    records.history = records.history.after(Ending(outcome=Outcome.COMPLETED), NOW)
    now[0] = 1.1 * TIMEOUT
    await watch._declare("llama")
    await watch._declare("llama")
    assert (records.logged, watch.num_workers()) == ([], 0)
    with pytest.raises(ConflictError, match="has ended"):
        await watch.hear("llama", beats("h00", "w00"))


@pytest.mark.anyio
async def test_jobs_that_nobody_listens_for_are_answered_all_the_same():
    records, now = Records(timeout=None), [0.0]
    watch = HeartbeatWatch(records, records.post, clock=lambda: now[0])
    answer = await watch.hear("llama", beats("h00", "w00"))
    assert (answer.generation, answer.timeout_seconds) == (0, None)
    now[0] = 1e6
    await watch._declare("llama")
    assert (records.logged, watch.num_workers()) == ([], 0)


@pytest.mark.anyio
async def test_time_in_which_the_service_did_not_listen_is_forgiven():
    records, readings = Records(), iter([0.0, 0.0, 0.0, 500.0, 500.0])
    watch = HeartbeatWatch(records, records.post, clock=lambda: next(readings, 500.2))
    await watch.hear("llama", beats("h00", "w00"))
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch.run)
            await anyio.sleep(0.05)
            watch.close()
    assert records.logged == []


@pytest.mark.anyio
async def test_a_service_that_is_stopped_as_it_looks_who_is_lost_looks_anew(monkeypatch):
    records, now = Records(timeout=0.4), [0.0]
    watch, state = HeartbeatWatch(records, records.post, clock=lambda: now[0]), records.state

    def stopped(job):
        now[0] += 500.0
        return state(job)

    for now[0] in (0.0, 0.3):
        for host, *workers in (("h00", "w00", "w01"), ("h01", "w02", "w03")):
            await watch.hear("llama", beats(host, *workers))
    now[0] = 0.6
    await watch._tick()
    monkeypatch.setattr(records, "state", stopped)
    await watch._declare("llama")
    assert records.logged == []
    monkeypatch.setattr(records, "state", state)
    await watch._declare("llama")
    assert records.logged == [{"h02"}]


@pytest.mark.anyio
async def test_who_is_heard_as_a_stopped_service_goes_on_is_missed_as_soon_as_others():
    records, now = Records(timeout=0.4), [0.0]
    watch = HeartbeatWatch(records, records.post, clock=lambda: now[0])
    await watch.hear("llama", beats("h00", "w00", "w01"))
    await watch._tick()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch._tick)
        await anyio.wait_all_tasks_blocked()
        now[0] = 500.0
        await watch.hear("llama", beats("h00", "w00", "w01"))
    assert max(watch._heard["llama"].heard.values()) == 500.0


def test_the_real_service(client):
    settings = {"num_microbatches": 8, "heartbeat_timeout_seconds": 0.2}
    assert client.post("/v1/jobs", json=new_job(settings=settings)).status_code == 201
    body = {"host": "h00", "workers": ["w00", "w01"], "observed_at": NOW}
    assert client.post(HEARTBEATS, json=body).json() == {"generation": 0, "timeout_seconds": 0.2}
    logged = client.get(EVENTS, params={"after": 0, "wait_seconds": 20}).json()["events"]
    assert {record["event"]["host"] for record in logged} == {"h00", "h01", "h02"}
    assert len({record["generation"] for record in logged}) == 1
    stale = eventually(lambda: client.post(HEARTBEATS, json=body), lambda answer: answer.status_code == 409)
    assert stale.status_code == 409
    assert stale.json()["error"]["code"] == "stale_incarnation"
    assert stale.json()["error"]["incarnations"] == {"w00": 0, "w01": 0}
    assert client.post(HEARTBEATS, json={**body, "workers": []}).status_code == 422
    assert client.post("/v1/jobs/nobody/heartbeats", json=body).status_code == 404


def test_nobody_is_missed_in_a_job_that_ended(client, app):
    client.post("/v1/jobs", json=new_job(settings={"num_microbatches": 8, "heartbeat_timeout_seconds": 60.0}))
    body = {"host": "h00", "workers": ["w00", "w01"], "observed_at": NOW}
    client.post(HEARTBEATS, json=body)
    assert app.state.desk.heartbeats.num_workers() == 6
    client.post("/v1/jobs/llama/ending", json={"outcome": "completed"})
    assert app.state.desk.heartbeats.num_workers() == 0
    refused = client.post(HEARTBEATS, json=body)
    assert (refused.status_code, refused.json()["error"]["field"]) == (409, "job")
    assert app.state.desk.heartbeats.num_workers() == 0


def test_a_worker_that_joins_again_is_heard_again(client):
    client.post("/v1/jobs", json=new_job(settings={"num_microbatches": 8, "heartbeat_timeout_seconds": 60.0}))
    client.post(EVENTS, json=event("a", 0, "w01"))
    body = {"host": "h00", "workers": ["w00", "w01"], "observed_at": NOW}
    assert client.post(HEARTBEATS, json=body).status_code == 409
    client.post(EVENTS, json=event("b", 1, "w01", kind="worker_joined", incarnation=1))
    assert client.post(HEARTBEATS, json={**body, "incarnations": {"w01": 1}}).json()["generation"] == 2


def test_who_is_lost_is_refused_also_while_there_is_no_plan_and_who_joins_then_is_listened_for(client, app):
    pinned = {"num_microbatches": 8, "heartbeat_timeout_seconds": 60.0, "policy": "dynamic_parallelism", "ranges": {"min_pp": 2}}
    assert client.post("/v1/jobs", json=new_job(workers=2, workers_per_host=1, settings=pinned)).status_code == 201
    body = {"host": "h01", "workers": ["w01"], "observed_at": NOW}
    assert client.post(HEARTBEATS, json=body).status_code == 200
    assert client.post(EVENTS, json=event("a", 0, "w01")).status_code == 409
    assert client.post(HEARTBEATS, json=body).json()["error"]["code"] == "stale_incarnation"
    assert client.post(EVENTS, json=event("b", 0, "w01", kind="worker_joined", incarnation=1)).status_code == 409
    assert app.state.desk.heartbeats.num_workers() == 2


def test_who_is_lost_is_refused_also_while_it_is_waited_for_further_events(client):
    settings = {"num_microbatches": 8, "heartbeat_timeout_seconds": 60.0}
    client.post("/v1/jobs", json=new_job(settings=settings, handling={"coalesce_seconds": 60.0}))
    body = {"host": "h00", "workers": ["w00", "w01"], "observed_at": NOW}
    assert client.post(HEARTBEATS, json=body).status_code == 200
    assert client.post(EVENTS, json=event("a", 0, "w01"), params={"wait_seconds": 0}).status_code == 202
    assert client.post(HEARTBEATS, json=body).json()["error"]["code"] == "stale_incarnation"


def test_a_worker_that_comes_back_elsewhere_is_heard_from_there(client):
    client.post("/v1/jobs", json=new_job(settings={"num_microbatches": 8, "heartbeat_timeout_seconds": 60.0}))
    client.post(EVENTS, json=event("a", 0, "w01"))
    joined = event("b", 1, "w01", kind="worker_joined", incarnation=1, host="h77")
    assert client.post(EVENTS, json=joined).status_code == 200
    body = {"workers": ["w01"], "observed_at": NOW, "incarnations": {"w01": 1}}
    assert client.post(HEARTBEATS, json={**body, "host": "h77"}).json()["generation"] == 2
    assert client.post(HEARTBEATS, json={**body, "host": "h00"}).status_code == 404


def test_who_moved_has_the_whole_timeout():
    history = beginning()
    job = listened(history)
    moved = Event(kind=EventKind.WORKER_JOINED, id="j", generation=0, worker="w05", host="h77", incarnation=1)
    job.look(state_of(history.after(moved, NOW)), 9.0)
    assert "w05" not in job.lost(11.0)
    assert "w04" in job.lost(11.0)
    assert "w05" in job.lost(20.0)


def test_a_decision_in_between_is_no_doubt_about_who_lives():
    job = listened()
    first = job.events(job.lost(11.0), 11.0, NOW)
    assert [loss.id for loss in first] == [loss.id for loss in job.events(job.lost(12.0), 12.0, NOW)]
    job.look(replace(state_of(beginning()), history=beginning().decided(NOW)), 12.0)
    assert {loss.generation for loss in job.events(job.lost(12.0), 12.0, NOW)} == {1}


@pytest.mark.parametrize("workers_per_host", [1, 2])
def test_who_comes_back_while_there_is_no_plan_and_falls_silent_again_is_another_loss(workers_per_host):
    history = beginning(workers=2, workers_per_host=workers_per_host)
    job = listened(history)
    losses = job.events(job.lost(11.0), 11.0, NOW)
    for number, happened in enumerate(losses):
        history = history.after(happened)
        returned = replace(happened, kind=EventKind(happened.kind.replace("failed", "joined")), id=f"back {number}")
        history = history.after(returned).undecided({"code": "infeasible"})
    job.look(state_of(history), 12.0)
    again = job.events(job.lost(30.0), 30.0, NOW)
    assert [loss.kind for loss in again] == [loss.kind for loss in losses]
    assert not {loss.id for loss in again} & {loss.id for loss in losses}


def test_the_loss_of_workers_with_the_longest_names_can_be_logged():
    names = [f"{'w' * 198}{number}" for number in (10, 11)]
    cluster = Cluster(name="long", workers=tuple(Worker(id=name, host=name) for name in names))
    job = listened(History(membership=Membership.of(cluster)))
    losses = job.events(job.lost(11.0), 11.0, NOW)
    assert [loss.worker for loss in losses] == names
    assert len({loss.id for loss in losses}) == 2
