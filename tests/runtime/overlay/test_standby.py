"""Who goes on in a scheduler's place: votes over links that form a line, the log's copy, and how long it is silent."""

import os
import signal
import threading
import time
from itertools import pairwise
from queue import SimpleQueue

import pytest
from structlog.testing import capture_logs

from kintsugi.core.errors import InvalidInputError, StaleTermError, UnavailableError
from kintsugi.core.overlay_messages import OverlayLog
from kintsugi.runtime.overlay import election
from kintsugi.runtime.overlay import standby as standby_module
from kintsugi.runtime.overlay.control import Control
from kintsugi.runtime.overlay.coordinator import Coordinator
from kintsugi.runtime.overlay.election import BallotBox, Electorate
from kintsugi.runtime.overlay.greeting import Identity
from kintsugi.runtime.overlay.heard import HeardScheduler
from kintsugi.runtime.overlay.log_copy import LogCopy
from kintsugi.runtime.overlay.messages import Channel, Message
from kintsugi.runtime.overlay.standby import Standby, StandbyOptions
from kintsugi.runtime.overlay.succeeding import ballots_folder
from planner.overlay.succession import Ballot
from tests.patience import eventually
from tests.planner.overlay.world import mesh
from tests.runtime.hung_disk import hung
from tests.runtime.overlay.crew import OPTIONS, perceptron
from tests.runtime.overlay.desk import Desk
from tests.runtime.overlay.test_log_copy import entries, room_for
from tests.runtime.runs import leaves_nothing

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


def test_what_is_no_vote_is_refused_before_the_others_hear_of_the_worker(tmp_path, monkeypatch):
    """It stood in the overlay as a holder of the state, at a port that stayed open, and signals were taken from the process."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (ballots_folder() / "job-w00.ballot.json").write_text("no vote")
    model, optimizer = perceptron()
    desk, handler = Desk(), signal.getsignal(signal.SIGTERM)
    with leaves_nothing(), pytest.raises(InvalidInputError, match=r"job-w00\.ballot\.json is no vote .*; remove it while"):
        Coordinator(model, optimizer, service=desk, job="job", worker="w00")
    assert desk.events == []
    assert signal.getsignal(signal.SIGTERM) is handler


def test_votes_of_an_earlier_life_are_known_until_a_worker_joins(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    cast = Ballot(term=3, candidate="w01")

    class Voting(Desk):
        def post(self, event):
            BallotBox(ballots_folder() / "job-w00.ballot.json").put(cast)
            return super().post(event)

    model, optimizer = perceptron()
    with Coordinator(model, optimizer, service=Voting(), job="job", worker="w00", options=OPTIONS) as coordinator:
        assert coordinator._member.succession._electorate._box.ballot == cast


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


def test_who_has_its_votes_on_a_disk_that_hangs_holds_nobody_up(tmp_path, overlay, monkeypatch):
    """Nothing was read of the link that asked, so the training stood still until the others went on without it."""
    monkeypatch.setattr(election, "_WRITE_SECONDS", 0.1)
    parties = line(tmp_path, overlay)
    box = parties["w01"].electorate._box
    with hung(tmp_path / ".w01.json.new"), capture_logs() as logs:
        assert parties["w00"].electorate.stand(WON_SECONDS) == (2, overlay)
        assert parties["w01"].electorate.stand(WON_SECONDS) is None
        assert box.ballot == Ballot()
    reasons = [log["error"].partition("] ")[2] for log in logs if log["log_level"] == "warning"]
    assert reasons == ["the disk has not answered for 0.1 s", "the disk has not answered an earlier call yet"]
    assert eventually(box._disk._late.done)
    assert parties["w00"].electorate.stand(WON_SECONDS) is not None
    assert eventually(lambda: box.ballot.candidate == "w00")


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


def test_who_was_elected_and_could_not_begin_leaves_it_to_others_for_twice_as_long(tmp_path, overlay):
    """It stood again as soon as before, and those who wait longer never did: there was no scheduler any more."""
    silent, asked, elected = [1.1], SimpleQueue(), SimpleQueue()

    class Away(Service):
        def log(self, after, wait_seconds):
            asked.put(after)
            raise UnavailableError("is away")

    def serve(_):
        elected.put(silent[-1])
        raise UnavailableError("the service did not start: its port is taken")

    standby = Standby(
        Identity(job="llama", worker="w00", incarnation=3),
        line(tmp_path, overlay)["w00"].electorate,
        source=Away(),
        copy=LogCopy(tmp_path / "log.jsonl"),
        serve=serve,
        options=StandbyOptions(folder=tmp_path, lease_seconds=1.0),
        silent_seconds=lambda: silent[-1],
        known_term=lambda: 1,
        rank=lambda: 0,
    )
    standby.start()
    try:
        assert elected.get(timeout=120.0) == 1.1
        for patience in (2.0, 4.0):
            silent.append(patience - 0.1)
            while not asked.empty():
                asked.get()
            for _ in range(3):
                asked.get(timeout=120.0)
            assert elected.empty()
            silent.append(patience + 0.1)
            assert elected.get(timeout=120.0) == patience + 0.1
    finally:
        standby.close()


def test_who_leaves_while_its_service_starts_does_not_go_on_in_the_schedulers_place(tmp_path, overlay, monkeypatch):
    monkeypatch.setattr(standby_module, "_JOIN_SECONDS", 0.0)
    parties, service_of_its_own = line(tmp_path, overlay), Service()
    is_starting, may_start = threading.Event(), threading.Event()

    def serve(_):
        is_starting.set()
        assert may_start.wait(120.0)
        return service_of_its_own

    standby = Standby(
        Identity(job="llama", worker="w00", incarnation=3),
        parties["w00"].electorate,
        source=service_of_its_own,
        copy=LogCopy(tmp_path / "log.jsonl"),
        serve=serve,
        options=StandbyOptions(folder=tmp_path, lease_seconds=1.0),
        silent_seconds=lambda: 60.0,
        known_term=lambda: 1,
        rank=lambda: 0,
    )
    standby.start()
    assert is_starting.wait(120.0)
    standby.close()
    may_start.set()
    assert service_of_its_own.is_closed.wait(120.0)
    assert service_of_its_own.events == []
    assert not standby.is_scheduler


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
