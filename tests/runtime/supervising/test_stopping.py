"""Commands whose supervisors are told to end, or are killed."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from kintsugi.runtime.supervising import supervisor
from kintsugi.runtime.supervising.supervision import (
    TOLD_TO_END,
    EndReason,
    SupervisorPolicy,
    SupervisorState,
    read_record,
)
from kintsugi.runtime.supervising.supervisor import Supervisor
from tests.patience import eventually
from tests.processes import is_running
from tests.runtime.supervising.lines import AT_ONCE, supervised


@pytest.fixture(autouse=True)
def inside(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


TELL = "pathlib.Path('pid.new').write_text(str(os.getpid())); os.rename('pid.new', 'pid')"
"""A command's word that it runs."""


def supervising(
    code: str, *options: str, stderr: IO[bytes] | None = None, is_told_by_command: bool = False
) -> subprocess.Popen[bytes]:
    """`kintsugi supervise` of a line of Python, once it has said that it runs; `is_told_by_command` where the line itself does."""
    tell = "n = int(os.environ['KINTSUGI_ATTEMPT'])" if is_told_by_command else TELL
    command = [sys.executable, "-c", f"import os, pathlib, signal, sys; {tell}; {code}"]
    supervise = "import sys; from kintsugi.cli import main; sys.exit(main())"
    supervisor = subprocess.Popen([sys.executable, "-c", supervise, "supervise", "run", *options, "--", *command], stderr=stderr)
    assert eventually(Path("pid").exists)
    return supervisor


def patched(script: str, mark: str, *, once: str) -> subprocess.Popen[bytes]:
    """What `script` makes of `kintsugi supervise`, of a command that makes the file `mark` and waits; once a file is there."""
    command = [sys.executable, "-c", f"import pathlib, signal; pathlib.Path({mark!r}).touch(); signal.pause()"]
    supervisor = subprocess.Popen([sys.executable, "-c", script, "supervise", "run", "--", *command])
    assert eventually(Path(once).exists)
    return supervisor


@contextmanager
def hangups_taken(handler: signal.Handlers) -> Iterator[None]:
    """So what is started in the block takes SIGHUP, which this process may itself ignore: tests may run under `nohup`."""
    before = signal.signal(signal.SIGHUP, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


def id_of_command() -> int:
    return int(Path("pid").read_text())


@pytest.mark.processes
@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 130), (signal.SIGHUP, 130)],
    ids=["killed", "Ctrl-C", "terminal closed"],
)
def test_the_command_ends_with_its_supervisor(number, code):
    with hangups_taken(signal.SIG_DFL):
        supervisor = supervising("signal.pause()")
    command = id_of_command()
    assert is_running(command)
    supervisor.send_signal(number)
    assert supervisor.wait(timeout=240.0) == code
    assert eventually(lambda: not is_running(command))


LATE = """
import os, sys, time
from pathlib import Path
from kintsugi.cli import main
from kintsugi.runtime.supervising import supervisor

bind = supervisor.end_with_parent

def bound(*arguments):
    Path("pid.new").write_text(str(os.getpid()))
    os.rename("pid.new", "pid")
    while os.getppid() == arguments[1]: time.sleep(0.01)
    bind(*arguments)

supervisor.end_with_parent = bound
sys.exit(main())
"""


@pytest.mark.processes
def test_a_command_does_not_begin_whose_supervisor_was_killed_as_it_forked():
    """It ran on beside that of the next supervisor, and nobody told it to end."""
    supervisor = patched(LATE, "begun", once="pid")
    supervisor.kill()
    supervisor.wait()
    try:
        assert eventually(lambda: not is_running(id_of_command()) or Path("begun").exists())
        assert not Path("begun").exists()
    finally:
        if is_running(id_of_command()):
            os.kill(id_of_command(), signal.SIGKILL)


LASTING = """
import time
from kintsugi.runtime.run_lock import RunLock

def end(*_):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # told twice where two threads of the supervisor end
    os.mkfifo("told")
    open("told").read()
    sys.exit()

if n: sys.exit(not pathlib.Path("told").exists())
signal.signal(signal.SIGTERM, end)
with RunLock(pathlib.Path("run")):
    {TELL}
    while True: signal.pause()
"""


@pytest.fixture
def outlived() -> Iterator[int]:
    """A command that holds the run's folder, and that was told to end by the death of its supervisor; it waits for `told`."""
    supervisor = supervising(LASTING.replace("{TELL}", TELL), is_told_by_command=True)
    supervisor.kill()
    supervisor.wait()
    command = id_of_command()
    assert eventually(Path("told").exists)
    yield command
    if is_running(command):
        os.kill(command, signal.SIGKILL)


@pytest.mark.processes
def test_the_command_of_a_supervisor_that_was_killed_is_waited_for(outlived):
    """The next one was refused the folder as often as it was tried, and given up, while a job wrote its last checkpoint."""
    policy = SupervisorPolicy(max_restarts=0)
    was_running = []

    def look(_: float) -> None:
        if not was_running:
            was_running.append(is_running(outlived))
            Path("told").write_text("end")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(supervisor.time, "sleep", look)
        record = Supervisor(command=[sys.executable, "-c", "pass"], run=Path("run"), policy=policy).supervise()
    assert was_running == [True]
    assert record.state is SupervisorState.COMPLETED
    assert [attempt.reason for attempt in record.attempts] == [None, EndReason.COMPLETED]


