"""Time in which this very process was away, told from time in which one of its threads was busy."""

import threading
from types import SimpleNamespace

import pytest

from kintsugi.runtime import clerk as clerks
from kintsugi.runtime import presence as presences
from kintsugi.runtime.checkpoints import writer as writers
from kintsugi.runtime.checkpoints.recording import CheckpointOptions
from kintsugi.runtime.clerk import Clerk
from kintsugi.runtime.overlay import deadline as deadlines
from kintsugi.runtime.overlay.deadline import Deadline
from kintsugi.runtime.overlay.inbox import Inbox, Pass, Phase
from kintsugi.runtime.overlay.messages import Channel, Message
from kintsugi.runtime.presence import Presence
from tests.patience import PATIENCE_SECONDS, eventually
from tests.runtime.pausing import be_away


def test_a_gap_between_two_looks_is_an_absence_that_ends_with_the_second():
    now = [100.0]
    presence = Presence(clock=lambda: now[0])
    for later in (101.2, 102.4, 102.4):
        now[0] = later
        assert presence.back_at == 0.0
    for later, back_at in ((103.7, 103.7), (104.9, 103.7), (200.0, 200.0), (200.1, 200.0)):
        now[0] = later
        assert presence.back_at == back_at
    assert presence.left_seconds(100.0, 5.0) == pytest.approx(4.9)
    assert presence.left_seconds(200.05, 5.0) == pytest.approx(4.95)
    presence.close()


def test_its_thread_tells_a_process_that_is_away_from_a_caller_who_does_not_look():
    now = [100.0]
    presence = Presence(clock=lambda: now[0])
    now[0] = 150.0
    presence.begin()
    for later in (151.0, 152.0, 153.0):
        now[0] = later
        assert eventually(lambda: presence._looked_at, lambda at, later=later: at == later) == later
    assert presence.back_at == 0.0
    presence.close()
    assert not any(thread.name == "presence" for thread in threading.enumerate())


def test_a_process_that_does_nothing_at_all_is_away():
    presence = Presence()
    presence.begin()
    be_away(1.4)
    assert presence.back_at > 0.0
    presence.close()


def test_a_deadline_runs_on_while_this_process_is_here_alone(monkeypatch: pytest.MonkeyPatch):
    now = [100.0]
    monkeypatch.setattr(deadlines, "time", SimpleNamespace(monotonic=lambda: now[0]))
    presence = Presence(clock=lambda: now[0])
    waits, is_strict = Deadline(3.0, presence), Deadline(3.0)
    for later, left in ((101.0, 2.0), (150.0, 2.0), (151.0, 1.0), (200.0, 1.0)):
        now[0] = later
        assert waits.left_seconds == pytest.approx(left)
    assert is_strict.is_over
    assert Deadline(3.0, presence).left_seconds == pytest.approx(3.0)
    now[0] = 201.0
    assert waits.is_over


class Back:
    """Was away until just now; whoever asks lets those go on that were away as well."""

    def __init__(self, goes_on: threading.Event) -> None:
        self._goes_on = goes_on

    @property
    def back_at(self) -> float:
        self._goes_on.set()
        return 1e12

    def left_seconds(self, began_at: float, seconds: float) -> float:
        return self.back_at + seconds - began_at


def test_a_disk_has_not_been_silent_while_who_waits_for_it_was_away(monkeypatch: pytest.MonkeyPatch):
    goes_on, clerk = threading.Event(), Clerk("clerk")
    monkeypatch.setattr(clerks, "Presence", lambda: Back(goes_on))
    assert clerk.asked(lambda: goes_on.wait(PATIENCE_SECONDS), 0.0)
    assert clerk.close(PATIENCE_SECONDS)


def test_nor_have_neighbours_while_a_worker_was_that_reduces_with_them(monkeypatch: pytest.MonkeyPatch):
    goes_on, key = threading.Event(), Pass(0, Phase.REDUCE, 1)
    inbox = Inbox(lambda *_: None)
    message = Message(Channel.REDUCTION, "gradient", {"pass": key.stamp()})
    sends = threading.Thread(target=lambda: goes_on.wait(PATIENCE_SECONDS) and inbox.put("w01", message))
    sends.start()
    monkeypatch.setattr(presences, "Presence", lambda: Back(goes_on))
    assert inbox.take(key, 0.0) == ("w01", message)
    sends.join()
    goes_on.clear()
    restarts = threading.Thread(target=lambda: goes_on.wait(PATIENCE_SECONDS) and inbox.restart(1))
    restarts.start()
    assert inbox.await_restart(0, 0.0)
    restarts.join()


def test_nor_while_a_worker_was_that_waits_for_room(monkeypatch: pytest.MonkeyPatch, tmp_path):
    goes_on, told = threading.Event(), []
    options = CheckpointOptions(disk_timeout_seconds=1e-9)
    writer = writers.PartWriter(options, told.append, before_part=lambda *_: goes_on.wait(PATIENCE_SECONDS), sync=lambda: None)
    monkeypatch.setattr(writers, "Presence", lambda: Back(goes_on))
    for step in (1, 2):
        writer.take(1, step, tmp_path / str(step), {"part": {}}, lambda: None)
    writer.drain(lambda: None)
    assert [type(one).__name__ for one in told] == ["PartWritten", "PartWritten"]
    writer.close()
