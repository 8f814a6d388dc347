"""Silence in an overlay: it becomes one loss, pauses of the service are nobody's, and links that nobody connects are given up."""

from types import SimpleNamespace

import anyio
import pytest
from starlette.testclient import TestClient

from api.app import create_app
from api.overlay.hearing import LINK_PATIENCE_RATIO, Hearing
from api.overlay.monitor import Monitor
from api.overlay.scheduler import Scheduler
from api.settings import Settings
from api.storage.store import Store
from kintsugi.core.errors import NotFoundError, StaleIncarnationError, UnavailableError
from kintsugi.core.overlay import WorkerState
from kintsugi.core.overlay_messages import OverlayEvent, OverlayEventKind, OverlayHeartbeat
from tests.api.waiting.witnesses import Between
from tests.planner.overlay.world import mesh

NOW = "2026-01-31T12:00:00Z"
TIMEOUT = 10.0


def heard(world, now=0.0):
    hearing = Hearing(overlay=world.overlay)
    hearing.look(world.overlay, now)
    return hearing


def beat(hearing, worker, now, **told):
    hearing.hear(OverlayHeartbeat(worker=worker, **told), now, NOW)


def lost(hearing, now):
    return [(event.kind.value, event.worker or event.link, event.incarnation) for event in hearing.lost(now, TIMEOUT)]


def test_silence_beyond_the_timeout_is_a_loss():
    hearing = heard(mesh("w00", "w01"))
    beat(hearing, "w01", 5.0)
    assert lost(hearing, TIMEOUT) == []
    assert lost(hearing, 10.5) == [("worker_failed", "w00", 0)]
    (event,) = hearing.lost(10.5, TIMEOUT)
    assert "10.5 s" in event.detail


def test_losses_of_workers_with_the_longest_names_have_ids_of_their_own():
    names = [f"{'w' * 198}{number}" for number in (10, 11)]
    hearing = heard(mesh(*names))
    assert len({event.id for event in hearing.lost(10.5, TIMEOUT)}) == 2


def test_a_new_life_has_the_whole_timeout():
    world = mesh("w00", "w01")
    hearing = heard(world)
    beat(hearing, "w00", 9.0)
    hearing.look(world.join("w01", "w00", incarnation=1), 9.0)
    assert lost(hearing, 18.9) == []
    with pytest.raises(StaleIncarnationError):
        beat(hearing, "w01", 19.0)
    assert lost(hearing, 19.5) == [("worker_failed", "w00", 0), ("worker_failed", "w01", 1)]


def test_strangers_and_the_lost_are_refused():
    world = mesh("w00", "w01")
    world.tell("worker_failed", worker="w01")
    hearing = heard(world)
    with pytest.raises(NotFoundError):
        beat(hearing, "w07", 1.0)
    with pytest.raises(StaleIncarnationError):
        beat(hearing, "w01", 1.0)
    assert lost(hearing, 20.0) == [("worker_failed", "w00", 0)]


def test_a_wanted_link_that_nobody_connects_is_given_up():
    world = mesh("w00", "w01")
    world.join("w02", "w00", "w01")
    hearing = heard(world)
    for worker in ("w00", "w01", "w02"):
        beat(hearing, worker, LINK_PATIENCE_RATIO * TIMEOUT)
    hearing.look(world.tell("link_connected", link=("w00", "w02")), 5.0)
    now = LINK_PATIENCE_RATIO * TIMEOUT + 0.1
    assert lost(hearing, now) == [("link_disconnected", ("w01", "w02"), 0)]
    (event,) = hearing.lost(now, TIMEOUT)
    assert event.generation == world.overlay.generation - 1


def test_time_in_which_nobody_listened_is_nobodys_silence():
    world = mesh("w00", "w01")
    world.join("w02", "w00")
    hearing = heard(world)
    hearing.forgive(60.0, 65.0)
    assert lost(hearing, 65.0) == []


def test_an_older_overlay_is_not_gone_back_to():
    world = mesh("w00")
    old = world.overlay
    hearing = heard(mesh("w00", "w01"))
    hearing.look(old, 1.0)
    assert set(hearing.lives) == {"w00", "w01"}


@pytest.fixture
def scheduler(database_url):
    """A scheduler of one active worker."""
    store = Store(database_url)
    store.open()
    found = Scheduler(store.database)
    told = {"address": "h:1", "state_bytes": 1, "shard_bytes": 1}
    found.post("llama", OverlayEvent(kind=OverlayEventKind.WORKER_JOINED, id="1", worker="w00", **told))
    yield found
    store.close()


def watching(scheduler, clock, witness=None):
    """A monitor, and whether its posts arrive."""
    away = []

    async def post(job, event):
        if away:
            raise UnavailableError("is away")
        scheduler.post(job, event)

    return Monitor(scheduler, post, timeout_seconds=TIMEOUT, witness=witness, clock=clock), away


