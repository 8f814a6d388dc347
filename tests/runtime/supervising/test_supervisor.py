"""Commands that fail in every way, and what the supervisor makes of it."""

import errno
import os
import signal
import threading
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from kintsugi.core.codec import dumps, loads
from kintsugi.core.errors import InvalidInputError, UnavailableError
from kintsugi.runtime import disk
from kintsugi.runtime.layout import LIFE_LOCK, SUPERVISOR
from kintsugi.runtime.supervising import supervisor
from kintsugi.runtime.supervising.supervision import (
    TOLD_TO_END,
    EndReason,
    SupervisedAttempt,
    SupervisorPolicy,
    SupervisorRecord,
    SupervisorState,
    ending,
    pause_seconds,
    read_record,
)
from kintsugi.runtime.supervising.supervisor import Supervisor, latest_step
from tests.patience import PATIENCE_SECONDS, eventually
from tests.processes import is_running
from tests.runtime.hung_disk import await_threads, hung
from tests.runtime.scarce import no_descriptors
from tests.runtime.supervising.lines import AT_ONCE, supervised

PROGRESS = "p = pathlib.Path('checkpoints'); p.mkdir(exist_ok=True); (p / 'latest.json').write_text('step-%08d' % (n + 1));"

LEFT = SupervisorRecord(
    state=SupervisorState.RUNNING, command=("train",), attempts=(SupervisedAttempt(number=0, started_at=1.0, pid=7),)
)
"""What a supervisor that was killed leaves."""


