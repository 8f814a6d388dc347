"""Waits that can always be given up, with operations that end, fail or never end."""

import queue
import threading

import pytest

from kintsugi.core.errors import CommunicationError
from restorer.waiter import OwnWaiter, Waiter


class Done:
    def wait(self):
        pass


class Failing:
    def __init__(self, error=None):
        self.error = error or RuntimeError("Connection closed by peer\nwith a trace")

    def wait(self):
        raise self.error


class Stuck:
    def __init__(self):
        self.has_begun = threading.Event()
        self.may_end = threading.Event()

    def wait(self):
        self.has_begun.set()
        assert self.may_end.wait(120.0)


@pytest.fixture(name="waiter")
def closed_afterwards():
    waiter = Waiter("waiter-under-test")
    yield waiter
    waiter.close()
    for thread in threading.enumerate():
        if thread.name == "waiter-under-test":
            thread.join(120.0)


@pytest.fixture(name="stuck")
def freed_afterwards():
    operation = Stuck()
    yield operation
    operation.may_end.set()


def given_up(waiter, operation):
    """The error of a wait that is given up from another thread once it has begun."""
    thread = threading.Thread(target=lambda: operation.has_begun.wait(120.0) and waiter.abort())
    thread.start()
    with pytest.raises(CommunicationError) as caught:
        waiter.wait(operation)
    thread.join(120.0)
    return str(caught.value)


def test_waits_one_after_the_other(waiter):
    for _ in range(3):
        waiter.wait(Done())


def test_a_failure_is_told_in_one_line_and_ends_only_its_own_wait(waiter):
    with pytest.raises(CommunicationError) as caught:
        waiter.wait(Failing())
    assert str(caught.value) == "Connection closed by peer"
    waiter.wait(Done())


@pytest.mark.parametrize(("error", "reason"), [(MemoryError(), "MemoryError"), (ValueError("invalid tensor"), "invalid tensor")])
def test_whatever_an_operation_fails_of_is_told(waiter, error, reason):
    with pytest.raises(CommunicationError, match=reason):
        waiter.wait(Failing(error))
    waiter.wait(Done())


def test_a_wait_that_never_ends_is_given_up_and_so_is_every_later_one(waiter, stuck):
    assert "given up" in given_up(waiter, stuck)
    for operation in (Done(), stuck):
        with pytest.raises(CommunicationError, match="given up"):
            waiter.wait(operation)


def test_what_was_given_up_before_is_not_waited_for(waiter, stuck):
    waiter.abort()
    with pytest.raises(CommunicationError, match="given up"):
        waiter.wait(stuck)
    assert not stuck.has_begun.is_set()


def test_operations_that_were_begun_are_waited_for_in_their_order(waiter, stuck):
    first, second = waiter.begin(stuck), waiter.begin(Failing())
    assert stuck.has_begun.wait(120.0)
    assert second.operation is not None
    stuck.may_end.set()
    with pytest.raises(CommunicationError, match="Connection closed by peer"):
        second.wait()
    first.wait()


def test_nothing_that_was_begun_before_giving_up_is_started_after_it(waiter, stuck):
    later = Stuck()
    first, second = waiter.begin(stuck), waiter.begin(later)
    assert stuck.has_begun.wait(120.0)
    waiter.abort()
    for waiting in (first, second):
        with pytest.raises(CommunicationError, match="given up"):
            waiting.wait()
    stuck.may_end.set()
    waiter.close()
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "waiter-under-test"]
    thread.join(120.0)
    assert not later.has_begun.is_set()


def test_the_thread_ends_with_its_operation(waiter, stuck):
    given_up(waiter, stuck)
    waiter.close()
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "waiter-under-test"]
    stuck.may_end.set()
    thread.join(120.0)
    assert not thread.is_alive()


def test_a_thread_that_waits_itself_learns_how_its_operations_ended():
    waiter = OwnWaiter(lambda: None)
    waiter.wait(Done())
    with pytest.raises(CommunicationError, match=r"Connection closed by peer$"):
        waiter.wait(Failing())
    waiter.wait(Done())


def test_whoever_waits_for_a_thread_that_waits_itself_is_told_at_once_and_the_thread_when_it_is_free(stuck):
    told, outcome = threading.Event(), queue.SimpleQueue()
    waiter = OwnWaiter(told.set)

    def work():
        try:
            waiter.wait(stuck)
        except CommunicationError as error:
            outcome.put(str(error))

    thread = threading.Thread(target=work)
    thread.start()
    assert stuck.has_begun.wait(120.0)
    waiter.abort()
    assert told.is_set()
    assert outcome.empty()
    with pytest.raises(CommunicationError, match="given up"):
        waiter.begin(Done())
    stuck.may_end.set()
    thread.join(120.0)
    assert "given up" in outcome.get(timeout=240.0)
