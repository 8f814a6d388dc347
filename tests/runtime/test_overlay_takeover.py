"""A scheduler dies, and a worker goes on in its place: votes over links that form a line, the log's copy, and real services."""

import threading
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from api.overlay.scheduler import Scheduler
from api.storage.store import Store
from kintsugi.client import Client, Patience
from kintsugi.core.errors import InvalidInputError, StaleTermError, UnavailableError
from kintsugi.core.overlay import OverlayEntry, OverlayEvent, OverlayEventKind, OverlayLog
from kintsugi.runtime.overlay.control import Control
from kintsugi.runtime.overlay.election import BallotBox, Electorate
from kintsugi.runtime.overlay.heard import HeardScheduler
from kintsugi.runtime.overlay.messages import Channel, Message
from kintsugi.runtime.overlay.serving import HttpLog, ServiceProcess
from kintsugi.runtime.overlay.standby import LogCopy, Standby, StandbyOptions
from planner.overlay.succession import Ballot
from tests.planner.overlay.world import mesh
from tests.processes import service

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
            on_scheduler=lambda url, term: heard.append((worker, url, term)),
        )
        self.electorate.attach(self.control)


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


def entries(world):
    numbered = enumerate(world.log, 1)
    return tuple(OverlayEntry(number=n, event=event, at=at, term=1, generation=n) for n, (event, at) in numbered)


def test_the_copy_of_a_log_goes_on_where_it_ended(tmp_path):
    log = entries(mesh("w00", "w01"))
    path = tmp_path / "copy" / "log.jsonl"
    LogCopy(path).add(OverlayLog(entries=log[:2], last_number=4))
    path.write_text(path.read_text() + '{"half a li')
    copy = LogCopy(path)
    assert copy.last_number == 2
    copy.add(OverlayLog(entries=log[1:], last_number=4))
    assert len(path.read_text().splitlines()) == len(log)
    path.write_text("nothing\n")
    with pytest.raises(InvalidInputError):
        LogCopy(path)


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


def told(kind, event, **fields):
    return OverlayEvent(kind=OverlayEventKind(kind), id=event, **fields)


def grow(client, *workers):
    for index, worker in enumerate(workers):
        beside = workers[max(0, index - 1) : index]
        joined = {"address": f"{worker}:1", "state_bytes": 1024, "shard_bytes": 64, "neighbors": beside}
        client.post_overlay_event("llama", told("worker_joined", f"joined-{worker}", worker=worker, **joined))
        for other in beside:
            measured = {"link": (other, worker), "alpha_seconds": 0.01, "beta_seconds_per_byte": 1e-8}
            client.post_overlay_event("llama", told("link_measured", f"measured-{worker}", **measured))
            client.post_overlay_event("llama", told("state_replicated", f"replicated-{worker}", worker=worker))
    return client.overlay("llama")


@pytest.mark.processes
def test_a_worker_goes_on_in_the_place_of_a_service_that_was_killed(tmp_path, monkeypatch):
    monkeypatch.setenv("KINTSUGI_PLANS_AHEAD", "false")
    heard, chosen, followed = [], threading.Event(), threading.Event()
    database, folder = tmp_path / "first.sqlite3", tmp_path / "standby"
    impatient = Patience(attempts=1)
    with service(database) as first, Client(first.url, patience=impatient) as client:
        overlay = grow(client, *LINE)
        parties = line(tmp_path, overlay, heard)
        parties["w00"].electorate._on_scheduler = lambda url, term: (heard.append(("w00", url, term)), chosen.set())
        copy = LogCopy(folder / "log.jsonl")

        class Source(HttpLog):
            def log(self, after, wait_seconds):
                found = super().log(after, 0.0)
                if not found.entries:
                    followed.set()
                return found

        standby = Standby(
            "w00",
            parties["w00"].electorate,
            source=Source(client, "llama"),
            copy=copy,
            serve=lambda path: ServiceProcess(path, "llama", host="127.0.0.1"),
            options=StandbyOptions(folder=folder, lease_seconds=1.0, vote_seconds=20.0),
            silent_seconds=lambda: 60.0 if followed.is_set() and first.process.poll() is not None else 0.0,
            rank=lambda: 0,
        )
        standby.start()
        try:
            assert followed.wait(60)
            first.kill()
            assert chosen.wait(100)
            assert standby.is_scheduler
            (url,) = {url for _, url, _ in heard}
            with Client(url, patience=impatient) as second:
                after = second.overlay("llama")
                assert (after.term, after.scheduler, after.generation) == (2, url, overlay.generation + 1)
                assert (after.workers, after.links, after.synchronization) == (
                    overlay.workers,
                    overlay.links,
                    overlay.synchronization,
                )
                assert len(second.overlay_log("llama").entries) == len(client_log(copy)) + 1
        finally:
            standby.close()
    with scheduler_of(database) as returned, pytest.raises(StaleTermError):
        returned.post("llama", told("worker_draining", "drain", worker="w01", term=after.term))


@contextmanager
def scheduler_of(database):
    """The scheduler on a database, as a service that returns begins with it."""
    store = Store(f"sqlite:///{database}")
    store.open()
    try:
        yield Scheduler(store.database)
    finally:
        store.close()


def client_log(copy: LogCopy) -> list[str]:
    return Path(copy.path).read_text().splitlines()
