"""When and how checkpoints are written, as a caller says it."""

import os
import threading
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from kintsugi.core.errors import UnavailableError
from kintsugi.core.job import JobSettings
from kintsugi.runtime.checkpoints.keeper import Keeper
from kintsugi.runtime.checkpoints.recording import CheckpointOptions, RunOptions, Strategy, expected_recovery
from kintsugi.runtime.control.progress import Progress
from kintsugi.runtime.disk import disk_rates
from kintsugi.runtime.layout import JOURNALS
from kintsugi.runtime.messages import PartFailed
from kintsugi.runtime.models import TrainingJob
from tests.builders import uniform_profile
from tests.core.refusals import refuses
from tests.full_disk import room_for
from tests.patience import PATIENCE_SECONDS
from tests.runtime.hung_disk import await_threads, hung
from tests.runtime.jobs import odd_job


@pytest.mark.parametrize("name", ["every_steps", "max_in_flight", "keep"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True, "3"])
def test_counts_are_whole_numbers_above_0(name, value):
    with refuses(name, value, "above 0"):
        CheckpointOptions(**{name: value})


@pytest.mark.parametrize("name", ["max_in_flight", "keep"])
def test_only_the_interval_may_be_left_open(name):
    assert CheckpointOptions(every_steps=None).every_steps is None
    with refuses(name):
        CheckpointOptions(**{name: None})


@pytest.mark.parametrize("strategy", Strategy)
def test_a_strategy_may_be_a_text(strategy):
    assert CheckpointOptions(strategy=strategy.value).strategy is strategy


@pytest.mark.parametrize("strategy", ["nonsense", None, 3])
def test_another_strategy_is_refused_with_those_that_there_are(strategy):
    with refuses("strategy", strategy, "known ones: blocking, overlapped"):
        CheckpointOptions(strategy=strategy)


def test_a_checkpoint_that_is_given_up_is_told_of_once(tmp_path):
    """What is left of it is removed while others still write their parts, which fail then."""
    options = RunOptions.of(odd_job(), tmp_path, mtbf_seconds=1.0, checkpoints=CheckpointOptions())
    keeper = Keeper(options, Progress())
    keeper.expect(1, ["w00", "w01"])
    with capture_logs() as logs:
        for worker, reason in (("w00", "no space"), ("w01", "no such file")):
            keeper.failed(worker, PartFailed(1, 4, reason))
    keeper.close()
    assert [log["reason"] for log in logs] == ["no space"]


def test_a_full_disk_does_not_keep_a_job_from_going_on(tmp_path):
    with room_for(0), capture_logs() as logs:
        rates = disk_rates(tmp_path)
    assert min(rates.read_bytes_per_second, rates.write_bytes_per_second) > 0
    assert [(log["folder"], "guessed" in log["event"]) for log in logs] == [(str(tmp_path), True)]


def test_what_a_checkpoint_fits_to_is_told_layer_by_layer(tmp_path):
    def about(job: TrainingJob) -> dict[str, str]:
        return dict(RunOptions.of(job, tmp_path, mtbf_seconds=1.0, checkpoints=CheckpointOptions()).about)

    job = odd_job()
    layers = [
        replace(job.layers[0], name="entrance"),
        *job.layers[1:-1],
        replace(job.layers[-1], tied={"weight": "entrance.weight"}),
    ]
    before, now = about(job), about(replace(job, layers=layers, seed=6))
    assert {what: (before[what], now[what]) for what in before if before[what] != now[what]} == {
        "layer 0": ("entry", "entrance"),
        "layer 7": ("exit, weight tied to entry.weight", "exit, weight tied to entrance.weight"),
        "seed": ("5", "6"),
    }


def test_a_disk_that_hangs_with_what_a_run_begins_by_is_told(tmp_path, monkeypatch):
    """Which life this is, and how fast the disk is."""
    hangs = pytest.raises(UnavailableError, match=r"run: has not answered for 0.05 s: mend what its disk is on, or name another")
    impatient = CheckpointOptions(disk_timeout_seconds=0.05)
    (tmp_path / JOURNALS).mkdir()
    with hung(tmp_path / JOURNALS / "0001-w00-0.jsonl"), hangs:
        RunOptions.of(odd_job(), tmp_path, mtbf_seconds=1.0, checkpoints=impatient)
    await_threads("folder")
    options = RunOptions.of(odd_job(), tmp_path, mtbf_seconds=1.0, checkpoints=CheckpointOptions())
    answers = threading.Event()
    monkeypatch.setattr(os, "fsync", lambda _: answers.wait(PATIENCE_SECONDS))
    with hangs:
        expected_recovery(uniform_profile(4), JobSettings(num_microbatches=1), replace(options, checkpoints=impatient), 1)
    answers.set()
    await_threads("folder")
