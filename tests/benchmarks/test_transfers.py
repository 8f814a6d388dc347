"""What the benchmark of transfers moves, and what it sets beside each other."""

import sys

import pytest
import torch

from benchmarks import transfers
from benchmarks.transfers import MEBIBYTE, copy_table, entries_of, main, seconds_of
from kintsugi.core.errors import InvalidInputError
from restorer import streams
from restorer.packing import PackedState

CPU = torch.device("cpu")


def test_state_is_as_large_as_asked_and_its_tensors_end_within_chunks():
    for num_bytes in (4 * MEBIBYTE, 64 * MEBIBYTE):
        entries = entries_of(num_bytes, CPU)
        assert PackedState(entries).num_bytes == num_bytes
        assert all(len(tensor) % streams.CHUNK_BYTES for tensor in entries.values())


def test_seconds_are_from_the_first_beginning_to_the_last_end():
    assert seconds_of({"source": (3.0, 5.0), "target": (2.5, 4.0)}) == 2.5


def test_staging_stands_beside_copies_of_every_size():
    table = copy_table([MEBIBYTE, 5 * MEBIBYTE], CPU)
    assert [row[0] for row in table.rows] == ["host to host", "ours: read and sealed", "ours: taken in"]
    assert all(value > 0 for row in table.rows for value in row[1:])


def test_a_device_that_is_not_there_is_refused_before_anything_is_measured(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["transfers", "--device", "toaster"])
    with pytest.raises(InvalidInputError, match="device: is no device"):
        main()
    assert capsys.readouterr().out == ""


def test_a_migration_that_is_too_slow_fails_whoever_checks(monkeypatch, capsys):
    slow = transfers.Table(name="migration", title="", columns=(transfers.Column(key="ratio", title="ratio"),), rows=((0.5,),))
    monkeypatch.setattr(transfers, "migration_table", lambda *_: slow)
    options = ["transfers", "--largest-mebibytes", "4"]
    monkeypatch.setattr(sys, "argv", options)
    main()
    monkeypatch.setattr(sys, "argv", [*options, "--check"])
    with pytest.raises(SystemExit, match="missed: a migration reaches 50% of the staging ceiling, asked 70%"):
        main()
    assert "0.5" in capsys.readouterr().out


def test_the_first_table_is_written_before_the_second_is_measured(monkeypatch, capsys, tmp_path):
    def cut_off(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(transfers, "migration_table", cut_off)
    monkeypatch.setattr(sys, "argv", ["transfers", "--largest-mebibytes", "4", "--output", str(tmp_path / "made")])
    with pytest.raises(KeyboardInterrupt):
        main()
    assert "host to host" in (tmp_path / "made" / "copies.csv").read_text()
    assert "host to host" in capsys.readouterr().out
