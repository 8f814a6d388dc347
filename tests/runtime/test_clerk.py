"""Calls that a disk may hold up: done in order, and waited for no longer than is liked."""

import threading

import pytest

from kintsugi.runtime.clerk import Clerk, HungError
from tests.runtime.hung_disk import hung

LONG = 30.0
SHORT = 0.05


@pytest.fixture
def pipe(tmp_path):
    """A file that hangs."""
    with hung(tmp_path / "file"):
        yield tmp_path / "file"


def test_calls_are_done_in_order_and_what_comes_of_them_is_told():
    clerk, seen = Clerk("clerk"), []
    answers = [clerk.do(lambda n=n: seen.append(n) or n * n) for n in range(5)]
    failing = clerk.do(lambda: {}["missing"])
    assert [answer.result(LONG) for answer in answers] == [0, 1, 4, 9, 16]
    assert seen == [0, 1, 2, 3, 4]
    with pytest.raises(KeyError):
        failing.result(LONG)
    assert clerk.awaits(failing, LONG), "that it failed is an answer, too"
    assert clerk.asked(lambda: "asked", LONG) == "asked"
    assert clerk.close(LONG)


def test_what_was_asked_for_is_done_before_the_end_and_the_thread_is_gone_then():
    clerk, seen = Clerk("asked"), []
    for number in range(100):
        clerk.do(lambda number=number: seen.append(number))
    assert clerk.close(LONG)
    assert seen == list(range(100))
    assert not any(thread.name == "asked" for thread in threading.enumerate())
    assert clerk.close(LONG), "a second time it is closed already"


def test_who_asked_nothing_has_no_thread():
    clerk = Clerk("idle")
    assert not any(thread.name == "idle" for thread in threading.enumerate())
    assert clerk.close(0.0)


def test_nobody_waits_for_a_disk_that_hangs(pipe):
    clerk = Clerk("held")
    written = clerk.do(lambda: pipe.write_text("x"))
    later = clerk.do(lambda: "later")
    assert not clerk.awaits(written, SHORT)
    assert not clerk.awaits(later, SHORT)
    with pytest.raises(HungError, match=r"^has not answered for 0\.05 s$"):
        clerk.asked(lambda: "asked", SHORT)
    assert not clerk.close(SHORT)
    assert not clerk.close(LONG), "who was left once is waited for no more"
    with pytest.raises(HungError, match="was left to itself"):
        clerk.do(lambda: "after the end").result(LONG)
    assert all(thread.daemon for thread in threading.enumerate() if thread.name == "held"), "else Python waits for it at its end"


def test_what_waited_is_done_once_the_disk_answers(tmp_path):
    clerk = Clerk("late")
    with hung(tmp_path / "file"):
        clerk.do(lambda: (tmp_path / "file").write_text("x"))
        later = clerk.do(lambda: "later")
        assert not clerk.awaits(later, SHORT)
    assert later.result(LONG) == "later"
    assert clerk.close(LONG)
