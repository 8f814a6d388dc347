"""A plain DDP script is struck, audited, and ends where one process alone ends; under torchrun and supervised, README.md has it."""

import os
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.connection import wait
from pathlib import Path

import pytest
import torch

from kintsugi.runtime.checkpoints.snapshots import read_part
from kintsugi.runtime.forking import forkserver
from kintsugi.runtime.records.audit import audit
from kintsugi.runtime.run_lock import RunLock
from tests.processes import free_port

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "plain_ddp.py")
LAUNCHER = """
import subprocess, sys
subprocess.Popen([sys.executable, "-c", *sys.argv[1:]], start_new_session=True).wait()
"""
RANK = """
import os, sys, time
from kintsugi.runtime.plain import PlainRun
run = PlainRun(sys.argv[1], num_samples=4, global_batch_size=2, num_steps=2)
print(os.getpid(), flush=True)
time.sleep(600)
"""


@pytest.mark.processes
def test_ranks_end_with_the_torchrun_that_started_them(tmp_path):
    command = [sys.executable, "-c", LAUNCHER, RANK, str(tmp_path)]
    environment = {**os.environ, "TORCHELASTIC_RUN_ID": "none"}
    launcher = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    rank = int(launcher.stdout.readline())
    launcher.kill()
    try:
        launcher.communicate(timeout=240.0)  # the rank has the pipe, too, until it ends
    finally:
        with suppress(ProcessLookupError):
            os.kill(rank, signal.SIGKILL)
    with RunLock(tmp_path):
        pass


def run_alone(folder: Path, *options: str) -> None:
    """The example in one process."""
    assert exit_codes({}, folder, *options) == [0]


def run_on_two(folder: Path, port: int, attempt: int, *options: str) -> list[int]:
    """How two ranks of the example ended, as torchrun starts and ends them in an attempt of a supervisor."""
    told = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "KINTSUGI_ATTEMPT": str(attempt)}
    return exit_codes(told, folder, *options)


def exit_codes(told: Mapping[str, str], folder: Path, *options: str) -> list[int]:
    """Of the example in `WORLD_SIZE` processes that are forked from one with torch loaded; one that fails ends the others."""
    ranks = [
        forkserver().Process(target=example, args=({**told, "RANK": str(rank)} if told else {}, str(folder), *options))
        for rank in range(int(told.get("WORLD_SIZE", "1")))
    ]
    for process in ranks:
        process.start()
    try:
        running, deadline = {process.sentinel: process for process in ranks}, time.monotonic() + 120.0
        while running and all(process.exitcode in (None, 0) for process in ranks):
            ended = wait(list(running), max(0.0, deadline - time.monotonic()))
            assert ended, "still training"
            for sentinel in ended:
                running.pop(sentinel).join()
    finally:
        for process in ranks:
            process.kill()
            process.join()
    codes = [process.exitcode for process in ranks]
    for process in ranks:
        process.close()
    return codes


def example(told: Mapping[str, str], *arguments: str) -> None:
    os.environ.update(told)
    sys.argv = [EXAMPLE, *arguments]
    runpy.run_path(EXAMPLE, run_name="__main__")


def final_parameters(folder: Path, step: int) -> dict[str, torch.Tensor]:
    entries = read_part(folder / "checkpoints" / f"step-{step:08d}", "state")
    return {name: value for name, value in entries.items() if name.startswith("model|")}


@pytest.mark.processes
def test_the_example_is_struck_and_goes_on_with_fewer_ranks(tmp_path):
    run_alone(tmp_path / "alone", "--num-steps", "16")
    run = tmp_path / "run"
    options = ("--num-steps", "12", "--fail-at", "7", "--strategy", "blocking")
    port = free_port()
    assert run_on_two(run, port, 0, *options)[0] == 137
    assert run_on_two(run, port, 1, *options) == [0, 0]
    run_alone(run, "--num-steps", "16")
    report = audit(run)
    assert report.problems == ()
    assert report.is_exact
    assert report.is_complete
    assert [(u.first, u.last) for u in report.undone] == [(5, 7)]
    alone = final_parameters(tmp_path / "alone", 16)
    for name, value in final_parameters(run, 16).items():
        assert torch.allclose(value, alone[name], rtol=1e-12, atol=1e-14), name
