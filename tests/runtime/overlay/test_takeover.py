"""A scheduler dies, and a worker goes on in its place, with real services."""

import random
import signal
import socket
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from api.access.tokens import NewToken, Scope
from api.access.vault import Vault
from api.overlay.replay import OverlayReplay
from api.storage.store import Store
from kintsugi.client import Client, Patience
from kintsugi.core import codec
from kintsugi.core.errors import InvalidInputError, NotFoundError, StaleTermError
from kintsugi.core.overlay_messages import OverlayEntry, OverlayEvent, OverlayEventKind, OverlayLog
from kintsugi.runtime.forking import forkserver
from kintsugi.runtime.overlay.log_copy import LOG_FILE, LogCopy
from kintsugi.runtime.overlay.serving import ServiceProcess
from kintsugi.runtime.overlay.standby import StandbyOptions
from planner.overlay.synchronization import fastest
from tests.planner.overlay.world import mesh
from tests.processes import is_running, service
from tests.runtime.overlay.test_churn import check_lines
from tests.runtime.overlay.test_log_copy import entries
from tests.runtime.overlay.trainees import WAIT_SECONDS, Trainee
from tests.runtime.overlay.waiting import until

PATIENT = {"KINTSUGI_OVERLAY_TIMEOUT_SECONDS": "200", "KINTSUGI_PLANS_AHEAD": "false"}
"""A busy machine is no failure."""


@pytest.mark.processes
def test_training_and_joining_go_on_when_the_scheduler_is_killed(tmp_path, monkeypatch):
    for name, value in PATIENT.items():
        monkeypatch.setenv(name, value)
    database, folder = tmp_path / "first.sqlite3", tmp_path / "log"
    token = token_of(database, "clinics")
    standby = StandbyOptions(folder=str(folder), lease_seconds=2.0, vote_seconds=1.0)
    trainees: dict[str, Trainee] = {}
    with ExitStack() as running:

        def start(url: str, worker: str, *neighbors: str, **arguments) -> Trainee:
            more = {"token": token, "environment": PATIENT, **arguments}
            trainees[worker] = Trainee(tmp_path, url, "clinics", worker, neighbors, **more)
            running.callback(trainees[worker].end)
            trainees[worker].await_steps(2)
            return trainees[worker]

        first = running.enter_context(service(database))
        successor = start(first.url, "a", standby=standby)
        start(first.url, "b", "a")
        first.kill()
        for worker in ("a", "b"):
            until(lambda worker=worker: trainees[worker].scheduler, trainees[worker].process)
            trainees[worker].await_steps(len(trainees[worker].lines) + 2)
        url = successor.scheduler
        check_log(url, token, folder)
        start(url, "c", "a", "b")
        returned = running.enter_context(service(database, "--port", first.url.rpartition(":")[2]))
        with Client(returned.url, token=token, patience=Patience(attempts=1)) as old:
            until(lambda: is_deposed(old), successor.process)
        for worker in ("c", "b", "a"):
            trainees[worker].signal(signal.SIGTERM)
            trainees[worker].join()
    assert all(trainee.has_left for trainee in trainees.values())
    check_lines([line for trainee in trainees.values() for line in trainee.lines])
    for told in (database, folder / "scheduler.sqlite3"):
        check_replay(told, "clinics")


def nobodys_port() -> int:
    """One that no connection takes by itself, and nobody listens at."""
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for port in random.sample(range(lowest - 10_000, lowest), 100):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("all ports are taken")


@pytest.mark.processes
def test_a_successor_listens_where_it_is_told_to(tmp_path):
    copy, port = LogCopy(tmp_path / LOG_FILE), nobodys_port()
    copy.clear()
    successor = ServiceProcess(copy.path, "clinics", host="127.0.0.1", port=port)
    try:
        assert successor.url == f"http://127.0.0.1:{port}"
    finally:
        successor.close()


