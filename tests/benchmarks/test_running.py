"""Benchmarks that take minutes tell what they measured so far, and leave nothing behind when they are stopped."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.gaps import cases, measured
from benchmarks.placement import equal_layers, losses
from benchmarks.running import LiveTable, scratch
from kintsugi.core.plan import Schedule
from tests.builders import transformer_profile

ROOT = Path(__file__).parents[2]
PATIENCE_SECONDS = 120.0
STOPPED = {
    "service": ["--workers", "8"],
    "load": ["--only", "heartbeats", "--seconds", "600", "--workers", "64"],
    "restart": ["--jobs", "100000"],
}


@pytest.mark.processes
@pytest.mark.parametrize("name", STOPPED)
def test_a_benchmark_that_is_told_to_end_leaves_no_folder_and_no_process(tmp_path, name):
    command = [sys.executable, "-m", f"benchmarks.{name}", *STOPPED[name]]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
    ) as process:
        try:
            assert process.stderr is not None
            assert process.stderr.readline()  # it tells what it begins to measure
            assert list(tmp_path.iterdir())
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_SECONDS) == 128 + signal.SIGTERM
        finally:
            process.kill()
        assert list(tmp_path.iterdir()) == []
        deadline = time.monotonic() + PATIENCE_SECONDS
        while left := members(process.pid):
            assert time.monotonic() < deadline, left


def members(session: int) -> list[str]:
    """What runs in a session, as the operating system tells of each process."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        state, _, _, of = text.rpartition(")")[2].split()[:4]
        if int(of) == session and state != "Z":
            found.append(text)
    return found


def test_where_no_folder_can_be_made_a_line_says_so():
    with pytest.raises(SystemExit, match=r"no folder can be made in /proc; start it elsewhere"), scratch(Path("/proc")):
        raise AssertionError


def test_every_loss_of_a_placement_is_told_before_the_tables(capsys):
    rows = losses(equal_layers(transformer_profile(4), 4))
    told = capsys.readouterr()
    assert told.out == ""
    assert [line.split(" | ")[0] for line in told.err.splitlines()] == [row.lost for row in rows]


def test_every_gap_is_told_before_the_tables(capsys):
    gap = measured(next(cases([Schedule.ONE_F_ONE_B])))
    assert capsys.readouterr().err.startswith(f"1f1b | {gap.case.profile} | {gap.case.num_workers} | ")


def test_rows_are_told_as_they_are_measured(capsys):
    table = LiveTable("workers", "seconds", title="step")
    table.add_row("8", "0.5")
    told = capsys.readouterr()
    assert (told.out, told.err) == ("", "8 | 0.5\n")
    Console(width=40).print(table)
    assert "0.5" in capsys.readouterr().out
