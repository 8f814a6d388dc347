"""Kept machine code is used again, until any source of it is another."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from numba.core.compiler_lock import global_compiler_lock

from estimator import compiled

ROOT = Path(__file__).parents[2]
INNER = """
from estimator.compiled import compiled

@compiled
def inner(x: int) -> int:
    return x + {added}
"""
OUTER = """
from estimator.compiled import compiled
from planner.inner import inner

@compiled
def outer(x: int) -> int:
    return inner(x) * 10
"""
SCRIPT = "from planner.outer import outer; print(outer(1), sum(outer.stats.cache_hits.values()))"
NAMED = """
from typing import NamedTuple
from estimator.compiled import compiled

class {name}(NamedTuple):
    x: int

@compiled
def shifted(pair: {name}) -> int:
    return pair.x + 1
"""
NO_ROOM = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)); "
"""No file of this process can be written any more, as on a full disk."""
TIMED = """
import time
from estimator.compiled import clock
from planner.outer import outer

begun, own = time.perf_counter(), clock()
outer(1)
own, whole = clock() - own, time.perf_counter() - begun
assert 0 <= own < whole - 0.01, (own, whole)
"""


@pytest.fixture
def packages(tmp_path):
    """A folder with packages of their own that have compiled functions."""
    for package in compiled.PACKAGES:
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").touch()
    shutil.copy(compiled.__file__, tmp_path / "estimator")
    (tmp_path / "planner" / "inner.py").write_text(INNER.format(added=1))
    (tmp_path / "planner" / "outer.py").write_text(OUTER)
    return tmp_path


def python(folder: Path, script: str, **environment: str) -> str:
    """What a script prints that uses the folder's packages, always from their sources: bytecode is read again within a second."""
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=folder,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **environment},
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    return done.stdout.strip()


def test_the_clock_of_searches_stands_still_for_machine_code(packages):
    python(packages, TIMED)  # compiled
    python(packages, TIMED)  # read


def test_the_clock_stands_still_while_numbas_lock_is_held_or_waited_for(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(compiled.time, "perf_counter", lambda: now[0])
    begun = compiled.clock()
    for _ in range(2):
        now[0] += 1.0
        with global_compiler_lock, global_compiler_lock:
            now[0] += 5.0
    assert compiled.clock() - begun == 2.0


def test_a_change_of_a_called_function_is_noticed(packages):
    def run(added: int, **environment: str) -> str:
        (packages / "planner" / "inner.py").write_text(INNER.format(added=added))
        return python(packages, SCRIPT, **environment)

    assert [run(1), run(1), run(2), run(2)] == ["20 0", "20 1", "30 0", "30 1"]
    (packages / "planner" / "other.py").write_text("LIMIT = 1")
    assert run(2) == "30 1"  # what no compiled function can use makes none anew
    elsewhere = {"NUMBA_CACHE_DIR": str(packages / "cache")}
    assert [run(2, **elsewhere), run(2, **elsewhere)] == ["30 0", "30 1"]


def test_a_type_that_has_another_name_now_is_compiled_for_anew(packages):
    def run(name: str) -> str:
        (packages / "planner" / "named.py").write_text(NAMED.format(name=name))
        call = f"from planner.named import shifted, {name}; print(shifted({name}(1)), sum(shifted.stats.cache_hits.values()))"
        return python(packages, call)

    assert [run("Pair"), run("Pair"), run("Other"), run("Other")] == ["2 0", "2 1", "2 0", "2 1"]


@pytest.mark.parametrize("suffix", ["nbi", "nbc"])
def test_files_of_machine_code_that_were_cut_off_are_made_anew(packages, suffix):
    python(packages, SCRIPT)
    kept = list((packages / "planner" / "__pycache__").glob(f"outer*.{suffix}"))
    assert kept
    for path in kept:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert [python(packages, SCRIPT), python(packages, SCRIPT)] == ["20 0", "20 1"]


def test_on_a_full_disk_machine_code_is_not_kept_and_used_all_the_same(packages):
    assert [python(packages, NO_ROOM + SCRIPT), python(packages, SCRIPT), python(packages, NO_ROOM + SCRIPT)] == [
        "20 0",
        "20 0",
        "20 1",
    ]


def test_who_may_write_nowhere_has_machine_code_all_the_same(packages):
    (packages / "planner" / "__pycache__").touch()
    homeless = {"HOME": os.devnull, "XDG_CACHE_HOME": os.devnull, "NUMBA_CACHE_DIR": ""}
    assert [python(packages, SCRIPT, **homeless), python(packages, SCRIPT, **homeless)] == ["20 0", "20 0"]
