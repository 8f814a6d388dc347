"""A plain DDP script is struck, audited, and ends where one process alone ends; under torchrun and supervised, README.md has it."""

import os
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from kintsugi.core.errors import KintsugiError
from kintsugi.runtime.checkpoints.recording import CheckpointOptions
from kintsugi.runtime.checkpoints.snapshots import read_part
from kintsugi.runtime.forking import forkserver
from kintsugi.runtime.layout import CHECKPOINTS, JOURNALS, LATEST
from kintsugi.runtime.plain import PlainRun
from kintsugi.runtime.records.audit import audit
from kintsugi.runtime.run_lock import RunLock
from tests.processes import free_port
from tests.runtime.hung_disk import hung

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "plain_ddp.py")
LAUNCHER = """
import subprocess, sys
subprocess.Popen([sys.executable, "-c", *sys.argv[1:]], start_new_session=True).wait()
"""
RANK = """
import os, sys, time
from kintsugi.runtime.plain import PlainRun
if "early" in sys.argv:
    print(os.getpid(), flush=True)
    sys.stdin.read()
run = PlainRun(sys.argv[1], num_samples=4, global_batch_size=2, num_steps=2)
print(os.getpid(), flush=True)
time.sleep(600)
"""


@pytest.mark.processes
@pytest.mark.parametrize("when", ["early", "late"])
def test_ranks_end_with_the_torchrun_that_started_them(tmp_path, when):
    """Also where it was killed before their run began, as while they built a model: then they never hold the folder."""
    command = [sys.executable, "-c", LAUNCHER, RANK, str(tmp_path), when]
    environment = {**os.environ, "TORCHELASTIC_RUN_ID": "none"}
    launcher = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    rank = int(launcher.stdout.readline())
    launcher.kill()
    launcher.wait()
    try:
        launcher.stdin.close()
        assert launcher.stdout.readline() == ""  # the rank has the pipe, too, until it ends
    finally:
        launcher.stdout.close()
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


def unreadable(*_: object) -> None:
    raise OSError("cannot be read")


def plain_rank(rank: int, port: int, folder: str, slip: str, told: Connection) -> None:
    """One of two ranks; the second makes a slip."""
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2, timeout=timedelta(seconds=60))
    slips = {slip} if rank == 1 else set()
    given = {"seed": 7} if "seed" in slips else {}
    every = 3 if "every" in slips else 2
    model = nn.Linear(3 if slip == "wide" else 2, 1).to(torch.float64 if "dtype" in slips else torch.float32)
    model.bias.requires_grad_("frozen" not in slips)
    parameters = [model.weight] if "groups" in slips else list(model.parameters())
    optimizer = (torch.optim.SGD if "optimizer" in slips else torch.optim.AdamW)(parameters, lr=0.1)
    if "unreadable" in slips:
        model.register_load_state_dict_pre_hook(unreadable)
    if rank == 0 and slip == "broken":
        RunLock.take = unreadable
    run = None
    try:
        options = CheckpointOptions(every_steps=every, disk_timeout_seconds=2.0 if slip == "hung" else 120.0)
        run = PlainRun(folder, num_samples=8, global_batch_size=4, num_steps=4, checkpoints=options, **given)
        for step in range(run.restore(model, optimizer), 4):
            run.samples(step)
            assert run.mean(1.0 + rank) == 1.5
            run.commit(step + ("step" in slips), 1.0 + rank)
        told.send(None)
    except KintsugiError as error:
        told.send((error.field, str(error)))
    except OSError as error:
        told.send(("none", str(error)))
    finally:
        try:
            if run is not None:
                run.close()
                told.send(None)
        except KintsugiError as error:
            told.send((error.field, str(error)))
        dist.destroy_process_group()
        told.close()