@pytest.fixture(autouse=True)
def inside(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_a_command_that_ends_well_is_run_once():
    record = supervised("pass")
    assert record.state is SupervisorState.COMPLETED
    (attempt,) = record.attempts
    assert (attempt.reason, attempt.exit_code, attempt.signal) == (EndReason.COMPLETED, 0, None)
    assert attempt.started_at <= attempt.ended_at
    assert read_record(Path()) == record


def test_exit_code_signal_and_reason_are_told_apart():
    record = supervised(PROGRESS + "[lambda: sys.exit(3), lambda: os.kill(os.getpid(), 9), lambda: sys.exit(137), lambda: 0][n]()")
    assert record.state is SupervisorState.COMPLETED
    assert [(a.reason, a.exit_code, a.signal) for a in record.attempts] == [
        (EndReason.EXITED, 3, None),
        (EndReason.KILLED, None, "SIGKILL"),
        (EndReason.KILLED, 137, "SIGKILL"),
        (EndReason.COMPLETED, 0, None),
    ]
    assert [(a.step_before, a.step_after) for a in record.attempts] == [(None, 1), (1, 2), (2, 3), (3, 4)]
    assert record.num_restarts == 3


def test_a_second_session_keeps_the_first_on_record_and_counts_its_own_restarts():
    at_most_two = SupervisorPolicy(pause_seconds=0.0, max_restarts=2, max_idle_restarts=1)
    first = supervised("sys.exit(n + 10)", at_most_two)
    second = supervised("sys.exit(n + 10)", at_most_two)
    assert second.attempts[:2] == first.attempts
    assert [(a.session, a.number, a.exit_code) for a in second.attempts] == [(1, 0, 10), (1, 1, 11), (2, 2, 12), (2, 3, 13)]
    assert second.num_restarts == 1
    assert second.stopped_because == first.stopped_because == "2 attempts in a row brought no newer checkpoint"
    assert read_record(Path()) == second


def test_an_attempt_whose_supervisor_was_killed_stays_on_record():
    Path(SUPERVISOR).write_text(dumps(LEFT))
    record = supervised("pass")
    assert record.attempts[0] == LEFT.attempts[0]
    assert record.attempts[1].number == 1
    assert record.num_restarts == 0


def test_a_damaged_record_is_set_aside():
    Path(SUPERVISOR).write_text('{"state": "runn')
    assert len(supervised("pass").attempts) == 1
    assert Path(f"{SUPERVISOR}.damaged").read_text() == '{"state": "runn'


def test_a_record_that_cannot_be_read_is_set_aside():
    Path(SUPERVISOR).mkdir()
    assert len(supervised("pass").attempts) == 1
    assert Path(f"{SUPERVISOR}.damaged").is_dir()
    Path(SUPERVISOR).unlink()
    Path(SUPERVISOR).mkdir()
    Path(f"{SUPERVISOR}.damaged/full").touch()  # so it cannot be set aside either
    assert supervised("pass").state is SupervisorState.COMPLETED
    with pytest.raises(InvalidInputError, match="cannot be read"):
        read_record(Path())


def test_a_pointer_to_the_latest_checkpoint_that_is_damaged_ends_nobody():
    """The command tells of it, and goes on from the newest checkpoint that is whole."""
    record = supervised(PROGRESS + "(p / 'latest.json').write_bytes(b'step-00000001' + bytes([255])); sys.exit(n == 0)")
    assert record.state is SupervisorState.COMPLETED
    assert [attempt.reason for attempt in record.attempts] == [EndReason.EXITED, EndReason.COMPLETED]
    Path("checkpoints/latest.json").write_text("step-" + "9" * 5_000)
    assert supervised("pass").state is SupervisorState.COMPLETED


def test_a_system_that_has_no_room_for_the_command_is_asked_again(monkeypatch):
    begin = Supervisor._started

    def short_of_room(self, environment):
        monkeypatch.setattr(Supervisor, "_started", begin)
        with no_descriptors():
            return begin(self, environment)

    monkeypatch.setattr(Supervisor, "_started", short_of_room)
    record = supervised("pass")
    assert [attempt.reason for attempt in record.attempts] == [EndReason.NO_ROOM, EndReason.COMPLETED]
    assert record.attempts[0].not_started_because == "Too many open files"
    assert record.state is SupervisorState.COMPLETED


def test_the_record_is_on_the_disk_before_it_has_its_name(monkeypatch):
    done = []
    fsync, move = os.fsync, Path.replace
    monkeypatch.setattr(os, "fsync", lambda file: (done.append(Path(os.readlink(f"/proc/self/fd/{file}")).name), fsync(file)))
    monkeypatch.setattr(Path, "replace", lambda old, new: (done.append("renamed"), move(old, new))[1])
    supervised("pass")
    one_write = [f".{SUPERVISOR}.new", "renamed", Path().absolute().name]
    assert done == one_write * (len(done) // 3)
    assert done


@pytest.mark.parametrize("when", [SupervisorState.LAUNCHING, SupervisorState.RUNNING, SupervisorState.WAITING])
def test_a_record_that_a_full_disk_does_not_take_ends_no_command(monkeypatch, when):
    def replace_whole(path: Path, text: str) -> None:
        if loads(SupervisorRecord, text).state is when:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, text)

    write = supervisor.replace_whole
    monkeypatch.setattr(supervisor, "replace_whole", replace_whole)
    with capture_logs() as logs:
        record = supervised("sys.exit(n == 0)")
    assert [attempt.reason for attempt in record.attempts] == [EndReason.EXITED, EndReason.COMPLETED]
    assert read_record(Path()) == record
    refused = [log for log in logs if log["event"] == "the record of attempts could not be written"]
    assert "No space left on device" in refused[0]["reason"]


def test_a_disk_that_hangs_keeps_neither_the_command_nor_its_supervisor(monkeypatch):
    """Whoever waited for the record neither began a command, nor saw one end, nor ended when told to."""
    monkeypatch.setattr(supervisor, "_DISK_SECONDS", 0.1)
    with hung(Path(f".{SUPERVISOR}.new")), capture_logs() as logs:
        record = supervised("sys.exit(n == 0)")
        assert [attempt.reason for attempt in record.attempts] == [EndReason.EXITED, EndReason.COMPLETED]
        refused = [log["reason"] for log in logs if log["event"] == "the record of attempts could not be written"]
        assert set(refused) == {"has not answered for 0.1 s"}
        Path("up").unlink(missing_ok=True)
        threading.Thread(target=lambda: eventually(Path("up").exists) and os.kill(os.getpid(), signal.SIGTERM)).start()
        told = supervised("pathlib.Path('up').touch(); signal.pause()")
        assert told.stopped_because == TOLD_TO_END
    await_threads("supervisor")


def test_a_disk_that_hangs_as_the_supervisor_begins_is_told(monkeypatch):
    monkeypatch.setattr(disk, "_ANSWER_SECONDS", 0.1)
    with (
        hung(Path(SUPERVISOR)),
        pytest.raises(UnavailableError, match=r"run: has not answered for 0.1 s: mend what its disk"),
    ):
        supervised("pass")
    await_threads("folder")


def test_a_lock_that_a_broken_disk_does_not_show_is_for_the_command_to_tell_of(monkeypatch):
    """It was an error of the system's, and the supervisor ended with it."""
    left = SupervisorRecord(
        state=SupervisorState.RUNNING, command=("train",), attempts=(SupervisedAttempt(number=0, started_at=1.0),)
    )
    Path(SUPERVISOR).write_text(dumps(left))
    stat = os.stat

    def broken(path, **how):
        if str(path).endswith(LIFE_LOCK):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return stat(path, **how)

    monkeypatch.setattr(os, "stat", broken)
    assert supervised("pass").state is SupervisorState.COMPLETED


def test_an_earlier_command_that_the_disk_does_not_tell_of_is_waited_for_and_that_is_told(monkeypatch):
    monkeypatch.setattr(supervisor, "_DISK_SECONDS", 0.1)
    Path(SUPERVISOR).write_text(dumps(LEFT))
    take, answers = Supervisor._take_life, threading.Event()
    monkeypatch.setattr(Supervisor, "_take_life", lambda own: answers.wait(PATIENCE_SECONDS) and take(own))
    monkeypatch.setattr(supervisor, "_LOOK_SECONDS", 0.0)

    def answer() -> None:
        assert eventually(lambda: any("waited for" in log["event"] for log in logs))
        answers.set()

    with capture_logs() as logs:
        threading.Thread(target=answer).start()
        record = supervised("pass")
    assert record.attempts[-1].reason is EndReason.COMPLETED
    assert [log["reason"] for log in logs if "waited for" in log["event"]] == [". has not answered for 0.1 s"]


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (0, (0, None, EndReason.COMPLETED)),
        (1, (1, None, EndReason.EXITED)),
        (2, (2, None, EndReason.REFUSED)),
        (128, (128, None, EndReason.EXITED)),
        (143, (143, "SIGTERM", EndReason.KILLED)),
        (255, (255, None, EndReason.EXITED)),
        (-11, (None, "SIGSEGV", EndReason.KILLED)),
    ],
)
def test_endings(code, expected):
    assert tuple(ending(code).values()) == expected


