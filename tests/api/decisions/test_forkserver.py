"""Processes that are forks of one that is prepared: when they begin, how they end, and what becomes of them where that one ends."""

import os
import resource
import signal
import subprocess
import sys
from contextlib import closing
from itertools import islice

import pytest

from api.decisions import warm
from api.decisions.forkserver import ForkServer
from tests.api.decisions import works
from tests.patience import eventually
from tests.processes import free_descriptors, is_running, state_of
from tests.runtime.runs import children_of, leaves_nothing

pytestmark = pytest.mark.processes

PATIENCE = 240.0


@pytest.fixture
def server():
    with leaves_nothing(), closing(ForkServer(works.prepare)) as server:
        yield server


@pytest.fixture
def begin(server):
    """Begins a fork; all are closed."""
    forks = []

    def begin():
        forks.append(server.fork(works.tell_origin))
        return forks[-1]

    yield begin
    for fork in forks:
        fork.close()


def told(fork):
    """The process id of a fork, that of its parent, and of who prepared it."""
    assert fork.connection.poll(PATIENCE)
    return fork.connection.recv()


def ends(pid):
    return not eventually(lambda: is_running(pid), lambda running: not running)


def test_what_is_prepared_is_prepared_once_by_the_parent_of_all(server, begin):
    (first, parent, prepared_by), (second, *same) = told(begin()), told(begin())
    assert (parent, prepared_by) == (server.pid, [server.pid])
    assert same == [parent, prepared_by]
    assert len({os.getpid(), parent, first, second}) == 4


def test_where_planning_is_prepared_no_thread_is_left_that_a_fork_would_lack(fork_server):
    fork = fork_server.fork(works.tell_origin)
    told(fork)
    fork.close()
    assert len(os.listdir(f"/proc/{fork_server.pid}/task")) == 1


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_how_a_fork_was_ended_is_told_and_the_others_go_on(begin, number):
    fork, other = begin(), begin()
    (pid, *_), (going_on, *_) = told(fork), told(other)
    os.kill(pid, number)
    assert fork.exit_status() == -number
    assert is_running(going_on)


def test_a_fork_that_is_ended_is_buried_and_who_waits_for_it_is_told(server, begin):
    fork = begin()
    pid, *_ = told(fork)
    fork.end()
    with pytest.raises(EOFError):
        told(fork)
    assert fork.exit_status() == -signal.SIGKILL
    assert pid not in children_of(server.pid)


def test_a_fork_that_is_closed_before_it_could_begin_is_not_there_later(server, begin):
    begin().close()
    told(begin())
    assert len(children_of(server.pid)) == 1


def test_ctrl_c_ends_neither_the_server_nor_its_forks(server, begin):
    pid, *_ = told(begin())
    for each in (pid, server.pid):
        os.kill(each, signal.SIGINT)
    _, parent, _ = told(begin())
    assert parent == server.pid
    assert is_running(pid)


def test_ctrl_c_does_not_end_a_server_that_only_begins(server, begin):
    fork = begin()
    os.kill(server.pid, signal.SIGINT)
    _, parent, _ = told(fork)
    assert parent == server.pid


def test_a_fork_that_is_ended_before_it_has_left_its_server_does_not_end_that_one():
    with leaves_nothing(), closing(ForkServer(works.prepare_for_early_ends)) as server:
        for _ in range(2):
            with closing(server.fork(works.tell_origin)) as fork:
                with pytest.raises((EOFError, ConnectionResetError)):
                    told(fork)
                assert fork.exit_status() == -signal.SIGTERM


@pytest.mark.parametrize(("number", "status"), [(signal.SIGKILL, None), (signal.SIGTERM, -signal.SIGTERM)])
def test_forks_end_with_their_server_and_the_next_one_has_another(server, begin, number, status):
    fork = begin()
    pid, ended, _ = told(fork)
    os.kill(ended, number)
    assert ends(pid)
    assert fork.exit_status() == status
    assert ends(ended)  # one that is about to end may be asked, and begins nothing any more
    _, parent, prepared_by = told(begin())
    assert parent == server.pid != ended
    assert prepared_by == [parent]


def test_a_server_that_can_have_no_descriptor_more_forks_again_once_it_can(server, begin):
    _, same, _ = told(begin())
    assert eventually(lambda: state_of(server.pid) == "S")  # it waits, and has let go of what it gave the fork
    limits = resource.prlimit(server.pid, resource.RLIMIT_NOFILE)
    _, second = islice(free_descriptors(server.pid), 2)
    resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (second, limits[1]))
    with pytest.raises((EOFError, ConnectionResetError)):
        told(begin())
    resource.prlimit(server.pid, resource.RLIMIT_NOFILE, limits)
    _, parent, _ = told(begin())
    assert parent == server.pid == same


def test_servers_in_one_process_are_independent(server, begin):
    pid, *_ = told(begin())
    with closing(ForkServer(works.prepare)) as other:
        fork = other.fork(works.tell_origin)
        elsewhere, parent, _ = told(fork)
        assert parent == other.pid != server.pid
    fork.close()
    assert ends(elsewhere)
    assert is_running(pid)


@pytest.mark.parametrize("prepare", [works.prepare, works.never_prepared])
def test_closing_ends_a_server_that_is_prepared_or_not(prepare):
    with leaves_nothing():
        server = ForkServer(prepare)
        with closing(server.fork(works.tell_origin)) as fork:
            if prepare is works.prepare:
                told(fork)
            server.close()
            with pytest.raises((EOFError, ConnectionResetError)):
                told(fork)


def test_who_waits_for_a_fork_that_is_ended_before_it_could_begin_is_told():
    with closing(ForkServer(works.never_prepared)) as server, closing(server.fork(works.tell_origin)) as fork:
        fork.end()
        with pytest.raises((EOFError, ConnectionResetError)):
            told(fork)


OWNER = """
import signal
from api.decisions.forkserver import ForkServer
from tests.api.decisions import works

if __name__ == "__main__":
    server = ForkServer(works.never_prepared)
    fork = server.fork(works.tell_origin)
    print(server.pid, flush=True)
    signal.pause()
"""


def test_a_server_that_is_not_prepared_yet_ends_with_its_owner_however_that_one_ends(tmp_path):
    script = tmp_path / "owner.py"
    script.write_text(OWNER)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, env=environment) as owner:
        server = int(owner.stdout.readline())
        owner.kill()
    assert ends(server)


def test_nothing_begins_before_it_is_wanted():
    with closing(warm.fork_server()) as server:
        assert server.pid is None
