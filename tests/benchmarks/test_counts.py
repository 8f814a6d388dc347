"""What the benchmark over all counts of workers notes as it goes, and takes over when it goes on."""

import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import counts
from planner.sources import PACKAGES, sources_digest

DIGEST = "ab" * 32


@pytest.fixture
def processes(monkeypatch):
    """Seeds of those that plan; all come to the same."""
    begun = []

    def run(_command, *, env, **_):
        begun.append(env["PYTHONHASHSEED"])
        return SimpleNamespace(stdout=DIGEST)

    monkeypatch.setattr(subprocess, "run", run)
    return begun


def test_digests_are_of_all_code_that_decides():
    root = Path(counts.__file__).parents[1]
    assert counts.code_digest() == sources_digest(root, (*PACKAGES, "benchmarks", "tests"))


def test_a_line_that_a_kill_cut_off_is_no_difference_and_is_planned_for_again(tmp_path, processes):
    state = tmp_path / "state"
    assert counts.Runs(state).num_different(range(8, 9), runs=2, jobs=1) == 1
    whole = state.read_text()
    state.write_text(whole[:-20])
    assert counts.Runs(state).num_different(range(8, 9), runs=2, jobs=1) == 1
    assert processes == ["0", "1", "1"]
    assert state.read_text() == whole
    assert counts.Runs(state).num_different(range(8, 9), runs=2, jobs=1) == 1
    assert processes == ["0", "1", "1"]
