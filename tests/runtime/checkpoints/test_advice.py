"""What checkpoints cost is written down where the disk takes it, and costs nothing else where it does not."""

import errno
import os
from dataclasses import replace

import pytest
import structlog

from kintsugi.core.codec import loads
from kintsugi.runtime.checkpoints.advice import CheckpointRecord, append_record
from kintsugi.runtime.layout import RECORDS

RECORD = CheckpointRecord(
    step=3,
    strategy="blocking",
    num_bytes=10,
    part_bytes=10,
    snapshot_seconds=0.1,
    backpressure_seconds=0.0,
    write_seconds=0.1,
    stall_seconds=0.2,
    commit_seconds=0.1,
)


@pytest.fixture
def disk(monkeypatch):
    """Takes so many bytes at once, once that is said."""
    limit = [2**20]
    write = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda descriptor, line, end: write(descriptor, line[: limit[0]], end))
    return limit


def test_a_line_that_is_not_whole_is_not_there(tmp_path, disk):
    append_record(tmp_path, RECORD)
    disk[0] = 7
    with structlog.testing.capture_logs() as log:
        append_record(tmp_path, replace(RECORD, step=6))
    assert [(line["log_level"], line["step"]) for line in log] == [("warning", 6)]
    disk[0] = 2**20
    append_record(tmp_path, replace(RECORD, step=9))
    assert [loads(CheckpointRecord, line).step for line in (tmp_path / RECORDS).read_text().splitlines()] == [3, 9]


def test_half_a_line_that_a_broken_disk_left_takes_no_other_with_it(tmp_path, disk, monkeypatch):
    def no_room_to_cut(descriptor, end):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    append_record(tmp_path, RECORD)
    disk[0] = 7
    with monkeypatch.context() as broken:
        broken.setattr(os, "ftruncate", no_room_to_cut)
        append_record(tmp_path, replace(RECORD, step=6))
    assert not (tmp_path / RECORDS).read_text().endswith("\n")
    disk[0] = 2**20
    append_record(tmp_path, replace(RECORD, step=9))
    assert [loads(CheckpointRecord, line).step for line in (tmp_path / RECORDS).read_text().splitlines()] == [3, 9]