def told_by_two(folder: Path, slip: str) -> list[list[tuple[str, str] | None]]:
    """What either rank was told in training and at the end; both end by themselves."""
    port, pipes, ranks = free_port(), [], []
    for rank in range(2):
        reading, writing = Pipe(duplex=False)
        ranks.append(forkserver().Process(target=plain_rank, args=(rank, port, str(folder), slip, writing)))
        ranks[-1].start()
        writing.close()
        pipes.append(reading)
    told: list[list[tuple[str, str] | None]] = [[], []]
    try:
        for heard, reading in zip(told, pipes, strict=True):
            with suppress(EOFError):
                while reading.poll(120.0):
                    heard.append(reading.recv())
    finally:
        for process, reading in zip(ranks, pipes, strict=True):
            process.join(30.0)
            process.kill()
            process.join()
            reading.close()
    assert [process.exitcode for process in ranks] == [0, 0]
    return told


@pytest.mark.processes
@pytest.mark.parametrize(
    ("slip", "field", "message"),
    [
        ("seed", "run", "of rank 1 is unlike that of rank 0: seed is 7, not 0"),
        ("every", "run", "checkpoints.every_steps is 3, not 2"),
        ("dtype", "run", "'weight' of the model is float64 of shape (1, 2), not float32 of shape (1, 2)"),
        ("optimizer", "run", "group 0 of the optimizer is SGD("),
        ("groups", "run", "of 1 parameters, not AdamW("),
        ("frozen", "run", "whether 'bias' is trained is False, not True"),
        ("step", "step", "and 0.5 in the mean of all ranks: all commit the same steps"),
    ],
)
def test_ranks_that_are_not_of_one_mind_are_told_so_on_each(tmp_path, slip, field, message):
    told = told_by_two(tmp_path, slip)
    first = [next(one for one in heard if one is not None) for heard in told]
    assert [one[0] for one in first] == [field, field]
    assert all(message in one[1] for one in first)


@pytest.mark.processes
def test_ranks_of_one_mind_train_to_the_end(tmp_path):
    assert told_by_two(tmp_path, "none") == [[None, None], [None, None]]


@pytest.mark.processes
def test_all_ranks_hear_that_another_life_has_the_folder(tmp_path):
    """The first asks for the lock; the others, which share the folder, ask for none."""
    with RunLock(tmp_path):
        told = told_by_two(tmp_path, "none")
    assert [[one[0] for one in heard] for heard in told] == [["run"], ["run"]]
    assert all("is in use by" in one[1] for (one,) in told)


@pytest.mark.processes
def test_what_the_first_rank_cannot_do_for_all_is_told_to_all(tmp_path):
    assert told_by_two(tmp_path, "broken") == [
        [("none", "cannot be read")],
        [("run", "run: rank 0 could not go on: OSError: cannot be read")],
    ]


@pytest.mark.processes
@pytest.mark.parametrize(
    "path", [f"{CHECKPOINTS}/{LATEST}", f"{CHECKPOINTS}/step-00000004/manifest.json", f"{JOURNALS}/0001-rank1-0.jsonl"]
)
def test_all_ranks_are_told_that_the_disk_hangs_with_what_is_to_be_read(tmp_path, path):
    """The first waited for ever, and the others with it, for as long as their group waits."""
    assert told_by_two(tmp_path, "none") == [[None, None], [None, None]]
    (tmp_path / path).unlink()
    with hung(tmp_path / path):
        for heard in told_by_two(tmp_path, "hung"):
            assert heard[0] == ("run", "run: has not answered for 2 s: mend what its disk is on, and train again in it")


@pytest.mark.processes
def test_a_checkpoint_that_one_rank_cannot_read_is_gone_on_from_by_none(tmp_path):
    told_by_two(tmp_path, "none")
    (others, *_), (own, *_) = told_by_two(tmp_path, "unreadable")
    assert own == ("none", "cannot be read")
    assert others == ("run", "run: rank 1 could not go on: OSError: cannot be read")


@pytest.mark.processes
def test_a_folder_of_another_job_is_refused_on_every_rank(tmp_path):
    told_by_two(tmp_path, "none")
    for (field, message), *_ in told_by_two(tmp_path, "wide"):
        assert field == "run"
        assert "another" in message