@pytest.mark.anyio
async def test_one_heartbeat_that_goes_astray_loses_nobody(scheduler):
    now, everybody = [100.0], []
    one, other = (watching(scheduler, lambda: now[0], Between(everybody))[0] for _ in range(2))

    async def pass_by(seconds):
        now[0] += seconds
        for monitor in (one, other):
            await monitor._exchange(monitor._witness)
        for monitor in (one, other):
            await monitor._declare("llama")

    await other.hear("llama", OverlayHeartbeat(worker="w00"))
    for _ in range(6):
        await one.hear("llama", OverlayHeartbeat(worker="w00"))
        await pass_by(0.4 * TIMEOUT)
    assert scheduler.page("llama").overlay.worker("w00").state is WorkerState.ACTIVE
    for _ in range(3):
        await pass_by(0.4 * TIMEOUT)
    assert scheduler.page("llama").overlay.worker("w00").state is WorkerState.FAILED
    assert {*one._heard["llama"].lives, *other._heard["llama"].lives} == set()


@pytest.mark.anyio
async def test_the_monitor_declares_who_fell_silent_once_the_database_answers(scheduler):
    now = [100.0]
    monitor, away = watching(scheduler, lambda: now[0])
    assert monitor.signs("llama").signs == ()
    answer = await monitor.hear("llama", OverlayHeartbeat(worker="w00", synchronization_seconds=0.5))
    assert (answer.generation, answer.timeout_seconds) == (1, TIMEOUT)
    assert monitor.synchronization_seconds("llama") == {"w00": 0.5}
    now[0] += 1.1 * TIMEOUT
    away.append(True)
    await monitor._declare("llama")
    assert scheduler.page("llama").overlay.worker("w00").state is WorkerState.ACTIVE
    away.clear()
    await monitor._declare("llama")
    await monitor._declare("llama")
    assert scheduler.page("llama").overlay.worker("w00").state is WorkerState.FAILED
    assert scheduler.page("llama").number == 2
    with pytest.raises(StaleIncarnationError):
        await monitor.hear("llama", OverlayHeartbeat(worker="w00"))


@pytest.mark.anyio
async def test_a_heartbeat_that_is_refused_begins_no_watch(scheduler):
    monitor, _ = watching(scheduler, lambda: 0.0)
    with pytest.raises(NotFoundError):
        await monitor.hear("llama", OverlayHeartbeat(worker="w07"))
    assert monitor._timeout_seconds() is None
    await monitor.hear("llama", OverlayHeartbeat(worker="w00"))
    assert monitor._timeout_seconds() == TIMEOUT


@pytest.mark.anyio
async def test_time_in_which_the_service_did_not_listen_is_forgiven(scheduler):
    readings = iter([0.0, 0.0, 0.0, 500.0, 500.0])
    monitor, _ = watching(scheduler, lambda: next(readings, 500.2))
    await monitor.hear("llama", OverlayHeartbeat(worker="w00"))
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(monitor.run)
            await anyio.sleep(0.05)
            monitor.close()
    assert scheduler.page("llama").overlay.worker("w00").state is WorkerState.ACTIVE


@pytest.mark.anyio
async def test_a_service_that_is_stopped_as_it_looks_who_is_lost_declares_nobody_for_it(scheduler, monkeypatch):
    now, page = [0.0], scheduler.page
    monitor, _ = watching(scheduler, lambda: now[0])
    await monitor.hear("llama", OverlayHeartbeat(worker="w00"))
    await monitor._tick()

    def stopped(job):
        now[0] += 500.0
        return page(job)

    monkeypatch.setattr(scheduler, "page", stopped)
    await monitor._declare("llama")
    assert page("llama").overlay.worker("w00").state is WorkerState.ACTIVE


@pytest.mark.anyio
async def test_a_service_that_is_stopped_between_two_losses_looks_anew():
    now, told, page = [0.0], [], SimpleNamespace(overlay=mesh("w00", "w01").overlay)

    async def post(_job, event):
        told.append(event.worker)
        now[0] += 500.0

    scheduler = SimpleNamespace(page=lambda _job: page, hear_term=lambda *_: None)
    monitor = Monitor(scheduler, post, timeout_seconds=TIMEOUT, clock=lambda: now[0])
    await monitor.hear("llama", OverlayHeartbeat(worker="w00"))
    now[0] = 1.1 * TIMEOUT
    await monitor._tick()
    await monitor._declare("llama")
    assert told == ["w00"]


@pytest.mark.anyio
async def test_a_service_that_heard_nobody_for_long_gives_the_first_one_no_more_than_the_timeout(scheduler):
    readings = iter([500.0, 500.0])
    monitor, _ = watching(scheduler, lambda: next(readings, 500.0 + 1.1 * TIMEOUT))
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(monitor.run)
            await anyio.wait_all_tasks_blocked()
            await monitor.hear("llama", OverlayHeartbeat(worker="w00"))
            while scheduler.page("llama").overlay.worker("w00").state is WorkerState.ACTIVE:
                await anyio.sleep(0.005)
            monitor.close()


def test_the_real_service(database_url):
    settings = Settings(database_url=database_url, overlay_timeout_seconds=0.2)
    with TestClient(create_app(settings)) as client:
        told = {"kind": "worker_joined", "id": "1", "worker": "w00", "address": "h:1", "state_bytes": 1, "shard_bytes": 1}
        client.post("/v1/jobs/llama/overlay/events", json=told)
        assert client.post("/v1/jobs/llama/overlay/heartbeats", json={"worker": "w00"}).json()["timeout_seconds"] == 0.2
        waited = client.get("/v1/jobs/llama/overlay", params={"after_generation": 1, "wait_seconds": 20}).json()
        assert waited["workers"][0]["state"] == "failed"
        assert "no heartbeat for" in waited["workers"][0]["detail"]
