"""A scheduler dies, and a worker goes on in its place: votes over links that form a line, the log's copy, and real services."""

import os
import random
import signal
import socket
import threading
import time
from contextlib import ExitStack, suppress
from itertools import pairwise
from pathlib import Path
from queue import SimpleQueue

import pytest
from structlog.testing import capture_logs

from api.access.tokens import NewToken, Scope
from api.access.vault import Vault
from api.overlay.replay import OverlayReplay
from api.storage.store import Store
from kintsugi.client import Client, Patience
from kintsugi.core import codec
from kintsugi.core.errors import InvalidInputError, NotFoundError, StaleTermError, UnavailableError
from kintsugi.core.overlay_messages import OverlayEntry, OverlayEvent, OverlayEventKind, OverlayLog
from kintsugi.runtime.forking import forkserver
from kintsugi.runtime.overlay.control import Control
from kintsugi.runtime.overlay.election import BallotBox, Electorate
from kintsugi.runtime.overlay.greeting import Identity
from kintsugi.runtime.overlay.heard import HeardScheduler
from kintsugi.runtime.overlay.messages import Channel, Message
from kintsugi.runtime.overlay.serving import ServiceProcess
from kintsugi.runtime.overlay.standby import LOG_FILE, LogCopy, Standby, StandbyOptions
from kintsugi.runtime.overlay.succeeding import ballots_folder
from planner.overlay.succession import Ballot
from planner.overlay.synchronization import fastest
from tests.planner.overlay.world import mesh
from tests.processes import is_running, service
from tests.runtime.overlay.test_churn import check_lines
from tests.runtime.overlay.test_log_copy import entries, room_for
from tests.runtime.overlay.trainees import WAIT_SECONDS, Trainee
from tests.runtime.overlay.waiting import until

LINE = ("w00", "w01", "w02", "w03", "w04")
WON_SECONDS = 20.0
LOST_SECONDS = 0.05


class Wires:
    """The links of one worker: what it tells arrives at once."""

    def __init__(self, worker, parties):
        self.worker, self.parties, self.up = worker, parties, ()

    def tell(self, worker, kind, fields):
        if worker not in self.up or worker not in self.parties:
            return False
        self.parties[worker].control.hear(self.worker, Message(Channel.CONTROL, kind, dict(fields)))
        return True


class Party:
    """One worker's part in votes."""

    def __init__(self, worker, parties, folder, known, heard):
        self.known, self.is_silent, self.control = known, True, Control()
        self.links = Wires(worker, parties)
        self.electorate = Electorate(
            worker,
            self.links,
            BallotBox(folder / f"{worker}.json"),
            lambda: self.known,
            is_silent=lambda: self.is_silent,
            on_vote=lambda: None,
            on_scheduler=lambda url, term: heard.append((worker, url, term)),
        )
        self.electorate.attach(self.control)


def test_votes_without_a_folder_lie_in_one_that_is_the_users_own(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = os.umask(0o002)
    try:
        folder = ballots_folder()
        assert folder.stat().st_mode & 0o777 == 0o700
        folder.chmod(0o777)
        assert ballots_folder() == folder
        assert folder.stat().st_mode & 0o777 == 0o700
    finally:
        os.umask(before)


def test_a_link_in_the_place_of_the_folder_for_votes_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "mine").mkdir()
    (tmp_path / f"kintsugi-ballots-{os.getuid()}").symlink_to(tmp_path / "mine")
    with pytest.raises(InvalidInputError, match="this user made"):
        ballots_folder()


def test_somebody_elses_folder_for_votes_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    other = os.getuid() + 1
    ballots_folder().rename(tmp_path / f"kintsugi-ballots-{other}")
    monkeypatch.setattr("os.getuid", lambda: other)
    with pytest.raises(InvalidInputError, match="this user made"):
        ballots_folder()


def test_where_no_folder_for_votes_can_be_made_only_the_vote_fails(tmp_path, monkeypatch):
    (tmp_path / "full").write_text("")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "full"))
    box = BallotBox(ballots_folder() / "w00.ballot.json")
    with pytest.raises(OSError, match=r"Not a directory|File exists"):
        box.put(Ballot(term=1, candidate="w00"))


def line(folder, known, heard=None):
    """Workers each of whom has links with the ones beside it alone."""
    parties = {}
    for worker in LINE:
        parties[worker] = Party(worker, parties, folder, known, heard if heard is not None else [])
    for left, right in pairwise(LINE):
        parties[left].links.up += (right,)
        parties[right].links.up += (left,)
    return parties


@pytest.fixture
def overlay():
    return mesh(*LINE, links=" ".join("-".join(pair) for pair in pairwise(LINE))).overlay


def test_votes_come_over_links_from_those_who_are_not_beside_the_candidate(tmp_path, overlay):
    heard = []
    parties = line(tmp_path, overlay, heard)
    assert parties["w00"].electorate.stand(WON_SECONDS) == (2, overlay)
    assert BallotBox(tmp_path / "w04.json").ballot == Ballot(term=2, candidate="w00")
    parties["w00"].electorate.announce("http://w00:1", 2)
    assert sorted(heard) == [(worker, "http://w00:1", 2) for worker in LINE]


def test_without_a_majority_nobody_is_chosen(tmp_path, overlay):
    parties = line(tmp_path, overlay)
    for worker in ("w02", "w03", "w04"):
        parties[worker].is_silent = False
    assert parties["w00"].electorate.stand(LOST_SECONDS) is None
    parties["w00"].is_silent = False
    assert parties["w00"].electorate.stand(WON_SECONDS) is None
    parties = line(tmp_path / "cut", overlay)
    parties["w02"].links.up = ("w03",)
    assert parties["w00"].electorate.stand(LOST_SECONDS) is None
    parties["w02"].links.up = ("w01", "w03")
    assert parties["w04"].electorate.stand(WON_SECONDS) is not None


