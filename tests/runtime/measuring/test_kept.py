"""What an earlier life of a run measured is used again where nothing is otherwise, and there alone."""

import errno
import os
from dataclasses import replace
from functools import partial

import pytest
from structlog.testing import capture_logs

from kintsugi.runtime import disk
from kintsugi.runtime.checkpoints.recording import CheckpointOptions, RunOptions
from kintsugi.runtime.layout import MEASURED
from kintsugi.runtime.measuring.kept import Circumstances, measured_once
from tests.builders import uniform_profile
from tests.runtime.jobs import tiny_gpt

PROFILE = uniform_profile(4)


def here(folder, make_job=tiny_gpt, num_workers=4, **changed):
    job = replace(make_job(), **changed)
    run = RunOptions.of(job, folder, mtbf_seconds=1.0, checkpoints=CheckpointOptions())
    return Circumstances.of(make_job, job, run, num_workers=num_workers, workers_per_device=1)


def measured(folder, circumstances):
    """Whether it was measured, and not what was kept."""
    asked = []

    def measure():
        asked.append(True)
        return PROFILE

    assert measured_once(folder, circumstances, measure) == PROFILE
    return bool(asked)


def test_it_is_measured_once_for_all_lives_and_anew_where_anything_is_otherwise(tmp_path):
    assert measured(tmp_path, here(tmp_path))
    assert not measured(tmp_path, here(tmp_path))
    others = (
        here(tmp_path, num_workers=5),
        here(tmp_path, partial(tiny_gpt)),
        here(tmp_path, recomputes_activations=True),
        here(tmp_path, microbatch_size=tiny_gpt().microbatch_size * 2, num_microbatches=tiny_gpt().num_microbatches // 2),
        replace(here(tmp_path), machine="another"),
        replace(here(tmp_path), source="edited"),
    )
    assert all(measured(tmp_path, other) for other in others)


@pytest.mark.parametrize("text", ["", "{}", '{"circumstances": 1}'])
def test_what_is_damaged_is_measured_anew(tmp_path, text):
    (tmp_path / MEASURED).write_text(text)
    with capture_logs() as logs:
        assert measured(tmp_path, here(tmp_path))
    [told] = logs
    assert (told["log_level"], told["file"]) == ("warning", str(tmp_path / MEASURED))
    assert not measured(tmp_path, here(tmp_path))


def test_a_disk_that_is_full_costs_the_next_life_the_time_alone(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(disk, "replacing", full)
    with capture_logs() as logs:
        assert measured(tmp_path, here(tmp_path))
    assert [log["reason"] for log in logs if log["log_level"] == "warning"] == ["No space left on device"]
