"""One process at a time has a run's folder; whoever comes second is told who that is."""

import fcntl
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from kintsugi.core.errors import ConflictError, InvalidInputError, UnavailableError
from kintsugi.runtime import disk
from kintsugi.runtime.control.agent import Agent
from kintsugi.runtime.control.decisions import LocalDecisions
from kintsugi.runtime.layout import JOURNALS, LIFE_LOCK, SUPERVISOR_LOCK, TRACE_LOCK
from kintsugi.runtime.options import AgentOptions, WorkerOptions
from kintsugi.runtime.plain import PlainRun
from kintsugi.runtime.records.tracing import JOB, TRACES, TraceOptions
from kintsugi.runtime.run_lock import RunLock
from kintsugi.runtime.supervising.supervisor import Supervisor
from kintsugi.runtime.train import train
from tests.patience import PATIENCE_SECONDS
from tests.runtime.hung_disk import await_threads
from tests.runtime.jobs import tiny_gpt
from tests.runtime.runs import gpt_request

HOLD = """
import sys
from pathlib import Path
from kintsugi.runtime.run_lock import RunLock
with RunLock(Path(sys.argv[1]), *sys.argv[2:]):
    print("held", flush=True)
    sys.stdin.read()
"""


class Holder:
    """Another process that holds a folder's lock."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLD, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout.readline() == "held\n"

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def holder(tmp_path) -> Iterator[Holder]:
    holder = Holder(str(tmp_path))
    yield holder
    holder.kill()


def refused(folder: Path, holder: Holder):
    return pytest.raises(ConflictError, match=rf"run: {folder} is in use by process {holder.process.pid} on \S+: wait for its end")


def test_a_second_process_is_refused_until_the_first_is_gone(tmp_path, holder):
    with refused(tmp_path, holder):
        RunLock(tmp_path).take()
    holder.kill()
    with RunLock(tmp_path), RunLock(tmp_path):
        pass


def test_one_that_is_held_twice_is_held_until_both_gave_it_up(tmp_path):
    """As where a notebook began a run again, and the first one is collected."""
    locks = [RunLock(tmp_path) for _ in range(3)]
    before = len(os.listdir("/proc/self/fd"))
    for lock in locks:
        lock.take()
    for lock in locks:
        assert is_shut_out(tmp_path)
        lock.release()
    assert not is_shut_out(tmp_path)
    assert len(os.listdir("/proc/self/fd")) == before


def is_shut_out(folder: Path) -> bool:
    """Whether another process is."""
    command = [sys.executable, "-c", HOLD, str(folder)]
    tried = subprocess.run(command, check=False, input="", capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert tried.stdout == "held\n" or "ConflictError" in tried.stderr
    return tried.returncode != 0


def test_children_do_not_keep_it(tmp_path):
    """Neither one that is forked, as loaders of data are, nor one that runs something else."""
    lock = RunLock(tmp_path)
    lock.take()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(write)
        os.read(read, 1)
        os._exit(0)
    os.close(read)
    sleeper = subprocess.Popen(["sleep", "60"], close_fds=False)
    lock.release()
    Holder(str(tmp_path)).kill()
    os.close(write)
    os.waitpid(child, 0)
    sleeper.kill()
    sleeper.wait()


def test_a_folder_without_locks_is_told_of_and_used(tmp_path, monkeypatch):
    def unsupported(*_: int) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr("fcntl.lockf", unsupported)
    with capture_logs() as logs, RunLock(tmp_path):
        assert "it has no locks" in logs[0]["event"]


def test_a_folder_whose_lock_cannot_be_opened_is_refused_with_its_name(tmp_path):
    (tmp_path / LIFE_LOCK).mkdir()
    with pytest.raises(
        InvalidInputError, match=r"run: cannot be worked in: life\.lock cannot be opened \(Is a directory\)"
    ) as told:
        RunLock(tmp_path).take()
    assert told.value.value == str(tmp_path)


def test_a_second_life_of_a_job_is_refused_before_anything_is_measured_or_written(tmp_path, holder):
    with refused(tmp_path, holder):
        train(tiny_gpt, workers=2, run=tmp_path)
    assert not (tmp_path / JOURNALS).exists()


def plain_run(folder: Path) -> PlainRun:
    return PlainRun(folder, num_samples=4, global_batch_size=2, num_steps=2)


def test_a_second_life_of_a_script_is_refused(tmp_path, holder):
    with refused(tmp_path, holder):
        plain_run(tmp_path)
    assert not (tmp_path / JOURNALS).exists()
    holder.kill()
    plain_run(tmp_path).close()
    Holder(str(tmp_path)).kill()


@pytest.mark.processes
def test_a_folder_where_another_job_records_its_actions_is_refused_before_it_has_any(tmp_path):
    holder = Holder(str(tmp_path / TRACES), TRACE_LOCK)
    options = AgentOptions(worker=WorkerOptions(trace=TraceOptions(folder=tmp_path)))
    message = rf"trace: {tmp_path / TRACES} is in use by process {holder.process.pid} "
    with (
        Agent(tiny_gpt, gpt_request(1, 1), LocalDecisions(), options=options) as agent,
        pytest.raises(ConflictError, match=message),
    ):
        agent.run()
    assert not (tmp_path / TRACES / JOB).exists()
    holder.kill()
    with Agent(tiny_gpt, gpt_request(1, 1), LocalDecisions(), options=options) as agent:
        agent.run()
    Holder(str(tmp_path / TRACES), TRACE_LOCK).kill()


def test_a_second_supervisor_is_refused(tmp_path):
    holder = Holder(str(tmp_path), SUPERVISOR_LOCK)
    with refused(tmp_path, holder):
        Supervisor(command=["true"], run=tmp_path).supervise()
    holder.kill()
    assert Supervisor(command=["true"], run=tmp_path).supervise().stopped_because == ""


def test_a_folder_whose_disk_hangs_is_told(tmp_path, monkeypatch):
    answers = threading.Event()
    monkeypatch.setattr(disk, "_ANSWER_SECONDS", 0.1)
    monkeypatch.setattr(fcntl, "lockf", lambda *_: answers.wait(PATIENCE_SECONDS))
    with pytest.raises(UnavailableError, match=r"folder: has not answered for 0.1 s: mend what its disk is on, or name"):
        RunLock(tmp_path, field="folder").take()
    answers.set()
    await_threads("folder")
