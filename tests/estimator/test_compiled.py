"""Kept machine code is used again, until any source of it is another."""

import json
import os
import shutil
import subprocess
import sys

import pytest
from numba.core.compiler_lock import global_compiler_lock

from estimator import compiled

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
assert 0 <= own < whole - 0.001, (own, whole)
"""

ENDING = """
import os
from numba.core.caching import IndexDataCacheFile
from planner.outer import outer

IndexDataCacheFile._save_data = lambda *_: os._exit(0)
outer(1)
"""
RACING = """
import os
from numba.core.caching import IndexDataCacheFile
from planner.outer import outer

opened = IndexDataCacheFile._open_for_write
(ready, is_ready), (done, is_done) = os.pipe(), os.pipe()

def first(self, path):
    if "outer.outer" in path:
        IndexDataCacheFile._open_for_write = opened
        if not os.fork():
            IndexDataCacheFile._open_for_write = second
            outer(1.0)
            os._exit(0)
        os.read(ready, 1)
    return opened(self, path)

def second(self, path):
    if "outer.outer" in path and path.endswith(".nbc"):
        os.write(is_ready, b"1")
        os.read(done, 1)
    return opened(self, path)

IndexDataCacheFile._open_for_write = first
outer(1)
os.write(is_done, b"1")
os.wait()
"""
"""One process has machine code of other types written, while another is about to write."""

FORKS = """
import json, os, sys, traceback
import numba
from numba.core import caching, config, event

numba.njit(lambda x: x)(1)
sys.dont_write_bytecode = True  # sources are read: what bytecode is of is told by seconds
for line in sys.stdin:
    script, folder, environment = json.loads(line)
    read, write = os.pipe()
    if not (child := os.fork()):
        try:
            os.chdir(folder)
            os.environ.update(environment)
            config.reload_config()
            sys.path.insert(0, folder)
            os.dup2(write, 1)
            exec(script, {"__name__": "__main__"})
            sys.stdout.flush()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    os.close(write)
    with open(read) as printed:
        text = printed.read()
    print(json.dumps([os.waitpid(child, 0)[1], text]), flush=True)
"""
"""Runs scripts as interpreters of their own would, but has loaded numba, and made its compiler ready, once for all."""


@pytest.fixture(scope="module")
def forks():
    with subprocess.Popen([sys.executable, "-c", FORKS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


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


@pytest.fixture
def python(packages, forks):
    """What a script prints that uses the folder's packages."""

    def run(script: str, **environment: str) -> str:
        print(json.dumps([script, str(packages), environment]), file=forks.stdin, flush=True)
        status, text = json.loads(forks.stdout.readline())
        assert status == 0
        return text.strip()

    return run


def test_the_clock_of_searches_stands_still_for_machine_code(python):
    python(TIMED)  # compiled
    python(TIMED)  # read


def test_the_clock_stands_still_while_numbas_lock_is_held_or_waited_for(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(compiled.time, "perf_counter", lambda: now[0])
    begun = compiled.clock()
    for _ in range(2):
        now[0] += 1.0
        with global_compiler_lock, global_compiler_lock:
            now[0] += 5.0
    assert compiled.clock() - begun == 2.0


def test_a_change_of_a_called_function_is_noticed(packages, python):
    def run(added: int, **environment: str) -> str:
        (packages / "planner" / "inner.py").write_text(INNER.format(added=added))
        return python(SCRIPT, **environment)

    assert [run(1), run(1), run(2), run(2)] == ["20 0", "20 1", "30 0", "30 1"]
    (packages / "planner" / "other.py").write_text("LIMIT = 1")
    assert run(2) == "30 1"  # what no compiled function can use makes none anew
    elsewhere = {"NUMBA_CACHE_DIR": str(packages / "cache")}
    assert [run(2, **elsewhere), run(2, **elsewhere)] == ["30 0", "30 1"]


def test_a_type_that_has_another_name_now_is_compiled_for_anew(packages, python):
    def run(name: str) -> str:
        (packages / "planner" / "named.py").write_text(NAMED.format(name=name))
        call = f"from planner.named import shifted, {name}; print(shifted({name}(1)), sum(shifted.stats.cache_hits.values()))"
        return python(call)

    assert [run("Pair"), run("Pair"), run("Other"), run("Other")] == ["2 0", "2 1", "2 0", "2 1"]


def test_a_process_that_ends_while_it_keeps_machine_code_leaves_none_of_earlier_sources(packages, python):
    assert python(SCRIPT) == "20 0"
    (packages / "planner" / "inner.py").write_text(INNER.format(added=2))
    python(ENDING)
    assert [python(SCRIPT), python(SCRIPT)] == ["30 0", "30 1"]


def test_processes_that_compile_at_the_same_time_keep_each_its_own(python):
    python(RACING)
    both = "from planner.outer import outer; print(outer(1), outer(1.0), sum(outer.stats.cache_hits.values()))"
    assert python(both) == "20 20.0 2"


def test_machine_code_of_earlier_sources_is_not_kept(packages, python):
    def kept(added: int) -> set[str]:
        (packages / "planner" / "inner.py").write_text(INNER.format(added=added))
        python(SCRIPT, NUMBA_CACHE_DIR="")
        return {path.name for path in (packages / "planner" / "__pycache__").glob("*.nb*")}

    earlier, now = kept(1), kept(2)
    assert len(earlier) == len(now) == 2
    assert not earlier & now


def test_files_of_machine_code_that_were_cut_off_are_made_anew(packages, python):
    beside_the_code = {"NUMBA_CACHE_DIR": ""}
    python(SCRIPT, **beside_the_code)
    kept = list((packages / "planner" / "__pycache__").glob("outer*.nbc"))
    assert kept
    for path in kept:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert [python(SCRIPT, **beside_the_code), python(SCRIPT, **beside_the_code)] == ["20 0", "20 1"]


def test_on_a_full_disk_machine_code_is_not_kept_and_used_all_the_same(python):
    assert [python(NO_ROOM + SCRIPT), python(SCRIPT), python(NO_ROOM + SCRIPT)] == [
        "20 0",
        "20 0",
        "20 1",
    ]


def test_who_may_write_nowhere_has_machine_code_all_the_same(packages, python):
    (packages / "planner" / "__pycache__").touch()
    homeless = {"HOME": os.devnull, "XDG_CACHE_HOME": os.devnull, "NUMBA_CACHE_DIR": ""}
    assert [python(SCRIPT, **homeless), python(SCRIPT, **homeless)] == ["20 0", "20 0"]


def test_who_has_no_home_gets_no_folder_called_like_one(packages, python):
    (packages / "planner" / "__pycache__").touch()
    assert python(SCRIPT, XDG_CACHE_HOME="~/.cache", NUMBA_CACHE_DIR="") == "20 0"  # numba's folder of a user without a home
    assert not (packages / "~").exists()
