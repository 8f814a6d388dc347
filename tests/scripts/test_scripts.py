"""The scripts that CI calls are sound: executable, strict, and at home in any directory."""

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = [path for path in sorted((ROOT / "scripts").iterdir()) if path.is_file() and not path.suffix] + [ROOT / ".ci" / "run"]


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_script_is_executable_strict_and_starts_in_the_root(path):
    text = path.read_text()
    assert os.access(path, os.X_OK)
    assert text.startswith("#!/usr/bin/env bash\n# ")
    assert "\nset -euo pipefail\ncd " in text
    assert subprocess.run(["bash", "-n", str(path)], check=False).returncode == 0


def test_every_script_that_the_makefile_calls_exists():
    called = set(re.findall(r"scripts/(\w+)", (ROOT / "Makefile").read_text()))
    assert called
    assert called <= {path.name for path in SCRIPTS}


def test_soak_stops_at_the_first_failure_and_says_which_run(tmp_path):
    """`pytest` is replaced by a stand-in that fails the third time."""
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "soak").write_bytes((ROOT / "scripts" / "soak").read_bytes())
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/usr/bin/env bash\necho "$@" >> calls\n[ "$(wc -l < calls)" -lt 3 ]\n')
    python.chmod(0o755)
    result = subprocess.run(["bash", "scripts/soak", "-x"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert "run 3 of 20 failed" in result.stderr
    assert (tmp_path / "calls").read_text().splitlines() == ["-m pytest --hypothesis-profile fresh -m processes -x"] * 3


@pytest.fixture
def tests_script(tmp_path):
    """`scripts/test` with a stand-in for pytest: what it was asked for, and a failure of what the file `broken` names."""
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "test").write_bytes((ROOT / "scripts" / "test").read_bytes())
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(
        '#!/usr/bin/env bash\nmarks=${@: -2:1}\necho "$marks: ${!#}"\nexit "$(cat "${marks// /-}" 2>/dev/null || echo 0)"\n'
    )
    python.chmod(0o755)

    def run():
        return subprocess.run(
            ["bash", "scripts/test", "-x"], cwd=tmp_path, capture_output=True, text=True, timeout=240.0, check=False
        )

    return run


def test_tests_of_both_kinds_are_run_and_told_one_after_the_other(tests_script):
    result = tests_script()
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.splitlines() == ["processes: -x", "scripts/test: those that start no processes", "not processes: -x"]


@pytest.mark.parametrize(("kind", "status", "expected"), [("processes", 1, 1), ("not-processes", 2, 1), ("not-processes", 5, 0)])
def test_a_failure_of_either_kind_is_one_of_the_tests_and_none_selected_is_none(tests_script, tmp_path, kind, status, expected):
    (tmp_path / kind).write_text(str(status))
    assert tests_script().returncode == expected


def test_check_is_silent_when_all_is_well_and_names_what_failed(tmp_path):
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "check").write_bytes((ROOT / "scripts" / "check").read_bytes())
    tools = tmp_path / ".venv" / "bin"
    tools.mkdir(parents=True)
    for tool in (tools / "ruff", tools / "mypy", tools / "lint-imports"):
        tool.write_text('#!/usr/bin/env bash\necho noise\n[ ! -e broken ] || [ "${0##*/}" != mypy ]\n')
        tool.chmod(0o755)
    well = subprocess.run(["bash", "scripts/check"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (well.returncode, well.stdout, well.stderr) == (0, "", "")
    (tmp_path / "broken").touch()
    ill = subprocess.run(["bash", "scripts/check"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ill.returncode == 1
    assert "scripts/check: failed: .venv/bin/mypy" in ill.stderr


def test_processes_come_last_and_of_either_the_files_that_take_longest_first():
    """The order that tests/conftest.py gives."""
    from tests.conftest import LONGEST_FIRST, TESTS, pytest_collection_modifyitems

    class Item:
        def __init__(self, name, path, marked):
            self.name, self.path, self.marked = name, path, marked

        def get_closest_marker(self, name):
            return name if self.marked and name == "processes" else None

    first, second = (TESTS / name for name in LONGEST_FIRST[:2])
    assert all((TESTS / name).is_file() for name in LONGEST_FIRST)
    items = [Item("a", second, True), Item("b", TESTS, False), Item("c", first, True), Item("d", second, False)]
    pytest_collection_modifyitems(items)
    assert [item.name for item in items] == ["d", "b", "c", "a"]
