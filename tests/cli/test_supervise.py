"""`kintsugi supervise`: how it ends and what it says."""

import os
import subprocess
import sys

import pytest

from kintsugi.cli import main
from kintsugi.core.errors import UnavailableError
from kintsugi.runtime.supervising.supervision import read_record
from kintsugi.runtime.supervising.supervisor import Supervisor


def run(*arguments) -> int:
    with pytest.raises(SystemExit) as left:
        main(["supervise", *map(str, arguments)])
    return left.value.code


def test_a_command_is_run_until_it_ends_well(tmp_path, capsys):
    code = "import os, sys; sys.exit(int(os.environ['KINTSUGI_ATTEMPT']) == 0)"
    assert run(tmp_path, "--pause-seconds", 0, "--", sys.executable, "-c", code) == 0
    shown = capsys.readouterr().err
    assert "attempt 0: exited exit code 1, checkpoint none -> none" in shown
    assert "attempt 1: completed" in shown


def test_a_command_that_never_does_is_given_up(tmp_path, capsys):
    assert run(tmp_path, "--pause-seconds", 0, "--max-restarts", 1, "--", sys.executable, "-c", "raise SystemExit(1)") == 1
    assert "gave up: 1 restarts were allowed" in capsys.readouterr().err


def test_a_command_that_cannot_be_started_does_not_steer_the_terminal(tmp_path, capsys):
    assert run(tmp_path, "--", "no\x1b[2Jsuch") == 1
    told = capsys.readouterr().err
    assert r"gave up: no\x1b[2Jsuch cannot be started" in told
    assert "\x1b" not in told


@pytest.mark.parametrize("command", [("sh", "-c", "true"), ()])
def test_who_does_not_say_where_the_command_begins_is_told_how(tmp_path, capsys, command):
    assert run(tmp_path, *command) == 2
    assert "Put -- before the command, as in: kintsugi supervise RUN -- COMMAND" in " ".join(capsys.readouterr().err.split())


def test_a_wrong_option_of_its_own_is_no_matter_of_where_the_command_begins(tmp_path, capsys):
    assert run(tmp_path, "--max-restart", 3, "--", "true") == 2
    told = capsys.readouterr().err
    assert "--max-restart" in told
    assert "Put -- before" not in told


def test_the_standard_output_is_the_commands_own(tmp_path, capfd):
    assert run(tmp_path, "--", sys.executable, "-c", "print('from the job')") == 0
    told = capfd.readouterr()
    assert told.out == "from the job\n"
    assert "attempt ended" in told.err


@pytest.mark.processes
def test_a_command_is_started_again_where_nobody_reads_how_it_goes(tmp_path):
    nobody, stderr = os.pipe()
    os.close(nobody)
    code = "import os, sys; sys.exit(int(os.environ['KINTSUGI_ATTEMPT']) == 0)"
    command = [
        sys.executable,
        "-m",
        "kintsugi.cli",
        "supervise",
        str(tmp_path),
        "--pause-seconds",
        "0",
        "--",
        sys.executable,
        "-c",
        code,
    ]
    with open(stderr, "w") as unread:
        assert subprocess.run(command, stderr=unread, timeout=120, check=False).returncode == 0
    assert [attempt.exit_code for attempt in read_record(tmp_path).attempts] == [1, 0]


def test_a_command_is_needed(tmp_path):
    assert run(tmp_path) == 2


def test_the_folder_of_a_run_can_be_made(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", "/proc/x"):
        assert run(folder, "--", "true") == 2
        told = capsys.readouterr().err
        assert told.startswith("kintsugi: run: is no folder that can be made")
        assert str(folder) in told


def test_a_command_that_cannot_be_run_is_told_with_the_cause(tmp_path, capsys):
    command = tmp_path / "no-script"
    command.write_text("")
    assert run(tmp_path / "run", "--", command) == 1
    shown = "".join(capsys.readouterr().err.split())  # without the breaks of lines
    assert "attempt0:not_startedPermissiondenied" in shown
    assert f"gaveup:{command}cannotbestarted:Permissiondenied" in shown


def test_the_folder_is_not_looked_at_before_its_disk_is_waited_for_with_patience(tmp_path, monkeypatch):
    """Whose disk hangs would hold the command up for ever, without a word."""
    looked_at, stat = [], os.stat

    def supervised(own):
        assert own.run == tmp_path
        assert str(tmp_path) not in looked_at
        raise UnavailableError("has not answered", field="run", value=str(tmp_path))

    monkeypatch.setattr(os, "stat", lambda path, **how: looked_at.append(str(path)) or stat(path, **how))
    monkeypatch.setattr(Supervisor, "supervise", supervised)
    assert run(tmp_path, "--", "true") == 2