def test_a_command_that_gets_nowhere_is_given_up():
    record = supervised("sys.exit(1)", SupervisorPolicy(pause_seconds=0.0, max_idle_restarts=2))
    assert record.state is SupervisorState.FAILED
    assert record.num_restarts == 2
    assert record.stopped_because == "3 attempts in a row brought no newer checkpoint"


def test_a_command_that_gets_somewhere_is_given_up_at_the_limit():
    record = supervised(PROGRESS + "sys.exit(1)", SupervisorPolicy(pause_seconds=0.0, max_restarts=4, max_idle_restarts=0))
    assert record.num_restarts == 4
    assert record.stopped_because == "4 restarts were allowed"


def test_what_would_be_refused_again_is_not_repeated():
    assert supervised("sys.exit(2)").attempts[-1].reason is EndReason.REFUSED
    record = Supervisor(command=["/no/such/command"], run=Path(), policy=AT_ONCE).supervise()
    assert record.num_restarts == 0
    assert record.stopped_because == "/no/such/command cannot be started: No such file or directory"
    with pytest.raises(InvalidInputError, match="command: is missing"):
        Supervisor(command=[], run=Path()).supervise()


@pytest.mark.parametrize(("mode", "why"), [(0o755, "Exec format error"), (0o644, "Permission denied")])
def test_a_command_that_cannot_be_run_is_named_with_the_cause(tmp_path, mode, why):
    command = tmp_path / "no-script"
    command.write_text("words\n")
    command.chmod(mode)
    record = Supervisor(command=[str(command)], run=tmp_path / "run", policy=AT_ONCE).supervise()
    assert record.stopped_because == f"{command} cannot be started: {why}"
    assert (record.num_restarts, read_record(tmp_path / "run")) == (0, record)


def test_nothing_of_an_attempt_is_left():
    supervised("import subprocess; child = subprocess.Popen(['sleep', '60']); pathlib.Path('pid').write_text(str(child.pid))")
    child = int(Path("pid").read_text())
    assert eventually(lambda: not is_running(child))


def test_pauses_double_up_to_the_longest_however_often_a_command_has_failed():
    """A command that waits for something may be begun again for days."""
    policy = SupervisorPolicy(pause_seconds=1.0, longest_pause_seconds=60.0)
    assert [pause_seconds(num_idle, policy) for num_idle in (0, 1, 2, 3, 7, 5_000)] == [1.0, 1.0, 2.0, 4.0, 60.0, 60.0]
    assert pause_seconds(5_000, AT_ONCE) == 0.0


def test_a_run_that_was_not_supervised_says_so(tmp_path):
    with pytest.raises(InvalidInputError, match="run: was not supervised"):
        read_record(tmp_path)
    assert latest_step(tmp_path) is None


def test_limits_are_checked():
    with pytest.raises(InvalidInputError, match="max_restarts"):
        SupervisorPolicy(max_restarts=-1)
