"""Kept machine code is used again, until any source of it is another."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

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


def test_a_change_of_a_called_function_is_noticed(tmp_path):
    for package in compiled.PACKAGES:
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").touch()
    shutil.copy(compiled.__file__, tmp_path / "estimator")
    (tmp_path / "planner" / "outer.py").write_text(OUTER)

    def run(added: int, **environment: str) -> str:
        (tmp_path / "planner" / "inner.py").write_text(INNER.format(added=added))
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT],
            cwd=tmp_path,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=100,
            check=True,
        )
        return done.stdout.strip()

    assert [run(1), run(1), run(2), run(2)] == ["20 0", "20 1", "30 0", "30 1"]
    (tmp_path / "planner" / "other.py").write_text("LIMIT = 1")
    assert run(2) == "30 1"  # what no compiled function can use makes none anew
    elsewhere = {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    assert [run(2, **elsewhere), run(2, **elsewhere)] == ["30 0", "30 1"]
