"""Another process measures: what it finds, says and raises comes back, and it is gone afterwards, whatever happens."""

import multiprocessing
import os
import signal
from functools import partial

import pytest

from kintsugi.core.errors import InvalidInputError, UnavailableError, WorkerError
from kintsugi.runtime.measuring.apart import measured_apart

pytestmark = pytest.mark.processes


@pytest.fixture(autouse=True)
def leaves_no_process():
    before = set(multiprocessing.active_children())
    yield
    assert set(multiprocessing.active_children()) <= before


def swept(progress, *, total):
    for done in range(1, total + 1):
        progress(done, total)
    return os.getpid(), total


def refusing(_):
    raise InvalidInputError("must be at least 1", field="repeats", value=0)


def failing(_):
    raise ValueError("no such data set")


def ending(_, *, how):
    how()


def frozen(_):
    os.kill(os.getpid(), signal.SIGSTOP)


def test_progress_and_the_answer_come_from_another_process():
    told = []
    pid, total = measured_apart(partial(swept, total=3), lambda *of: told.append(of))
    assert (pid != os.getpid(), total) == (True, 3)
    assert told == [(1, 3), (2, 3), (3, 3)]


def test_nobody_need_listen_to_its_progress():
    assert measured_apart(partial(swept, total=2))[1] == 2


def test_an_error_of_ours_is_raised_as_it_is():
    with pytest.raises(InvalidInputError, match="must be at least 1") as refused:
        measured_apart(refusing)
    assert (refused.value.field, refused.value.value) == ("repeats", 0)


def test_an_error_of_the_job_is_told_with_its_traceback():
    with pytest.raises(WorkerError, match=r"(?s)make_job: raised while it was measured:.*in failing.*no such data set"):
        measured_apart(failing)


def test_a_script_that_exits_is_told_so():
    with pytest.raises(WorkerError, match="SystemExit: 5"):
        measured_apart(partial(ending, how=partial(exit, 5)))


@pytest.mark.parametrize(("how", "code"), [(partial(os._exit, 3), 3), (partial(signal.raise_signal, signal.SIGKILL), -9)])
def test_a_process_that_ends_in_the_middle_is_told_so(how, code):
    with pytest.raises(WorkerError, match="ended in the middle of it") as ended:
        measured_apart(partial(ending, how=how))
    assert ended.value.value == code


def test_a_process_that_tells_nothing_for_too_long_is_ended():
    with pytest.raises(UnavailableError, match=r"within 0\.2 s"):
        measured_apart(frozen, silence_seconds=0.2)