def test_a_term_that_was_voted_for_is_not_won_by_another(tmp_path, overlay):
    parties = line(tmp_path, overlay)
    assert parties["w00"].electorate.stand(WON_SECONDS)[0] == 2
    parties = line(tmp_path, overlay)  # everybody begins anew, with the ballots that lie on the disk
    assert parties["w04"].electorate.stand(WON_SECONDS)[0] == 3


def test_a_candidate_goes_on_from_what_its_voters_had_seen(tmp_path, overlay):
    parties = line(tmp_path, overlay)
    later = mesh(*LINE, links=" ".join("-".join(pair) for pair in pairwise(LINE)))
    parties["w01"].known = later.tell("worker_draining", worker="w04")
    assert parties["w00"].electorate.stand(WON_SECONDS) == (2, parties["w01"].known)


def test_who_cannot_write_its_vote_down_has_none_and_passes_on_all_the_same(tmp_path, overlay):
    """As on a full disk, or where the folder is another user's."""
    parties = line(tmp_path, overlay)
    (tmp_path / "no folder").touch()
    parties["w01"].electorate._box = BallotBox(tmp_path / "no folder" / "w01.json")
    with capture_logs() as logs:
        assert parties["w00"].electorate.stand(WON_SECONDS) == (2, overlay)
        assert parties["w01"].electorate.stand(WON_SECONDS) is None
    told = [(log["worker"], log["event"].partition(":")[0]) for log in logs if log["log_level"] == "warning"]
    assert told == [("w01", "cannot vote for a scheduler")] * 2


class Following:
    """A scheduler that lives; it tells when it was asked for its log behind a line."""

    def __init__(self, log):
        self.log_entries, self.asked = log, SimpleQueue()

    def log(self, after, wait_seconds):
        self.asked.put(after)
        return OverlayLog(entries=self.log_entries[after:], last_number=len(self.log_entries))


def test_who_stands_by_follows_on_after_its_disk_was_full(tmp_path, overlay):
    source = Following(entries(mesh("w00", "w01")))
    standby = Standby(
        Identity(job="llama", worker="w00"),
        line(tmp_path, overlay)["w00"].electorate,
        source=source,
        copy=LogCopy(tmp_path / "log.jsonl"),
        serve=lambda _: Service(),
        options=StandbyOptions(folder=tmp_path),
        silent_seconds=lambda: 0.0,
        known_term=lambda: 1,
        rank=lambda: 0,
    )
    with capture_logs() as logs:
        with room_for(10):
            standby.start()
            assert [source.asked.get(timeout=240.0) for _ in range(3)] == [0, 0, 0]
        deadline = time.monotonic() + WON_SECONDS
        while source.asked.get(timeout=240.0) < len(source.log_entries):
            assert time.monotonic() < deadline
        standby.close()
    assert len([log for log in logs if "log cannot be written" in log["event"]]) == 1
    assert LogCopy(tmp_path / "log.jsonl").last_number == len(source.log_entries)


class Service:
    """A service that a standby starts, and the schedulers that it may follow: what they are told is kept."""

    url = "http://w00:1"

    def __init__(self):
        self.deposed, self.is_closed, self.events = threading.Event(), threading.Event(), []

    def post(self, event):
        self.events.append(event)

    def log(self, after, wait_seconds):
        raise UnavailableError("is away")

    def depose(self, worker, incarnation, term):
        assert (worker, incarnation, term) == ("w00", 3, 2)
        self.deposed.set()

    def close(self):
        self.is_closed.set()


def test_who_took_over_deposes_those_before_it_and_steps_down_for_the_next(tmp_path, overlay):
    parties, terms, service_of_its_own = line(tmp_path, overlay), [1], Service()
    standby = Standby(
        Identity(job="llama", worker="w00", incarnation=3),
        parties["w00"].electorate,
        source=service_of_its_own,
        copy=LogCopy(tmp_path / "log.jsonl"),
        serve=lambda _: service_of_its_own,
        options=StandbyOptions(folder=tmp_path, lease_seconds=1.0),
        silent_seconds=lambda: 60.0 if len(terms) == 1 else 0.0,
        known_term=lambda: terms[-1],
        rank=lambda: 0,
    )
    standby.start()
    assert service_of_its_own.deposed.wait(120.0)
    assert standby.is_scheduler
    assert [(event.kind.value, event.term) for event in service_of_its_own.events] == [("scheduler_changed", 2)]
    terms.append(3)
    assert service_of_its_own.is_closed.wait(120.0)
    assert not standby.is_scheduler
    standby.close()


def test_silence_is_measured_from_the_last_answer_and_a_refusal_is_one():
    now, answers = [0.0], []

    class Source:
        def beat(self, _):
            raise answers.pop()

        post = overlay = beat

        def moved(self, url):
            self.url = url

        def close(self):
            pass

    scheduler = HeardScheduler(Source(), clock=lambda: now[0])
    now[0] = 5.0
    answers[:] = [UnavailableError("is away")]
    with pytest.raises(UnavailableError):
        scheduler.beat(None)
    assert scheduler.silent_seconds == 5.0
    answers[:] = [StaleTermError("is over", current_term=2)]
    with pytest.raises(StaleTermError):
        scheduler.post(None)
    assert scheduler.silent_seconds == 0.0
    now[0] = 9.0
    scheduler.moved("http://elsewhere")
    assert scheduler.silent_seconds == 0.0


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