@pytest.mark.processes
def test_who_waits_for_an_earlier_command_can_be_told_to_end(outlived):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(supervisor.time, "sleep", lambda _: os.kill(os.getpid(), signal.SIGTERM))
        record = Supervisor(command=[sys.executable, "-c", "pass"], run=Path("run")).supervise()
    assert (record.state, record.stopped_because, record.own_attempts) == (SupervisorState.FAILED, TOLD_TO_END, ())
    assert read_record(Path("run")) == record
    assert is_running(outlived)


@pytest.mark.processes
def test_who_is_told_to_end_in_a_pause_starts_nothing_any_more():
    supervisor = supervising("sys.exit(1)", "--pause-seconds", "60")
    assert eventually(lambda: read_record(Path("run")).state is SupervisorState.WAITING)
    supervisor.send_signal(signal.SIGTERM)
    assert supervisor.wait(timeout=240.0) == 130
    record = read_record(Path("run"))
    assert (record.state, record.stopped_because) == (SupervisorState.FAILED, TOLD_TO_END)
    assert [attempt.reason for attempt in record.attempts] == [EndReason.EXITED]


@pytest.mark.processes
def test_who_is_told_to_end_when_the_command_just_did_writes_that_down():
    supervisor = supervising("signal.pause()")
    command = id_of_command()
    supervisor.send_signal(signal.SIGSTOP)
    os.kill(command, signal.SIGKILL)
    assert eventually(lambda: not is_running(command))
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCONT):
        supervisor.send_signal(number)
    assert supervisor.wait(timeout=240.0) == 130
    record = read_record(Path("run"))
    assert (record.state, record.stopped_because) == (SupervisorState.FAILED, TOLD_TO_END)
    assert [attempt.reason for attempt in record.attempts] == [EndReason.STOPPED]


def test_the_supervisor_ends_with_its_command_when_told_to():
    def tell():
        eventually(Path("up").exists)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=tell).start()
    record = supervised("pathlib.Path('up').touch(); signal.pause()")
    assert record.state is SupervisorState.FAILED
    (attempt,) = record.attempts
    assert (attempt.reason, attempt.signal) == (EndReason.STOPPED, "SIGTERM")


COUNTING = """
count = []
signal.signal(signal.SIGTERM, lambda *_: count.append(1))
pathlib.Path("ready").touch()
while not count: signal.pause()
pathlib.Path("told").write_text(str(len(count)))
while not pathlib.Path("is_written").exists(): time.sleep(0.01)
pathlib.Path("told").write_text(str(len(count)))
"""


def test_a_command_is_told_to_end_once_also_where_that_is_asked_before_its_start_is_written_down(monkeypatch):
    """By the second signal many commands end at once: a job would not write the checkpoint that the first one asks for."""
    write = Supervisor._write

    def interrupted(self, record):
        if record.state is SupervisorState.RUNNING:
            assert eventually(Path("ready").exists)
            os.kill(os.getpid(), signal.SIGTERM)
            assert eventually(lambda: Path("told").exists() and Path("told").read_text())
        write(self, record)

    wait = os.waitid  # what the supervisor does once it has nothing more to tell

    def waited(*arguments):
        Path("is_written").touch()
        return wait(*arguments)

    monkeypatch.setattr(Supervisor, "_write", interrupted)
    monkeypatch.setattr(os, "waitid", waited)
    code = f"import pathlib, signal, time\n{COUNTING}"
    record = Supervisor(command=[sys.executable, "-c", code], run=Path(), policy=AT_ONCE).supervise()
    assert record.attempts[-1].reason is EndReason.STOPPED
    assert Path("told").read_text() == "1"


@pytest.mark.processes
def test_who_waits_for_a_frozen_command_to_end_says_so_and_how_to_end_it_now():
    with Path("log").open("wb") as log:
        supervisor = supervising("os.kill(os.getpid(), signal.SIGSTOP)", stderr=log)
    supervisor.send_signal(signal.SIGTERM)
    assert eventually(lambda: "a second signal kills it" in Path("log").read_text())
    assert supervisor.poll() is None
    supervisor.send_signal(signal.SIGTERM)
    assert supervisor.wait(timeout=240.0) == 130


AGAIN = """
import os, signal, sys
from kintsugi.cli import main, supervise

tell = supervise.tell

def told_again(text):
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM):
        os.kill(os.getpid(), number)
    tell(text)

supervise.tell = told_again
sys.exit(main())
"""


@pytest.mark.processes
def test_who_asks_once_more_as_it_ends_changes_nothing():
    """It ended by the signal, as one that crashed does, where it had ended in order."""
    supervisor = patched(AGAIN, "up", once="up")
    supervisor.send_signal(signal.SIGTERM)
    assert supervisor.wait(timeout=240.0) == 130


@pytest.mark.processes
def test_a_signal_that_is_ignored_stays_so():
    """As under `nohup`, which a run that is to outlive its terminal is started by."""
    with hangups_taken(signal.SIG_IGN):
        supervisor = supervising("signal.pause()")
    supervisor.send_signal(signal.SIGHUP)
    with pytest.raises(subprocess.TimeoutExpired):
        supervisor.wait(timeout=1.0)
    supervisor.send_signal(signal.SIGTERM)
    assert supervisor.wait(timeout=240.0) == 130