@pytest.mark.processes
def test_who_takes_over_again_after_others_did_goes_on_from_their_overlay(tmp_path):
    """Its database has lines that nobody else got: no service started on it, so that it never was the scheduler again."""
    own, others = (mesh("w00", "w01") for _ in range(2))
    own.tell("worker_failed", worker="w01")
    others.tell("scheduler_changed", worker="w01", address="http://127.0.0.1:2", term=3)
    others.grow("w05", "w01")
    copy = LogCopy(tmp_path / LOG_FILE)
    for term, world in ((2, own), (4, others)):
        copy.clear()
        copy.add(OverlayLog(entries=entries(world), last_number=len(world.log)))
        successor = ServiceProcess(copy.path, "llama", host="127.0.0.1")
        event = OverlayEvent(
            kind=OverlayEventKind.SCHEDULER_CHANGED,
            id=f"scheduler-{term}",
            worker="w00",
            address=successor.url,
            term=term,
            overlay=world.overlay,
        )
        try:
            told = successor.post(event)
        finally:
            successor.close()
        assert (told.term, told.scheduler) == (term, successor.url)
        assert [worker.id for worker in told.workers] == [worker.id for worker in world.overlay.workers]
    check_replay(tmp_path / "scheduler.sqlite3", "llama")


@pytest.mark.parametrize("port", [-1, 2**16, "80", True, None])
def test_a_port_that_cannot_be_is_refused(tmp_path, port):
    with pytest.raises(InvalidInputError, match="port: must be a whole number from 0 to 65535"):
        StandbyOptions(folder=tmp_path, port=port)


def serve_until_killed(log: Path, told) -> None:
    told.send(ServiceProcess(log, "clinics", host="127.0.0.1")._process.pid)
    threading.Event().wait()


@pytest.mark.processes
def test_a_successor_may_say_as_much_as_it_likes(tmp_path, capsys):
    """It would stand still once nobody reads what it says: a pipe holds 64 KiB."""
    copy = LogCopy(tmp_path / LOG_FILE)
    copy.clear()
    successor = ServiceProcess(copy.path, "clinics", host="127.0.0.1")
    try:
        errors = Path(f"/proc/{successor._process.pid}/fd/2")
        says = threading.Thread(target=errors.write_text, args=("an error of the service\n" * 50_000,), daemon=True)
        says.start()
        says.join(120.0)
        assert not says.is_alive()
    finally:
        successor.close()
    assert capsys.readouterr().err.count("an error of the service\n") == 50_000


@pytest.mark.processes
def test_a_successor_ends_with_its_worker_even_where_that_one_is_killed(tmp_path):
    copy = LogCopy(tmp_path / LOG_FILE)
    copy.clear()
    hears, told = forkserver().Pipe(duplex=False)
    worker = forkserver().Process(target=serve_until_killed, args=(copy.path, told))
    worker.start()
    try:
        assert hears.poll(100.0)
        successor = hears.recv()
        assert is_running(successor)
    finally:
        worker.kill()
        worker.join()
    deadline = time.monotonic() + WAIT_SECONDS
    while is_running(successor):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def check_log(url: str, token: str, folder: Path) -> None:
    """The second scheduler goes on behind the copy of the first one's log."""
    copied = [codec.loads(OverlayEntry, line) for line in (folder / LOG_FILE).read_text().splitlines()]
    with Client(url, token=token) as client:
        overlay, log = client.overlay("clinics"), client.overlay_log("clinics").entries
    assert log[: len(copied)] == tuple(copied)
    assert log[len(copied)].event.kind is OverlayEventKind.SCHEDULER_CHANGED
    assert overlay is not None
    assert overlay.scheduler == url
    assert overlay.term > 1
    assert overlay.synchronization.order == ("a", "b")


def check_replay(database: Path, job: str) -> None:
    """What a scheduler stored follows from its log, also where that began as a copy."""
    store = Store(f"sqlite:///{database}", read_only=True)
    store.open()
    try:
        lines = list(OverlayReplay(store.database, job, fastest))
    finally:
        store.close()
    assert lines
    assert [line for line in lines if line.differences] == []


def token_of(database: Path, job: str) -> str:
    """A token with which workers may report, of a service that asks for one from then on."""
    store = Store(f"sqlite:///{database}")
    store.open()
    try:
        return Vault(store.database).issue(NewToken(name="workers", scope=Scope.REPORT, job=job)).secret
    finally:
        store.close()


def is_deposed(old: Client) -> bool:
    """Whether a scheduler that returned refuses whoever has not heard of a later one."""
    drain = OverlayEvent(kind=OverlayEventKind.WORKER_DRAINING, id="drain", worker="nobody")
    try:
        old.post_overlay_event("clinics", drain)
    except StaleTermError:
        return True
    except NotFoundError:
        return False
    raise AssertionError("somebody of that name was there")
