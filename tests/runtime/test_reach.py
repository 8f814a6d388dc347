import itertools
from types import SimpleNamespace

import pytest

from kintsugi.runtime import reach
from kintsugi.runtime.reach import Doorbell
from tests.processes import free_port

SILENT = "192.0.2.1"
"""Set aside for documentation; nobody answers there."""


@pytest.fixture
def doorbell():
    doorbell = Doorbell("127.0.0.1")
    yield doorbell
    doorbell.close()


def test_who_listens_is_reached_however_often_and_who_does_not_is_not(doorbell):
    other = Doorbell("127.0.0.2")
    addresses = {"deaf": ("127.0.0.1", free_port()), "other": other.address, "same": doorbell.address}
    for _ in range(300):
        other.unreachable({}, 0.0)  # takes the connections of the last round off its queue
        assert doorbell.unreachable(addresses, 5.0) == ("deaf",)
    other.close()
    assert doorbell.unreachable({"other": other.address}, 5.0) == ("other",)


def test_one_that_never_answers_is_given_up_in_time(doorbell):
    assert doorbell.unreachable({"silent": (SILENT, 1)}, 0.05) == ("silent",)


def test_an_address_that_is_not_this_hosts_reaches_nobody(doorbell):
    stranger = Doorbell(SILENT)
    assert stranger.address is None
    assert stranger.unreachable({"w00": doorbell.address}, 1.0) == ("w00",)
    stranger.close()


def test_many_workers_reach_the_same_one_at_once_and_again(doorbell):
    other = Doorbell("127.0.0.2")
    addresses = {str(number): other.address for number in range(400)}
    for _ in range(2):
        assert doorbell.unreachable(addresses, 5.0) == ()
    other.close()


def test_who_looks_late_still_sees_who_answered_in_time(doorbell, monkeypatch):
    """As a thread that a busy machine did not let run."""
    instants = itertools.count(0.0, 100.0)
    monkeypatch.setattr(reach, "time", SimpleNamespace(monotonic=lambda: next(instants)))
    other = Doorbell("127.0.0.2")
    assert doorbell.unreachable({"other": other.address}, 5.0) == ()
    other.close()
